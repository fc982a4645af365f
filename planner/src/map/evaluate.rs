//! How long a step's communication takes under a mapping.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use topology::{Algorithm, Collective, Fraction, LinkKind};

use super::job::{Axis, Job};
use super::traffic::{Operation, Traffic};
use crate::cost::{self, Machine, Shape};
use crate::fleet::Fleet;
use crate::groups::{
    GpuPlace, GroupError, GroupLoads, HostLink, Loader, Motion, Tier, capacity_kbps,
};

/// Where each rank is: by number in Megatron's order, a place in [`Evaluator::places`].
pub(crate) type Assignment = Vec<usize>;

/// Bytes that busy times are counted for.
const GIB: u64 = 1 << 30;

/// One operation of all groups of an axis at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationTime {
    /// Picoseconds.
    pub(crate) ps: u64,
    /// Of it, what remains for no data at all.
    pub(crate) latency_ps: u64,
    /// The link that is busy longest.
    pub(crate) bottleneck: Option<HostLink>,
    /// Data of a group per second, kB/s.
    pub(crate) kbps: Option<Fraction>,
    /// Groups that leave what GPU links join.
    pub(crate) outside: u64,
}

impl OperationTime {
    pub(crate) fn known(&self) -> Known {
        (self.ps, self.outside)
    }
}

/// What a step takes; less is better. Times are picoseconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepTime {
    /// Tensor parallel groups that leave what NVLink or xGMI joins. Compared first: their operations are on the critical path of every layer,
    /// several times, and that a network keeps up with NVLink there is true of no machine, whatever its rates added up say.
    pub tp_outside: u64,
    /// Communication that nothing hides, of all axes.
    pub exposed_ps: u64,
    /// Communication whether hidden or not.
    pub communication_ps: u64,
    /// By operation of the traffic, its exposed part.
    pub exposed_by_operation_ps: Vec<u64>,
    /// Part of the pipeline's time in which stages wait for its filling and draining: `(p - 1) / microbatches` of the work.
    pub bubble: Fraction,
    /// That time, `None` where computing time is unknown.
    pub bubble_ps: Option<u64>,
    /// Computing, bubble and exposed communication together, where computing time is known.
    pub step_ps: Option<u64>,
}

/// Evaluates mappings of one job.
#[derive(Debug)]
pub(crate) struct Evaluator<'a> {
    loader: Loader<'a>,
    pub(crate) job: Job,
    pub(crate) traffic: &'a Traffic,
    /// GPUs to map to, host-major, in index order.
    pub(crate) places: Vec<GpuPlace>,
    /// By operation, its groups.
    pub(crate) groups: Vec<Vec<Vec<usize>>>,
    machine: Machine,
    known: BTreeMap<(Motion, Vec<GpuPlace>), GroupLoads>,
    /// By operation and groups, for few ranks.
    few: BTreeMap<(usize, u64), Option<Known>>,
    /// Mappings looked at.
    pub(crate) steps: u64,
}

/// Picoseconds of an operation, and its groups that leave what GPU links join.
type Known = (u64, u64);

/// Ranks up to which groups fit into 64 bits.
const FEW: usize = 8;
/// Groups kept; beyond that they are made again.
const MOST_KNOWN: usize = 20_000;

impl<'a> Evaluator<'a> {
    pub(crate) fn new(
        loader: Loader<'a>,
        job: Job,
        traffic: &'a Traffic,
        places: Vec<GpuPlace>,
    ) -> Self {
        let groups =
            traffic.operations.iter().map(|operation| job.groups(operation.axis)).collect();
        let machine = machine(loader.fleet());
        Self {
            loader,
            job,
            traffic,
            places,
            groups,
            machine,
            known: BTreeMap::new(),
            few: BTreeMap::new(),
            steps: 0,
        }
    }

    pub(crate) fn fleet(&self) -> &'a Fleet {
        self.loader.fleet()
    }

    /// What the step takes; `None` where some group has no way between its members.
    pub(crate) fn step(&mut self, assignment: &[usize]) -> Option<StepTime> {
        self.steps += 1;
        let mut times = Vec::with_capacity(self.groups.len());
        for operation in 0..self.groups.len() {
            times.push(self.known(operation, assignment)?);
        }
        Some(self.step_of(&times))
    }

    fn known(&mut self, operation: usize, assignment: &[usize]) -> Option<Known> {
        if assignment.len() > FEW {
            return self.operation(operation, assignment).ok().map(|time| time.known());
        }
        let ordered = self.traffic.operations[operation].motion == Motion::Chain;
        // By place, a nibble for its group, counted as they appear, and one for its place in a chain.
        let mut of_place = [(usize::MAX, 0_u64); FEW];
        for (group, members) in self.groups[operation].iter().enumerate() {
            for (stage, &rank) in (0_u64..).zip(members) {
                of_place[assignment[rank]] = (group, if ordered { stage } else { 0 });
            }
        }
        let mut seen: Vec<usize> = Vec::new();
        let mut key = 0_u64;
        for (group, stage) in of_place.into_iter().take(assignment.len()) {
            let nth = seen.iter().position(|&other| other == group).unwrap_or_else(|| {
                seen.push(group);
                seen.len() - 1
            });
            key = key << 8 | (nth as u64) << 4 | stage;
        }
        if let Some(known) = self.few.get(&(operation, key)) {
            return *known;
        }
        let found = self.operation(operation, assignment).ok().map(|time| time.known());
        self.few.insert((operation, key), found);
        found
    }

    /// The groups of an operation, as GPUs.
    fn members(&self, operation: usize, assignment: &[usize]) -> Vec<Vec<GpuPlace>> {
        let ordered = self.traffic.operations[operation].motion == Motion::Chain;
        let groups = self.groups[operation].iter();
        groups
            .map(|group| {
                let mut members: Vec<GpuPlace> =
                    group.iter().map(|&rank| self.places[assignment[rank]]).collect();
                if !ordered {
                    members.sort_unstable();
                }
                members
            })
            .collect()
    }

    /// Loads of each group of an operation.
    pub(crate) fn loads(
        &mut self,
        operation: usize,
        assignment: &[usize],
    ) -> Result<Vec<GroupLoads>, GroupError> {
        let motion = self.traffic.operations[operation].motion;
        let mut all = Vec::new();
        for members in self.members(operation, assignment) {
            let key = (motion, members);
            let loads = match self.known.get(&key) {
                Some(loads) => loads.clone(),
                None => {
                    let made = self.loader.group(motion, &key.1)?;
                    if self.known.len() < MOST_KNOWN {
                        self.known.insert(key, made.clone());
                    }
                    made
                }
            };
            all.push(loads);
        }
        Ok(all)
    }

    /// One operation of all groups at once.
    pub(crate) fn operation(
        &mut self,
        operation: usize,
        assignment: &[usize],
    ) -> Result<OperationTime, GroupError> {
        let of = self.traffic.operations[operation];
        let groups = self.loads(operation, assignment)?;
        let fleet = self.fleet();
        // Picoseconds that a link is busy for a GiB of every group's data. Rounded up, so that no sum is too small by more than a part in 1e9.
        let mut busy: BTreeMap<HostLink, u128> = BTreeMap::new();
        for (link, load) in groups.iter().flat_map(|group| &group.loads) {
            let kbps = u128::from(capacity_kbps(fleet, *link)).max(1);
            let numerator =
                u128::try_from(load.numerator()).unwrap_or(0) * u128::from(GIB) * 1_000_000_000;
            let denominator = u128::try_from(load.denominator()).unwrap_or(1) * kbps;
            *busy.entry(*link).or_default() += numerator.div_ceil(denominator);
        }
        let worst = busy.iter().max_by_key(|(link, ps)| (**ps, core::cmp::Reverse(**link)));
        let bottleneck = worst.map(|(link, _)| *link);
        let longest = worst.map_or(0, |(_, ps)| *ps);
        let hops = |of: fn(&GroupLoads) -> u64| groups.iter().map(of).max().unwrap_or(0);
        let shape = GroupShape {
            inside: hops(|group| group.hops_inside),
            between: hops(|group| group.hops_between),
            hosts: hops(|group| group.hosts),
            members: hops(|group| group.members),
            busy_ps_per_gib: u64::try_from(longest).unwrap_or(u64::MAX),
        };
        let (ps, latency_ps) = shape.time(&self.machine, of);
        let kbps = (longest > 0)
            .then(|| Fraction::new(i128::from(GIB) * 1_000_000_000, i128::try_from(longest).ok()?))
            .flatten();
        let outside = groups.iter().filter(|group| group.tier > Tier::GpuLinks).count() as u64;
        Ok(OperationTime { ps, latency_ps, bottleneck, kbps, outside })
    }

    /// A step of operations that take so long each.
    pub(crate) fn step_of(&self, times: &[Known]) -> StepTime {
        let Traffic { microbatches, accumulation, compute_ps, .. } = *self.traffic;
        let passes = microbatches.saturating_mul(accumulation);
        let stages = self.job.pp as u64;
        let in_layers = |axis: Axis| matches!(axis, Axis::Tp | Axis::Cp | Axis::Ep);
        let mut per_microbatch: u64 = 0;
        let mut communication: u64 = 0;
        let mut tp_outside = 0;
        let mut exposed = Vec::with_capacity(times.len());
        for (operation, &(ps, outside)) in self.traffic.operations.iter().zip(times) {
            let all = ps.saturating_mul(operation.times);
            communication = communication.saturating_add(all);
            if operation.axis == Axis::Tp {
                tp_outside += outside;
            }
            if in_layers(operation.axis) {
                per_microbatch = per_microbatch.saturating_add(all / passes);
            }
            let hidden = match (operation.axis, compute_ps) {
                // While a microbatch is computed another one's activations travel, but for the first through the pipeline, which
                // each stage waits for.
                (Axis::Pp, Some(compute)) => {
                    let steady = passes.saturating_sub(accumulation.saturating_mul(stages - 1));
                    ps.saturating_mul(2).min(compute).saturating_mul(steady)
                }
                // Gradients travel while the last microbatch goes backward: two thirds of its computing.
                (Axis::Dp | Axis::ExpertDp, Some(compute)) => compute / 3 * 2,
                _ => 0,
            };
            exposed.push(all.saturating_sub(hidden));
        }
        let bubbles = accumulation.saturating_mul(stages - 1);
        let work = compute_ps.map(|compute| compute.saturating_add(per_microbatch));
        let bubble_ps = work.map(|work| work.saturating_mul(bubbles));
        let exposed_ps = exposed.iter().fold(0_u64, |all, ps| all.saturating_add(*ps));
        let step_ps = compute_ps.zip(bubble_ps).map(|(compute, bubble)| {
            compute.saturating_mul(passes).saturating_add(bubble).saturating_add(exposed_ps)
        });
        StepTime {
            tp_outside,
            exposed_ps,
            communication_ps: communication,
            exposed_by_operation_ps: exposed,
            bubble: Fraction::of(stages - 1, microbatches),
            bubble_ps,
            step_ps,
        }
    }
}

/// What the cost model has to know of the fleet. A job is as old as its oldest GPU.
fn machine(fleet: &Fleet) -> Machine {
    let hosts = || fleet.classes.iter().flat_map(|class| class.topology.hosts());
    let joined =
        |class: &crate::fleet::HostClass| {
            class.topology.graph().edge_weights().any(|link| {
                matches!(link.kind, LinkKind::NvLink | LinkKind::Xgmi | LinkKind::Abstract)
            })
        };
    Machine {
        ranks: 2,
        hosts: 1,
        gpu_links: fleet.classes.iter().all(joined),
        compute_capability: hosts()
            .flat_map(|h| &h.gpus)
            .filter_map(|g| g.compute_capability)
            .min(),
        amd_cpu: hosts()
            .flat_map(|host| &host.numa_nodes)
            .any(|node| node.cpu.vendor.as_deref() == Some("AuthenticAMD")),
    }
}

/// The longest way of the groups of an axis.
struct GroupShape {
    inside: u64,
    between: u64,
    hosts: u64,
    members: u64,
    busy_ps_per_gib: u64,
}

impl GroupShape {
    /// Time of one operation and the part of it that does not grow with size: the fastest of ring and tree under any protocol.
    fn time(&self, machine: &Machine, operation: Operation) -> (u64, u64) {
        let machine = Machine { ranks: self.members, hosts: self.hosts, ..*machine };
        let collective = match operation.motion {
            Motion::AllReduce => Collective::AllReduce,
            Motion::AllGather => Collective::AllGather,
            Motion::AllToAll => Collective::AllToAll,
            Motion::Chain => Collective::SendRecv,
        };
        if self.busy_ps_per_gib == 0 {
            return (0, 0);
        }
        // GB/s of the group's data.
        let algbw_gbps = Fraction::of(GIB * 1_000, self.busy_ps_per_gib);
        // The way up and the way down are waited for one after the other.
        let passes = if operation.motion == Motion::AllReduce { 2 } else { 1 };
        let shape = |algorithm, inter_hops: u64| Shape {
            algorithm,
            algbw_gbps,
            intra_hops: passes * self.inside,
            inter_hops: passes * inter_hops,
            prefixes: [(1, Fraction::ONE)].into(),
        };
        let shapes = match operation.motion {
            Motion::AllReduce => {
                let levels = u64::from((self.between + 1).next_power_of_two().trailing_zeros());
                [shape(Algorithm::Ring, self.between), shape(Algorithm::Tree, levels)].into()
            }
            Motion::AllGather => Vec::from([shape(Algorithm::Ring, self.between)]),
            Motion::AllToAll | Motion::Chain => [shape(Algorithm::Direct, self.between)].into(),
        };
        let protocols =
            [topology::Protocol::Simple, topology::Protocol::Ll128, topology::Protocol::Ll];
        let time = |shape: &Shape, protocol, bytes| {
            cost::predict_ps(&machine, collective, shape, protocol, Fraction::ONE, bytes)
        };
        shapes
            .iter()
            .flat_map(|shape| protocols.map(|protocol| (shape, protocol)))
            .filter_map(|(shape, protocol)| {
                Some((time(shape, protocol, operation.bytes)?, time(shape, protocol, 0)?))
            })
            .min()
            .unwrap_or((u64::MAX, 0))
    }
}
