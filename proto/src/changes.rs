//! What leads from one published topology to the next, and how to follow it.
//!
//! Changes are made and applied on wire messages, field by field, so that a daemon can hold to one law whatever the
//! vocabulary becomes: [`v1::TopologyChanges::between`] gives only changes that, applied to the one, give exactly the other.

use crate::v1;

/// Why changes cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// They are for another topology than the one at hand.
    #[error("changes to generation {base} cannot be applied to generation {present}")]
    Base {
        /// Generation they are for.
        base: u64,
        /// Generation at hand.
        present: u64,
    },
    /// They name a host that is not there.
    #[error("SnapshotChanges.host: there is no host {host}")]
    Host {
        /// As sent.
        host: u32,
    },
    /// They replace a field that this version does not know.
    #[error("SnapshotChanges.replaced: '{field}' is no field that this version knows")]
    Field {
        /// As sent.
        field: String,
    },
}

/// Fields of a snapshot that are replaced as a whole, by name.
macro_rules! for_each_whole_field {
    ($with:ident) => {
        $with!(
            schema_version,
            source,
            host,
            numa_nodes,
            pci_devices,
            gpus,
            nics,
            matrix,
            link_graph,
            faults,
            pci_links
        )
    };
}

impl v1::TopologyChanges {
    /// What leads from `base` to `next`; `None` where that cannot be said in changes: other rates, or other hosts.
    #[must_use]
    pub fn between(base: &v1::Topology, next: &v1::Topology) -> Option<Self> {
        if base.rates != next.rates || base.hosts.len() != next.hosts.len() {
            return None;
        }
        let hosts = (0..).zip(base.hosts.iter().zip(&next.hosts));
        let changes = Self {
            base_generation: base.generation,
            base_fingerprint: base.fingerprint.clone(),
            generation: next.generation,
            fingerprint: next.fingerprint.clone(),
            hosts: hosts
                .filter(|(_, (base, next))| base != next)
                .map(|(host, (base, next))| snapshot_changes(host, base, next))
                .collect(),
        };
        let mut applied = base.clone();
        let exact = changes.apply_to(&mut applied).is_ok() && applied == *next;
        exact.then_some(changes)
    }

    /// Makes of `topology` the next one.
    ///
    /// # Errors
    /// Where the changes are not for it; it may then be left half changed and is of no more use.
    pub fn apply_to(&self, topology: &mut v1::Topology) -> Result<(), ChangesError> {
        if topology.generation != self.base_generation
            || topology.fingerprint != self.base_fingerprint
        {
            let (base, present) = (self.base_generation, topology.generation);
            return Err(ChangesError::Base { base, present });
        }
        for changes in &self.hosts {
            let place = usize::try_from(changes.host).ok();
            let host = place.and_then(|place| topology.hosts.get_mut(place));
            apply(changes, host.ok_or(ChangesError::Host { host: changes.host })?)?;
        }
        topology.generation = self.generation;
        topology.fingerprint.clone_from(&self.fingerprint);
        Ok(())
    }
}

fn snapshot_changes(host: u32, base: &v1::Snapshot, next: &v1::Snapshot) -> v1::SnapshotChanges {
    let mut changes = v1::SnapshotChanges { host, ..Default::default() };
    let mut set = v1::Snapshot::default();
    let mut keyed: Vec<&str> = Vec::new();
    // Lists whose elements have names of their own change by element, where that keeps their order.
    macro_rules! by_element {
        ($($list:ident by $key:ident into $removed:ident),+) => {$(
            keyed.push(stringify!($list));
            match elements(&base.$list, &next.$list, |element| element.$key.clone()) {
                Some((gone, changed)) => {
                    changes.$removed = gone;
                    set.$list = changed;
                }
                None => {
                    changes.replaced.push(stringify!($list).into());
                    set.$list.clone_from(&next.$list);
                }
            }
        )+};
    }
    by_element!(
        numa_nodes by id into removed_numa_nodes,
        pci_devices by bus_id into removed_pci_devices,
        gpus by index into removed_gpus,
        nics by name into removed_nics
    );
    macro_rules! whole {
        ($($field:ident),+) => {$(
            if !keyed.contains(&stringify!($field)) && base.$field != next.$field {
                changes.replaced.push(stringify!($field).into());
                set.$field.clone_from(&next.$field);
            }
        )+};
    }
    for_each_whole_field!(whole);
    changes.set = Some(set);
    changes
}

fn apply(changes: &v1::SnapshotChanges, host: &mut v1::Snapshot) -> Result<(), ChangesError> {
    let absent = v1::Snapshot::default();
    let set = changes.set.as_ref().unwrap_or(&absent);
    for field in &changes.replaced {
        macro_rules! replace {
            ($($field:ident),+) => {
                match &field[..] {
                    $(stringify!($field) => host.$field.clone_from(&set.$field),)+
                    other => return Err(ChangesError::Field { field: other.into() }),
                }
            };
        }
        for_each_whole_field!(replace);
    }
    let replaced = |list: &str| changes.replaced.iter().any(|field| field == list);
    macro_rules! by_element {
        ($($list:ident by $key:ident from $removed:ident),+) => {$(
            if !replaced(stringify!($list)) {
                change(&mut host.$list, &changes.$removed, &set.$list, |element| element.$key.clone());
            }
        )+};
    }
    by_element!(
        numa_nodes by id from removed_numa_nodes,
        pci_devices by bus_id from removed_pci_devices,
        gpus by index from removed_gpus,
        nics by name from removed_nics
    );
    Ok(())
}

/// Keys that are gone, and elements that are new or other; `None` where these would not give `next` in its order.
fn elements<T: Clone + PartialEq, K: PartialEq>(
    base: &[T],
    next: &[T],
    key: impl Fn(&T) -> K + Copy,
) -> Option<(Vec<K>, Vec<T>)> {
    let gone: Vec<K> =
        base.iter().map(key).filter(|name| !next.iter().any(|e| key(e) == *name)).collect();
    let changed: Vec<T> = next.iter().filter(|e| !base.contains(e)).cloned().collect();
    let mut applied = base.to_vec();
    change(&mut applied, &gone, &changed, key);
    (applied == next).then_some((gone, changed))
}

fn change<T: Clone, K: PartialEq>(
    list: &mut Vec<T>,
    gone: &[K],
    changed: &[T],
    key: impl Fn(&T) -> K,
) {
    list.retain(|element| !gone.contains(&key(element)));
    for element in changed {
        match list.iter_mut().find(|present| key(present) == key(element)) {
            Some(present) => present.clone_from(element),
            None => list.push(element.clone()),
        }
    }
}

impl v1::HealthChanges {
    /// What leads from one report to the next; `None` where the themes that are not told differ, which changes do not carry.
    #[must_use]
    pub fn between(base: &v1::HealthReport, next: &v1::HealthReport) -> Option<Self> {
        let only_in = |list: &[v1::Finding], other: &[v1::Finding]| -> Vec<v1::Finding> {
            list.iter().filter(|finding| !other.contains(finding)).cloned().collect()
        };
        let changes = Self {
            base_sequence: base.sequence,
            sequence: next.sequence,
            generation: next.generation,
            status: next.status,
            appeared: only_in(&next.findings, &base.findings),
            cleared: only_in(&base.findings, &next.findings),
            unchecked: next.unchecked.clone(),
            faults: next.faults.clone(),
        };
        (base.not_told == next.not_told).then_some(changes)
    }

    /// Makes of `report` the next one. The order of findings of one severity is then that in which they appeared.
    ///
    /// # Errors
    /// Where the changes are for another report.
    pub fn apply_to(&self, report: &mut v1::HealthReport) -> Result<(), ChangesError> {
        if report.sequence != self.base_sequence {
            let (base, present) = (self.base_sequence, report.sequence);
            return Err(ChangesError::Base { base, present });
        }
        report.findings.retain(|finding| !self.cleared.contains(finding));
        report.findings.extend(self.appeared.iter().cloned());
        report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        report.sequence = self.sequence;
        report.generation = self.generation;
        report.status = self.status;
        report.unchecked.clone_from(&self.unchecked);
        report.faults.clone_from(&self.faults);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::convert::strategies::snapshot;

    fn topology(generation: u64, hosts: Vec<v1::Snapshot>) -> v1::Topology {
        v1::Topology {
            generation,
            fingerprint: format!("f{generation}"),
            rates: v1::RateModel::Effective.into(),
            hosts,
        }
    }

    fn nic(name: &str, up: bool) -> v1::Nic {
        v1::Nic { name: name.into(), up: Some(up), ..Default::default() }
    }

    fn with_nics(nics: &[v1::Nic]) -> v1::Snapshot {
        v1::Snapshot { nics: nics.to_vec(), ..Default::default() }
    }

    /// Changes from NICs to NICs: what is replaced as a whole, removed, set.
    #[track_caller]
    fn check(base: &[v1::Nic], next: &[v1::Nic], expect: (&[&str], &[&str], &[&str])) {
        let (base, next) = (topology(1, vec![with_nics(base)]), topology(2, vec![with_nics(next)]));
        let changes = v1::TopologyChanges::between(&base, &next).unwrap();
        let [host] = &changes.hosts[..] else { panic!("one host changes: {changes:?}") };
        let set = host.set.as_ref().unwrap();
        let set: Vec<&str> = set.nics.iter().map(|nic| &nic.name[..]).collect();
        let (replaced, removed, expect_set) = expect;
        assert_eq!(
            (&host.replaced[..], &host.removed_nics[..]),
            (
                &replaced.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()[..],
                &removed.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()[..]
            )
        );
        assert_eq!(set, expect_set);
        let mut applied = base.clone();
        changes.apply_to(&mut applied).unwrap();
        assert_eq!(applied, next);
    }

    #[test]
    fn lists_change_by_element_where_that_keeps_their_order() {
        let (a, b, c) = (nic("a", true), nic("b", true), nic("c", true));
        let down = nic("b", false);
        check(&[a.clone(), b.clone()], &[a.clone(), down], (&[], &[], &["b"]));
        check(&[a.clone(), b.clone()], std::slice::from_ref(&b), (&[], &["a"], &[]));
        check(std::slice::from_ref(&a), &[a.clone(), b.clone()], (&[], &[], &["b"]));
        // In the middle, exchanged, or twice the same name: by element the order would be lost.
        check(
            &[a.clone(), c.clone()],
            &[a.clone(), b.clone(), c.clone()],
            (&["nics"], &[], &["a", "b", "c"]),
        );
        check(&[a.clone(), b.clone()], &[b.clone(), a.clone()], (&["nics"], &[], &["b", "a"]));
        check(std::slice::from_ref(&a), &[a.clone(), a.clone()], (&["nics"], &[], &["a", "a"]));
        check(&[a.clone(), b], &[], (&[], &["a", "b"], &[]));
    }

    #[test]
    fn other_rates_or_hosts_are_no_changes() {
        let base = topology(1, vec![with_nics(&[])]);
        let nominal = v1::Topology { rates: v1::RateModel::Nominal.into(), ..base.clone() };
        assert_eq!(v1::TopologyChanges::between(&base, &nominal), None);
        assert_eq!(v1::TopologyChanges::between(&base, &topology(2, vec![])), None);
    }

    #[test]
    fn changes_for_another_topology_are_refused() {
        let (base, next) =
            (topology(1, vec![with_nics(&[])]), topology(2, vec![with_nics(&[nic("a", true)])]));
        let changes = v1::TopologyChanges::between(&base, &next).unwrap();
        let mut other = next.clone();
        assert_eq!(changes.apply_to(&mut other), Err(ChangesError::Base { base: 1, present: 2 }));
        let mut other = v1::Topology { fingerprint: "f".into(), ..base.clone() };
        assert_eq!(changes.apply_to(&mut other), Err(ChangesError::Base { base: 1, present: 1 }));
        let mut strange = changes.clone();
        strange.hosts[0].host = 7;
        assert_eq!(strange.apply_to(&mut base.clone()), Err(ChangesError::Host { host: 7 }));
        strange.hosts[0].host = 0;
        strange.hosts[0].replaced.push("mood".into());
        let refused = Err(ChangesError::Field { field: "mood".into() });
        assert_eq!(strange.apply_to(&mut base.clone()), refused);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever two hosts say, what leads from one to the other leads there.
        #[test]
        fn changes_lead_there(base in snapshot(), next in snapshot()) {
            let (base, next) = (topology(4, vec![(&base).into()]), topology(9, vec![(&next).into()]));
            let changes = v1::TopologyChanges::between(&base, &next);
            let mut applied = base.clone();
            changes.expect("both are one host with the same rates").apply_to(&mut applied).unwrap();
            prop_assert_eq!(applied, next);
        }
    }

    #[test]
    fn findings_come_and_go() {
        let finding = |code: &str, severity: v1::Severity| v1::Finding {
            code: code.into(),
            severity: severity.into(),
            ..Default::default()
        };
        let report = |sequence, findings: &[v1::Finding]| v1::HealthReport {
            sequence,
            findings: findings.to_vec(),
            ..Default::default()
        };
        let (bad, worse) =
            (finding("a", v1::Severity::Degraded), finding("b", v1::Severity::Critical));
        let (base, next) =
            (report(1, std::slice::from_ref(&bad)), report(2, &[worse.clone(), bad.clone()]));
        let changes = v1::HealthChanges::between(&base, &next).unwrap();
        assert_eq!((&changes.appeared[..], &changes.cleared[..]), (&[worse.clone()][..], &[][..]));
        let mut applied = base.clone();
        changes.apply_to(&mut applied).unwrap();
        assert_eq!(applied, next);
        assert!(changes.apply_to(&mut applied).is_err(), "once is enough");
        let back = v1::HealthChanges::between(&next, &report(3, &[bad])).unwrap();
        assert_eq!(back.cleared, [worse]);
    }
}
