//! Which of a plan's channels an operation of a given size runs on.

use topology::plan::{ChannelSet, Pattern};
use topology::{Algorithm, Channel, Collective, Plan, Rank};

use super::ScheduleError;

/// A channel with the number that tells it apart from every other of the plan.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// See [`channel_ids`].
    pub id: u32,
    /// The channel.
    pub channel: &'a Channel,
}

/// Every channel of a plan, numbered: `plan.channels` from 0, then those of each alternative set in turn.
pub fn channel_ids(plan: &Plan) -> impl Iterator<Item = Selected<'_>> {
    let all = plan.channels.iter().chain(plan.alternatives.iter().flat_map(|s| &s.channels));
    (0_u32..).zip(all).map(|(id, channel)| Selected { id, channel })
}

/// The channels that carry `collective` over `bytes` of total data, in plan order.
///
/// The choice is the plan's own: the row of `by_size` for that size, its algorithm's channels, the first so many of
/// every root. Where the plan has no such row, or its choice is of a shape this transport does not run (direct exchanges for
/// what rings and trees carry), the channels of the collective's best algorithm are taken. With a `root`, trees and
/// exchanges of other roots are left out.
///
/// # Errors
/// Where nothing is left.
pub fn select(
    plan: &Plan,
    collective: Collective,
    root: Option<Rank>,
    bytes: u64,
) -> Result<Vec<Selected<'_>>, ScheduleError> {
    let mut chosen = by_size(plan, collective, bytes).unwrap_or_default();
    let runs =
        |c: &Selected<'_>| c.channel.pattern != Pattern::Pairs || super::direct_only(collective);
    if chosen.is_empty() || !chosen.iter().all(runs) {
        chosen = best(plan, collective).collect();
    }
    if root.is_some() {
        chosen.retain(|c| match c.channel.pattern {
            Pattern::Ring | Pattern::Rounds => true,
            Pattern::Tree => c.channel.root == root,
            Pattern::Pairs => c.channel.root.is_none() || c.channel.root == root,
        });
    }
    if chosen.is_empty() {
        return Err(ScheduleError::NoChannel { collective, root });
    }
    Ok(chosen)
}

/// The algorithm whose round a channel is; `None` where the plan does not say.
pub(super) fn algorithm(plan: &Plan, collective: Collective, round: &Channel) -> Option<Algorithm> {
    let holds =
        |set: &&ChannelSet| set.channels.iter().any(|channel| core::ptr::eq(channel, round));
    match plan.alternatives.iter().find(holds) {
        Some(set) => Some(set.algorithm),
        None => Some(plan.collectives.get(&collective)?.best.as_ref()?.algorithm),
    }
}

/// The first round of each algorithm that `collective` takes in rounds at some size.
pub(super) fn in_rounds(plan: &Plan, collective: Collective) -> Vec<Selected<'_>> {
    let Some(reached) = plan.collectives.get(&collective) else { return Vec::new() };
    let named = |algorithm: Algorithm| reached.by_size.iter().any(|row| row.algorithm == algorithm);
    let mut seen = Vec::new();
    channel_ids(plan)
        .filter(|c| {
            let round =
                c.channel.pattern == Pattern::Rounds && c.channel.collectives.contains(&collective);
            let Some(algorithm) = algorithm(plan, collective, c.channel).filter(|_| round) else {
                return false;
            };
            let own = usize::try_from(c.id).is_ok_and(|id| id < plan.channels.len());
            let first = !seen.contains(&algorithm);
            seen.push(algorithm);
            first && (own || named(algorithm))
        })
        .collect()
}

fn best(plan: &Plan, collective: Collective) -> impl Iterator<Item = Selected<'_>> {
    channel_ids(plan)
        .take(plan.channels.len())
        .filter(move |c| c.channel.collectives.contains(&collective))
}

fn by_size(plan: &Plan, collective: Collective, bytes: u64) -> Option<Vec<Selected<'_>>> {
    let reached = plan.collectives.get(&collective)?;
    let row = reached.by_size.iter().find(|row| bytes <= row.max_bytes)?;
    let serves =
        |set: &&ChannelSet| set.algorithm == row.algorithm && set.collectives.contains(&collective);
    let mut chosen: Vec<Selected<'_>> =
        if reached.best.as_ref().is_some_and(|b| b.algorithm == row.algorithm) {
            best(plan, collective).collect()
        } else {
            let set = plan.alternatives.iter().find(serves)?;
            channel_ids(plan)
                .filter(|c| {
                    set.channels.iter().any(|of_set| core::ptr::eq(of_set, c.channel))
                        && c.channel.collectives.contains(&collective)
                })
                .collect()
        };
    // Rounds go together.
    if chosen.iter().any(|c| c.channel.pattern == Pattern::Rounds) {
        return Some(chosen);
    }
    // `channels` counts rings, or trees of one root.
    let limit = usize::try_from(row.channels.max(1)).unwrap_or(usize::MAX);
    let mut taken: Vec<(Option<Rank>, usize)> = Vec::new();
    chosen.retain(|c| {
        let root = c.channel.root;
        let count = match taken.iter_mut().find(|(r, _)| *r == root) {
            Some((_, count)) => count,
            None => {
                taken.push((root, 0));
                &mut taken.last_mut().expect("just pushed").1
            }
        };
        *count += 1;
        *count <= limit
    });
    Some(chosen)
}
