//! The axes of a job and the groups along them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Sizes of a job's axes. Ranks are `tp * cp * dp * pp`; experts are spread inside `cp * dp`, as Megatron-core has it
/// (NVIDIA/Megatron-LM, `megatron/core/parallel_state.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Tensor parallel: ranks that share each layer.
    pub tp: usize,
    /// Context parallel: ranks that share each sequence.
    pub cp: usize,
    /// Data parallel: copies of the model.
    pub dp: usize,
    /// Pipeline parallel: stages.
    pub pp: usize,
    /// Expert parallel: ranks that share the experts of a layer; divides `cp * dp`.
    pub ep: usize,
}

/// What ranks form groups for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// All-reduce of activations inside a layer.
    Tp,
    /// Keys and values of the other parts of a sequence.
    Cp,
    /// Tokens to their experts and back.
    Ep,
    /// Gradients of what all copies share: over `cp * dp` ranks.
    Dp,
    /// Gradients of experts: over `cp * dp / ep` ranks.
    ExpertDp,
    /// Activations from stage to stage, and their gradients back.
    Pp,
}

impl Axis {
    /// All, innermost first by how much and how often they send.
    pub const ALL: [Self; 6] = [Self::Tp, Self::Cp, Self::Ep, Self::Dp, Self::ExpertDp, Self::Pp];

    /// As on a command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tp => "tp",
            Self::Cp => "cp",
            Self::Ep => "ep",
            Self::Dp => "dp",
            Self::ExpertDp => "expert-dp",
            Self::Pp => "pp",
        }
    }
}

/// Where a rank stands on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coordinates {
    /// Below [`Job::tp`].
    pub tp: usize,
    /// Below [`Job::cp`].
    pub cp: usize,
    /// Below [`Job::dp`].
    pub dp: usize,
    /// Below [`Job::pp`].
    pub pp: usize,
}

/// Axes that ranks are counted along, innermost first.
pub(crate) type Nesting = [Axis; 4];

/// Megatron's order `tp-cp-ep-dp-pp`, which is the default there.
pub(crate) const MEGATRON: Nesting = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp];
/// Megatron's order with `--use-tp-pp-dp-mapping`.
pub(crate) const MEGATRON_PP_DP: Nesting = [Axis::Tp, Axis::Cp, Axis::Pp, Axis::Dp];

impl Job {
    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        [self.cp, self.dp, self.pp].into_iter().fold(self.tp, usize::saturating_mul)
    }

    /// What is wrong with the sizes themselves.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        if [self.tp, self.cp, self.dp, self.pp, self.ep].contains(&0) {
            return Some("every axis has at least one rank".into());
        }
        let copies = self.cp.saturating_mul(self.dp);
        (!copies.is_multiple_of(self.ep)).then(|| {
            format!(
                "ep {} does not divide cp * dp, which is {copies}: experts are spread there",
                self.ep
            )
        })
    }

    /// Size along an axis of a nesting.
    fn size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
            Axis::Ep | Axis::ExpertDp => 1,
        }
    }

    /// Where the rank that a nesting counts as `number` stands.
    pub(crate) fn coordinates(&self, nesting: &Nesting, number: usize) -> Coordinates {
        let mut at = Coordinates { tp: 0, cp: 0, dp: 0, pp: 0 };
        let mut rest = number;
        for &axis in nesting {
            let size = self.size(axis);
            let place = rest % size;
            rest /= size;
            match axis {
                Axis::Tp => at.tp = place,
                Axis::Cp => at.cp = place,
                Axis::Dp => at.dp = place,
                Axis::Pp => at.pp = place,
                Axis::Ep | Axis::ExpertDp => {}
            }
        }
        at
    }

    /// The number that a nesting gives to these coordinates.
    pub(crate) fn number(&self, nesting: &Nesting, at: Coordinates) -> usize {
        nesting.iter().rev().fold(0, |number, &axis| {
            let place = match axis {
                Axis::Tp => at.tp,
                Axis::Cp => at.cp,
                Axis::Dp => at.dp,
                Axis::Pp => at.pp,
                Axis::Ep | Axis::ExpertDp => 0,
            };
            number * self.size(axis) + place
        })
    }

    /// Groups of an axis, each as the numbers of its members in Megatron's order; stages of a pipeline in order. None of one member.
    pub(crate) fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        let copies = self.cp * self.dp;
        let at = |tp: usize, copy: usize, pp: usize| {
            let at = Coordinates { tp, cp: copy % self.cp, dp: copy / self.cp, pp };
            self.number(&MEGATRON, at)
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let (tps, pps) = (0..self.tp, 0..self.pp);
        match axis {
            Axis::Tp => {
                for pp in pps {
                    groups.extend(
                        (0..copies).map(|copy| tps.clone().map(|tp| at(tp, copy, pp)).collect()),
                    );
                }
            }
            Axis::Pp => {
                for copy in 0..copies {
                    groups.extend(
                        tps.clone().map(|tp| pps.clone().map(|pp| at(tp, copy, pp)).collect()),
                    );
                }
            }
            Axis::Cp | Axis::Ep | Axis::Dp | Axis::ExpertDp => {
                let sets: Vec<Vec<usize>> = match axis {
                    Axis::Cp => (0..self.dp)
                        .map(|dp| (0..self.cp).map(|cp| dp * self.cp + cp).collect())
                        .collect(),
                    Axis::Ep => (0..copies / self.ep)
                        .map(|set| (0..self.ep).map(|ep| set * self.ep + ep).collect())
                        .collect(),
                    Axis::ExpertDp => {
                        (0..self.ep).map(|ep| (ep..copies).step_by(self.ep).collect()).collect()
                    }
                    _ => [(0..copies).collect()].into(),
                };
                for pp in pps {
                    for tp in tps.clone() {
                        groups.extend(sets.iter().map(|set| {
                            set.iter().map(|&copy| at(tp, copy, pp)).collect::<Vec<usize>>()
                        }));
                    }
                }
            }
        }
        groups.retain(|group| group.len() > 1);
        groups
    }

    /// Every nesting that counts ranks differently.
    pub(crate) fn nestings(&self) -> Vec<Nesting> {
        let mut made: Vec<Nesting> = Vec::new();
        let mut seen: Vec<Vec<Axis>> = Vec::new();
        for first in MEGATRON {
            for second in MEGATRON {
                for third in MEGATRON {
                    for last in MEGATRON {
                        let nesting = [first, second, third, last];
                        if MEGATRON.iter().any(|axis| !nesting.contains(axis)) {
                            continue;
                        }
                        let counted: Vec<Axis> =
                            nesting.into_iter().filter(|&axis| self.size(axis) > 1).collect();
                        if !seen.contains(&counted) {
                            seen.push(counted);
                            made.push(nesting);
                        }
                    }
                }
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    const JOB: Job = Job { tp: 2, cp: 2, dp: 2, pp: 2, ep: 4 };

    #[test]
    fn groups_as_megatron_makes_them() {
        assert_eq!(JOB.groups(Axis::Tp)[..2], [vec![0, 1], vec![2, 3]]);
        assert_eq!(JOB.groups(Axis::Cp)[0], [0, 2]);
        assert_eq!(JOB.groups(Axis::Ep)[0], [0, 2, 4, 6]);
        assert_eq!(JOB.groups(Axis::Dp)[0], [0, 2, 4, 6]);
        assert_eq!(JOB.groups(Axis::Pp)[0], [0, 8]);
        assert!(JOB.groups(Axis::ExpertDp).is_empty());
        let wider = Job { dp: 4, ..JOB };
        assert_eq!(wider.groups(Axis::ExpertDp)[0], [0, 8]);
    }

    #[test]
    fn every_rank_is_in_one_group_of_each_axis() {
        for job in [
            JOB,
            Job { tp: 3, cp: 1, dp: 4, pp: 2, ep: 2 },
            Job { tp: 1, cp: 3, dp: 2, pp: 5, ep: 3 },
        ] {
            for axis in Axis::ALL {
                let groups = job.groups(axis);
                let members: Vec<usize> = groups.iter().flatten().copied().collect();
                let once: BTreeSet<usize> = members.iter().copied().collect();
                assert_eq!(members.len(), once.len());
                assert!(groups.is_empty() || once.len() == job.ranks(), "{job:?} {axis:?}");
            }
        }
    }

    #[test]
    fn nestings_count_every_rank_once() {
        for job in [JOB, Job { tp: 1, cp: 1, dp: 4, pp: 2, ep: 1 }] {
            for nesting in job.nestings() {
                for number in 0..job.ranks() {
                    assert_eq!(job.number(&nesting, job.coordinates(&nesting, number)), number);
                }
            }
        }
        assert_eq!(JOB.nestings().len(), 24);
        assert_eq!(Job { tp: 2, cp: 1, dp: 2, pp: 1, ep: 1 }.nestings().len(), 2);
    }

    #[test]
    fn sizes_that_make_no_job() {
        assert!(Job { tp: 0, ..JOB }.refusal().is_some());
        assert!(Job { ep: 3, ..JOB }.refusal().unwrap().contains("ep 3 does not divide"));
        assert_eq!(JOB.refusal(), None);
    }
}
