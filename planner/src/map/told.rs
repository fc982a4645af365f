//! A job and a model as far as somebody told of them, made whole; what was assumed for the rest is said.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Job, MapError, Model};

/// Sizes of a job's axes; data parallelism may be what the others leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldJob {
    /// As [`Job::tp`].
    pub tp: usize,
    /// As [`Job::cp`].
    pub cp: usize,
    /// As [`Job::dp`]; `None` is what the other axes leave of the GPUs.
    pub dp: Option<usize>,
    /// As [`Job::pp`].
    pub pp: usize,
    /// As [`Job::ep`].
    pub ep: usize,
}

impl ToldJob {
    /// The job on so many GPUs.
    ///
    /// # Errors
    /// Where the sizes make no job, or one of another number of ranks: before groups are made, since those of sizes that fit no machine
    /// would fill memory first.
    pub fn on(&self, gpus: usize) -> Result<Job, MapError> {
        let Self { tp, cp, dp, pp, ep } = *self;
        let others = tp.saturating_mul(cp).saturating_mul(pp);
        let dp = match dp {
            Some(dp) => dp,
            // An axis without ranks is refused below.
            None if others == 0 => 1,
            None if gpus.is_multiple_of(others) => gpus / others,
            None => {
                return Err(MapError::Job(format!(
                    "tp * cp * pp is {others}, of which {gpus} GPUs are no multiple: give dp or other sizes"
                )));
            }
        };
        let job = Job { tp, cp, dp, pp, ep };
        if let Some(reason) = job.refusal() {
            return Err(MapError::Job(reason));
        }
        if job.ranks() != gpus {
            return Err(MapError::Ranks { ranks: job.ranks(), gpus });
        }
        Ok(job)
    }
}

/// A [`Model`] as far as it is told, field by field the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "those of Model")]
pub struct ToldModel {
    pub hidden: Option<u64>,
    pub sequence: Option<u64>,
    pub layers: Option<u64>,
    pub batch: Option<u64>,
    pub microbatches: Option<u64>,
    pub accumulation: Option<u64>,
    pub element_bytes: Option<u64>,
    pub vocabulary: Option<u64>,
    pub experts: Option<u64>,
    pub experts_per_token: Option<u64>,
    pub tflops: Option<u64>,
}

impl ToldModel {
    /// The model, [`Model::default`] where it is not told, and what was assumed so.
    #[must_use]
    pub fn whole(&self, job: &Job) -> (Model, Vec<String>) {
        let stand_in = Model::default();
        let mut assumed = Vec::new();
        let mut take = |told: Option<u64>, name: &str, default: u64| {
            told.unwrap_or_else(|| {
                assumed.push(format!("{name} {default}"));
                default
            })
        };
        let experts = if job.ep > 1 { u64::try_from(job.ep).unwrap_or(u64::MAX) } else { 0 };
        let model = Model {
            hidden: take(self.hidden, "hidden size", stand_in.hidden),
            sequence: take(self.sequence, "sequence", stand_in.sequence),
            layers: take(self.layers, "layers", stand_in.layers),
            batch: take(self.batch, "batch", stand_in.batch),
            microbatches: take(self.microbatches, "microbatches", stand_in.microbatches),
            accumulation: take(self.accumulation, "accumulation", stand_in.accumulation),
            element_bytes: take(self.element_bytes, "element bytes", stand_in.element_bytes),
            vocabulary: take(self.vocabulary, "vocabulary", stand_in.vocabulary),
            experts: take(self.experts, "experts", experts),
            experts_per_token: match job.ep {
                1 => self.experts_per_token.unwrap_or(stand_in.experts_per_token),
                _ => take(self.experts_per_token, "experts per token", stand_in.experts_per_token),
            },
            tflops: self.tflops,
        };
        let mut assumptions = Vec::new();
        if !assumed.is_empty() {
            let assumed = assumed.join(", ");
            assumptions.push(format!("of the model, nothing else being given: {assumed}"));
        }
        if self.tflops.is_none() {
            assumptions
                .push("computing time is unknown without tflops: nothing counts as hidden".into());
        }
        (model, assumptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_parallelism_is_what_is_left() {
        let told = |tp, dp, pp| ToldJob { tp, cp: 1, dp, pp, ep: 1 };
        let dp = |told: ToldJob, gpus| told.on(gpus).map(|job| job.dp).ok();
        assert_eq!(dp(told(4, None, 2), 32), Some(4));
        assert_eq!(dp(told(4, Some(4), 2), 32), Some(4));
        assert_eq!(dp(told(4, Some(7), 2), 32), None);
        assert_eq!(dp(told(3, None, 1), 32), None);
        assert_eq!(dp(told(0, None, 1), 32), None);
        assert_eq!(dp(told(usize::MAX, None, 2), 32), None);
        let error = told(3, None, 1).on(8).unwrap_err().to_string();
        assert!(error.contains("is 3, of which 8 GPUs are no multiple"), "{error}");
    }

    #[test]
    fn what_is_assumed_is_said() {
        let job = Job { tp: 1, cp: 1, dp: 8, pp: 1, ep: 4 };
        let (model, assumptions) = ToldModel::default().whole(&job);
        assert_eq!((model.hidden, model.experts), (Model::default().hidden, 4));
        assert!(assumptions[0].contains("hidden size 4096, sequence 4096"), "{assumptions:?}");
        assert!(assumptions[1].contains("computing time is unknown"));
        let told = ToldModel { hidden: Some(1024), tflops: Some(50), ..ToldModel::default() };
        let (model, assumptions) = told.whole(&job);
        assert_eq!((model.hidden, model.tflops, assumptions.len()), (1024, Some(50), 1));
        assert!(!assumptions[0].contains("hidden size"));
    }
}
