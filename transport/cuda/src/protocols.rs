//! By which protocol an operation goes: what was asked for, what the machine allows, and what the plan says for a size.
//!
//! Every rank comes to the same, for all know the same: settings that are compared, the plan, and what each told when they met.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use topology::{Collective, Plan, Protocol, Rank};

use crate::flagged::{PROTOCOLS, place};

/// Least compute capability, times ten, whose stores of 128 bytes stay whole over NVLink.
const WHOLE_LINES: u32 = 70;

/// What a rank says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) capability: u32,
    /// Whether all blocks of a launch can be promised to be there at once.
    pub(crate) together: bool,
    /// Blocks that its device holds at once; or why it has no kernels.
    pub(crate) resident: Result<u32, String>,
}

/// How one rank writes to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// [`Way::as_str`](crate::Way::as_str).
    pub(crate) way: String,
    /// Why no better.
    pub(crate) why: String,
    /// Whether over NVLink, or within one device.
    pub(crate) whole: bool,
}

/// What the machine allows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usable {
    /// Why not, by place in [`PROTOCOLS`].
    why_not: [Option<String>; 2],
    /// Blocks that every device holds at once.
    pub(crate) resident: u32,
}

/// A rank of those that meet: its process, its device, and what it says of itself.
pub(crate) type Member<'a> = (&'a str, String, Option<&'a Facts>);

impl Usable {
    pub(crate) fn not(why: &str) -> Self {
        Self { why_not: [Some(why.to_owned()), Some(why.to_owned())], resident: 0 }
    }

    /// `reached` by sender, then receiver; `pairs` are those with connections.
    pub(crate) fn of(
        members: &[Member<'_>],
        reached: &[Vec<Reached>],
        pairs: impl Iterator<Item = (Rank, Rank)>,
    ) -> Self {
        let resident = match alike(members) {
            Ok(resident) => resident,
            Err(why) => return Self::not(&why),
        };
        let mut made = Self { resident, ..Self::default() };
        for (from, to) in pairs {
            // Data goes one way, credits the other.
            for (from, to) in [(from, to), (to, from)] {
                let found = &reached[from.index()][to.index()];
                if found.way != crate::Way::Peer.as_str() {
                    let why = format!("rank {from} does not write memory of rank {to}");
                    let why =
                        if found.why.is_empty() { why } else { format!("{why}: {}", found.why) };
                    return Self::not(&why);
                }
                if !found.whole {
                    made.why_not[1].get_or_insert_with(|| {
                        format!(
                            "no NVLink is known between rank {from} and rank {to}: stores of 128 bytes may be cut"
                        )
                    });
                }
            }
        }
        let capability = members.iter().filter_map(|(.., facts)| Some((*facts)?.capability)).min();
        if let Some(capability) = capability.filter(|found| *found < WHOLE_LINES) {
            let why = format!("stores of 128 bytes are not whole on sm_{capability}");
            made.why_not[1].get_or_insert(why);
        }
        made
    }

    /// Why a protocol is not used; `None` where it may be.
    pub(crate) fn why_not(&self, protocol: Protocol) -> Option<&str> {
        place(protocol).and_then(|at| self.why_not[at].as_deref())
    }

    /// Whether either may be used.
    pub(crate) fn any(&self) -> bool {
        self.why_not.iter().any(Option::is_none)
    }
}

/// The fewest blocks that a device holds at once; or what is wrong with a rank.
fn alike(members: &[Member<'_>]) -> Result<u32, String> {
    let mut least = u32::MAX;
    for (rank, (process, device, facts)) in members.iter().enumerate() {
        let Some(facts) = facts else { return Err(format!("rank {rank} did not ask for it")) };
        if !facts.together {
            return Err(format!("rank {rank}'s device has no cooperative launches"));
        }
        let resident = facts.resident.as_ref();
        least = least
            .min(*resident.map_err(|why| format!("rank {rank} has no kernels for it: {why}"))?);
        // Streams of one context share queues: one rank's kernel may wait behind another's, which waits for it.
        let twin = members[..rank].iter().position(|(p, d, _)| (p, d) == (process, device));
        if let Some(twin) = twin {
            return Err(format!("ranks {twin} and {rank} share device {device} in one process"));
        }
    }
    Ok(least)
}

/// What may be used for each collective.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(BTreeMap<Collective, Vec<Protocol>>);

impl Asked {
    /// By the group's own list, else by that of the host's settings where one names protocols; else copies alone.
    pub(crate) fn new(options: &crate::Options) -> Self {
        let of = |collective: Collective| {
            let named = || options.host.choice.named_protocols(collective);
            let mut list = options.protocols.clone().or_else(named).unwrap_or_default();
            list.sort_unstable();
            list.dedup();
            (collective, if list.is_empty() { vec![Protocol::Simple] } else { list })
        };
        Self(Collective::ALL.iter().copied().map(of).collect())
    }

    fn of(&self, collective: Collective) -> &[Protocol] {
        self.0.get(&collective).map_or(&[Protocol::Simple], Vec::as_slice)
    }

    /// Whether any but copies may be used for one of these.
    pub(crate) fn flagged(&self, collectives: &[Collective]) -> bool {
        collectives.iter().any(|c| self.of(*c).iter().any(|p| *p != Protocol::Simple))
    }

    /// To compare between ranks.
    pub(crate) fn claim(&self) -> String {
        let each = self.0.iter().map(|(collective, list)| {
            let list: Vec<_> = list.iter().map(|protocol| protocol.as_str()).collect();
            format!("{collective}: {}", list.join(","))
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// The protocol for an operation of so many bytes, of which a slot holds `data`. Where the one that is asked for cannot be used, copies
    /// are, and that is said.
    pub(crate) fn choose(
        &self,
        plan: &Plan,
        usable: &Usable,
        collective: Collective,
        (bytes, data): (u64, u64),
    ) -> (Protocol, Option<String>) {
        let list = self.of(collective);
        // A barrier is an all-reduce of next to nothing.
        let planned =
            if collective == Collective::Barrier { Collective::AllReduce } else { collective };
        let rows = plan.collectives.get(&planned).map(|reached| &reached.by_size);
        let row = rows.and_then(|rows| rows.iter().find(|row| bytes <= row.max_bytes));
        let flagged = || PROTOCOLS.into_iter().filter(|protocol| list.contains(protocol));
        let wanted = match row.map(|row| row.protocol).filter(|found| list.contains(found)) {
            Some(by_plan) => by_plan,
            // One that is forced, by leaving copies out: the first that can be.
            None if !list.contains(&Protocol::Simple) => {
                let usable = flagged().find(|protocol| usable.why_not(*protocol).is_none());
                usable.or_else(|| flagged().next()).unwrap_or(Protocol::Simple)
            }
            // A plan that says nothing of sizes: what one message carries is small.
            None if row.is_none() && bytes <= data => flagged().next().unwrap_or(Protocol::Simple),
            None => Protocol::Simple,
        };
        match usable.why_not(wanted) {
            Some(why) => (Protocol::Simple, Some(format!("{wanted} is not used: {why}"))),
            None => (wanted, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use topology::Algorithm;
    use topology::plan::SizeChoice;
    use transport::even::full_plan;

    use super::*;
    use crate::Options;
    use Protocol::{Ll, Ll128, Simple};

    fn facts(capability: u32) -> Facts {
        Facts { capability, together: true, resident: Ok(8) }
    }

    fn reached(whole: bool) -> Vec<Vec<Reached>> {
        let one = Reached { way: "peer".to_owned(), why: String::new(), whole };
        vec![vec![one; 2]; 2]
    }

    fn usable(facts: &[Facts; 2], reached: &[Vec<Reached>]) -> Usable {
        let members =
            [("a", "0".to_owned(), Some(&facts[0])), ("a", "1".to_owned(), Some(&facts[1]))];
        Usable::of(&members, reached, [(Rank(0), Rank(1))].into_iter())
    }

    #[test]
    fn what_the_machine_allows() {
        let good = usable(&[facts(90), facts(90)], &reached(true));
        assert_eq!((good.why_not(Ll), good.why_not(Ll128), good.resident), (None, None, 8));
        let pcie = usable(&[facts(90), facts(90)], &reached(false));
        assert!(pcie.why_not(Ll).is_none() && pcie.why_not(Ll128).unwrap().contains("NVLink"));
        let old = usable(&[facts(90), facts(61)], &reached(true));
        assert!(old.why_not(Ll).is_none() && old.why_not(Ll128).unwrap().contains("sm_61"));
        let mut staged = reached(true);
        staged[1][0] = Reached { way: "staged".into(), why: "refused".into(), whole: false };
        let staged = usable(&[facts(90), facts(90)], &staged);
        assert_eq!(staged.why_not(Ll), Some("rank 1 does not write memory of rank 0: refused"));
        assert!(!staged.any());
        let none = Facts { resident: Err("no compiler".to_owned()), ..facts(90) };
        let none = usable(&[facts(90), none], &reached(true));
        assert_eq!(none.why_not(Ll), Some("rank 1 has no kernels for it: no compiler"));
        let apart = Facts { together: false, ..facts(90) };
        assert!(
            usable(&[apart, facts(90)], &reached(true))
                .why_not(Ll)
                .unwrap()
                .contains("cooperative")
        );
        let fact = facts(90);
        let twins = [("a", "0".to_owned(), Some(&fact)), ("a", "0".to_owned(), Some(&fact))];
        let twins = Usable::of(&twins, &reached(true), [(Rank(0), Rank(1))].into_iter());
        assert!(twins.why_not(Ll).unwrap().contains("share device 0 in one process"));
    }

    #[test]
    fn what_is_asked_for_and_what_the_plan_says() {
        let mut plan = full_plan(2, 1);
        let good = usable(&[facts(90), facts(90)], &reached(true));
        let pcie = usable(&[facts(90), facts(90)], &reached(false));
        let asked = |list: Option<Vec<Protocol>>, text: &str| {
            let mut options = Options { protocols: list, ..Options::default() };
            if !text.is_empty() {
                options.host.set("proto", text).unwrap();
            }
            Asked::new(&options)
        };
        let chosen = |asked: &Asked, plan: &Plan, usable: &Usable, bytes| {
            asked.choose(plan, usable, Collective::AllReduce, (bytes, 4096)).0
        };
        // Nothing, or nothing but what is not wanted, leaves copies.
        for off in [asked(None, ""), asked(None, "^LL128"), asked(Some(vec![Simple]), "LL")] {
            assert_eq!(chosen(&off, &plan, &good, 8), Simple);
            assert!(!off.flagged(Collective::ALL), "{off:?}");
        }
        let both = asked(None, "LL,LL128,Simple");
        assert!(both.flagged(&[Collective::AllReduce]) && !both.flagged(&[Collective::AllToAll]));
        assert_eq!(
            [8, 4096, 4097].map(|bytes| chosen(&both, &plan, &good, bytes)),
            [Ll, Ll, Simple]
        );
        let row = |max_bytes, protocol| SizeChoice {
            max_bytes,
            algorithm: Algorithm::Ring,
            protocol,
            channels: 1,
            predicted_ps: None,
        };
        let rows = vec![row(100, Ll), row(200, Ll128), row(u64::MAX, Simple)];
        plan.collectives.get_mut(&Collective::AllReduce).unwrap().by_size = rows;
        let of = |asked: &Asked, usable| [100, 101, 201].map(|b| chosen(asked, &plan, usable, b));
        assert_eq!(of(&both, &good), [Ll, Ll128, Simple]);
        let (protocol, why) = both.choose(&plan, &pcie, Collective::AllReduce, (150, 4096));
        assert!(protocol == Simple && why.unwrap().contains("NVLink"));
        let forced = asked(Some(vec![Ll128]), "");
        assert_eq!(of(&forced, &good), [Ll128; 3]);
        assert_eq!(of(&forced, &pcie), [Simple; 3]);
        let either = asked(Some(vec![Ll, Ll128]), "");
        assert_eq!(of(&either, &good), [Ll, Ll128, Ll]);
    }
}
