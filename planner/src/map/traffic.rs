//! What a training step sends along each axis: given, or derived from the sizes of a transformer.
//!
//! With b samples of s tokens in a microbatch, hidden size h, l layers, V words, t, c, p and e ranks of tp, cp, pp and ep, and elements of
//! q bytes:
//!
//! | axis | operation | bytes | times |
//! |---|---|---|---|
//! | tp | all-reduce | `b s/c h q` | 4 a layer and microbatch: 2 forward, 2 backward |
//! | cp | all-gather | `2 b s h/t q` (keys and values) | 3 a layer and microbatch: forward, again backward, and their gradients |
//! | ep | all-to-all | `b s/(c t) h k q`, for k experts a token | 4 a layer and microbatch: there and back, forward and backward |
//! | pp | to the next | `b s/(c t) h q` | 2 a microbatch: activations, gradients |
//! | dp | all-reduce | gradients of the rank's parameters | 1 a step |
//!
//! tp and pp: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv 2104.04473), sections
//! 3.2 and 4.1, with each of t ranks sending its part of what goes to the next stage. Parameters: its equation 2, `12 l h^2 (1 + 13/(12 h))` for layers and
//! `(V + s) h` for embeddings, which the first stage has. Arithmetic: its equation 3 without recomputation, `72 b s l h^2 (1 + s/(6 h) + V/(12 l h))`
//! a microbatch. cp: ring attention (Liu et al., arXiv 2310.01889), where keys and values go once round. ep: a token is sent to each of its
//! experts and back (GShard, arXiv 2006.16668); two thirds of a layer's `12 h^2` parameters are then those of experts.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::job::{Axis, Job};
use crate::groups::Motion;

/// A transformer and how it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    /// Hidden size.
    pub hidden: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Layers.
    pub layers: u64,
    /// Sequences in a microbatch.
    pub batch: u64,
    /// Microbatches of a pass through the pipeline.
    pub microbatches: u64,
    /// Passes whose gradients are added up before they are reduced.
    pub accumulation: u64,
    /// Bytes of an element: of activations and of gradients.
    pub element_bytes: u64,
    /// Words; 0 leaves embeddings out.
    pub vocabulary: u64,
    /// Experts of a layer; 0 is a dense model.
    pub experts: u64,
    /// Experts a token is sent to.
    pub experts_per_token: u64,
    /// What a GPU computes, 1e12 operations per second, as reached in training; `None` where unknown.
    pub tflops: Option<u64>,
}

impl Default for Model {
    /// A dense model of 7e9 parameters, as a stand-in where nothing is told.
    fn default() -> Self {
        Self {
            hidden: 4096,
            sequence: 4096,
            layers: 32,
            batch: 1,
            microbatches: 8,
            accumulation: 1,
            element_bytes: 2,
            vocabulary: 32_000,
            experts: 0,
            experts_per_token: 2,
            tflops: None,
        }
    }
}

/// One operation of each group of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Axis.
    pub axis: Axis,
    /// What its groups do.
    pub motion: Motion,
    /// Size of the data, as [`Motion`] defines it, bytes.
    pub bytes: u64,
    /// How often in a step; by microbatch for all but gradients.
    pub times: u64,
}

/// What a step sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// By axis, those with more than one rank.
    pub operations: Vec<Operation>,
    /// Microbatches in a pass through the pipeline.
    pub microbatches: u64,
    /// Passes in a step.
    pub accumulation: u64,
    /// What a rank computes for a microbatch, forward and backward, in picoseconds; `None` where unknown.
    pub compute_ps: Option<u64>,
    /// Where the figures come from, a line for each axis.
    pub sources: Vec<String>,
}

/// Bytes that were given for an axis.
pub type Given = Vec<(Axis, u64)>;

impl Traffic {
    /// What `model` sends, with what is given in its place. The job is one that [`Job::refusal`] has nothing against.
    #[must_use]
    pub fn new(job: &Job, model: &Model, given: &Given) -> Self {
        let mut traffic = Self {
            operations: Vec::new(),
            microbatches: model.microbatches.max(1),
            accumulation: model.accumulation.max(1),
            compute_ps: compute_ps(job, model),
            sources: Vec::new(),
        };
        for (axis, motion, derived, times, formula) in derived(job, model) {
            let told = given.iter().find(|(of, _)| *of == axis).map(|(_, bytes)| *bytes);
            let bytes = told.unwrap_or(derived);
            if job.groups(axis).is_empty() || bytes == 0 {
                continue;
            }
            let source = match told {
                Some(_) => "as given".into(),
                None => formula,
            };
            traffic
                .sources
                .push(format!("{}: {bytes} bytes, {times} times a step: {source}", axis.as_str()));
            traffic.operations.push(Operation { axis, motion, bytes, times });
        }
        traffic
    }
}

const fn whole(count: usize) -> u64 {
    count as u64
}

/// Axis, operation, bytes, times a step, and how they come about.
fn derived(job: &Job, model: &Model) -> Vec<(Axis, Motion, u64, u64, String)> {
    let (tp, cp, pp) = (whole(job.tp), whole(job.cp), whole(job.pp));
    let Model { hidden, sequence, batch, element_bytes, .. } = *model;
    let layers = model.layers.div_ceil(pp);
    let passes = model.microbatches.max(1).saturating_mul(model.accumulation.max(1));
    let a_layer = |times: u64| times.saturating_mul(layers).saturating_mul(passes);
    let product = |factors: &[u64]| factors.iter().copied().fold(1, u64::saturating_mul);
    let tokens = product(&[batch, sequence]) / cp;
    let activations = product(&[tokens, hidden, element_bytes]);
    let gradients = |parameters: u64| product(&[parameters, element_bytes]);
    let Parameters { shared, experts } = Parameters::of_rank(job, model);
    let keys = product(&[2, batch, sequence, hidden, element_bytes]) / tp;
    let sent =
        if model.experts == 0 { 0 } else { product(&[activations / tp, model.experts_per_token]) };
    vec![
        (
            Axis::Tp,
            Motion::AllReduce,
            activations,
            a_layer(4),
            format!(
                "b s/c h q = {batch} x {sequence}/{cp} x {hidden} x {element_bytes}, 4 a layer and microbatch (arXiv 2104.04473)"
            ),
        ),
        (
            Axis::Cp,
            Motion::AllGather,
            keys,
            a_layer(3),
            format!(
                "2 b s h/t q = 2 x {batch} x {sequence} x {hidden}/{tp} x {element_bytes}, 3 a layer and microbatch (arXiv 2310.01889)"
            ),
        ),
        (
            Axis::Ep,
            Motion::AllToAll,
            sent,
            a_layer(4),
            format!(
                "b s/(c t) h k q with k = {}, 4 a layer and microbatch (arXiv 2006.16668)",
                model.experts_per_token
            ),
        ),
        (
            Axis::Dp,
            Motion::AllReduce,
            gradients(shared),
            1,
            format!(
                "{shared} parameters of a rank x {element_bytes} (arXiv 2104.04473, equation 2)"
            ),
        ),
        (
            Axis::ExpertDp,
            Motion::AllReduce,
            gradients(experts),
            1,
            format!("{experts} parameters of a rank's experts x {element_bytes}"),
        ),
        (
            Axis::Pp,
            Motion::Chain,
            activations / tp,
            passes.saturating_mul(2),
            format!(
                "b s/(c t) h q = {batch} x {sequence}/({cp} x {tp}) x {hidden} x {element_bytes}, 2 a microbatch (arXiv 2104.04473)"
            ),
        ),
    ]
}

/// Sizes come from a command line: what no number holds is the largest there is.
fn product(factors: &[u128]) -> u128 {
    factors.iter().copied().fold(1, u128::saturating_mul)
}

/// Parameters of the rank that has most.
struct Parameters {
    shared: u64,
    experts: u64,
}

impl Parameters {
    fn of_rank(job: &Job, model: &Model) -> Self {
        let h = u128::from(model.hidden);
        let layers = u128::from(model.layers).div_ceil(job.pp as u128);
        let words = match model.vocabulary {
            0 => 0,
            vocabulary => u128::from(vocabulary) + u128::from(model.sequence),
        };
        let squares = if model.experts == 0 { 12 } else { 4 };
        let per_layer = product(&[squares, h, h]).saturating_add(product(&[13, h]));
        let of_experts = product(&[8, h, h, model.experts.into()]) / job.ep as u128;
        let split = |parameters: u128| {
            u64::try_from(parameters.div_ceil(job.tp as u128)).unwrap_or(u64::MAX)
        };
        Self {
            shared: split(product(&[layers, per_layer]).saturating_add(product(&[words, h]))),
            experts: split(product(&[layers, of_experts])),
        }
    }
}

/// Forward and backward of a microbatch on one rank.
fn compute_ps(job: &Job, model: &Model) -> Option<u64> {
    let tflops = u128::from(model.tflops.filter(|&tflops| tflops > 0)?);
    let [b, s, l, h, v] =
        [model.batch, model.sequence, model.layers, model.hidden, model.vocabulary].map(u128::from);
    // 72 b s l h^2 (1 + s / 6h + V / 12 l h), multiplied out; experts repeat the 48 of the layer's two large products.
    let more =
        if model.experts == 0 { 0 } else { u128::from(model.experts_per_token).saturating_sub(1) };
    let terms = [
        product(&[72, l, h, h]),
        product(&[48, more, l, h, h]),
        product(&[12, l, h, s]),
        product(&[6, h, v]),
    ];
    let of_token = terms.into_iter().fold(0, u128::saturating_add);
    let operations = product(&[b, s, of_token]);
    let ranks = product(&[job.tp as u128, job.cp as u128, job.pp as u128]);
    Some(u64::try_from(operations / tflops / ranks).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job { tp: 8, cp: 1, dp: 4, pp: 2, ep: 1 };

    #[track_caller]
    fn check(job: &Job, model: &Model, axis: Axis, bytes: u64, times: u64) {
        let traffic = Traffic::new(job, model, &Vec::new());
        let found = traffic.operations.iter().find(|operation| operation.axis == axis);
        assert_eq!(found.map(|o| (o.bytes, o.times)), Some((bytes, times)));
    }

    #[test]
    fn a_dense_model() {
        let model = Model::default();
        // 4096 tokens of 4096 elements of two bytes; 16 layers a stage and 8 microbatches.
        check(&JOB, &model, Axis::Tp, 4096 * 4096 * 2, 4 * 16 * 8);
        check(&JOB, &model, Axis::Pp, 4096 * 4096 * 2 / 8, 2 * 8);
        let parameters =
            (16 * (12 * 4096 * 4096 + 13 * 4096) + (32_000 + 4096) * 4096_u64).div_ceil(8);
        check(&JOB, &model, Axis::Dp, parameters * 2, 1);
        check(&JOB, &Model { accumulation: 3, ..model }, Axis::Tp, 4096 * 4096 * 2, 3 * 4 * 16 * 8);
        check(&JOB, &Model { accumulation: 3, ..model }, Axis::Dp, parameters * 2, 1);
    }

    #[test]
    fn sequences_and_experts_that_are_spread() {
        let job = Job { tp: 2, cp: 2, dp: 4, pp: 1, ep: 4 };
        let model = Model { experts: 8, vocabulary: 0, ..Model::default() };
        check(&job, &model, Axis::Tp, 2048 * 4096 * 2, 4 * 32 * 8);
        check(&job, &model, Axis::Cp, 2 * 4096 * 4096 * 2 / 2, 3 * 32 * 8);
        check(&job, &model, Axis::Ep, 2048 * 4096 * 2 / 2 * 2, 4 * 32 * 8);
        check(&job, &model, Axis::Dp, 32 * (4 * 4096 * 4096 + 13 * 4096), 1);
        check(&job, &model, Axis::ExpertDp, 32 * 8 * 4096 * 4096 * 2, 1);
    }

    #[test]
    fn what_is_given_counts() {
        let given = vec![(Axis::Tp, 1 << 20), (Axis::Pp, 0)];
        let traffic = Traffic::new(&JOB, &Model::default(), &given);
        assert_eq!(traffic.operations[0].bytes, 1 << 20);
        assert!(traffic.operations.iter().all(|operation| operation.axis != Axis::Pp));
        assert!(traffic.sources[0].contains("as given"));
    }

    #[test]
    fn sizes_that_nothing_has_are_the_largest_there_are() {
        let most = u64::MAX;
        let model = Model {
            hidden: most,
            sequence: most,
            layers: most,
            batch: most,
            microbatches: most,
            accumulation: most,
            element_bytes: most,
            vocabulary: most,
            experts: most,
            experts_per_token: most,
            tflops: Some(1),
        };
        let traffic = Traffic::new(&JOB, &model, &Vec::new());
        assert_eq!(traffic.compute_ps, Some(most));
        check(&JOB, &model, Axis::Dp, most, 1);
        check(&JOB, &Model { experts: 0, ..model }, Axis::Dp, most, 1);
    }

    /// Its table of a model of 175e9 parameters: 140 of 312 Tflop/s each.
    #[test]
    fn arithmetic_of_a_published_model() {
        let model = Model {
            hidden: 12_288,
            sequence: 2048,
            layers: 96,
            vocabulary: 51_200,
            tflops: Some(140),
            ..Model::default()
        };
        let job = Job { tp: 8, cp: 1, dp: 1, pp: 12, ep: 1 };
        let all = f64::from(u32::try_from(compute_ps(&job, &model).unwrap() / 1_000_000).unwrap())
            * 1e-6
            * 140e12
            * 96.0;
        // Six operations a parameter and token, and a few percent for attention.
        let expected = 6.0 * 175e9 * 2048.0;
        assert!((1.0..1.1).contains(&(all / expected)), "{}", all / expected);
    }
}
