//! NCCL in the same process layout, where its library is on the host: all-reduce and all-gather, checked and timed.
//!
//! NCCL refuses two ranks on one GPU ("Duplicate GPU detected", its src/init.cc), so ranks that share a GPU have nothing to be
//! compared with. What it does there is asked and told, not assumed.

mod ffi;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use topology::Collective;
use transport::{ElementType, ReduceOp};

use self::ffi::{Group, Library, Nccl};
use crate::budget::Deadline;
use crate::ffi::{Gpu, Memory};
use crate::group::{
    self, Found, Part, Rate, Shares, Timed, Work, batches, brought, combined, sizes,
};
use crate::reference::first_difference;
use crate::report::Stage;

/// Between two looks for what rank 0 says.
const LOOK: Duration = Duration::from_millis(5);

/// How NCCL did, and how the transport did beside it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Compared {
    /// As in `2.21.5`.
    version: Option<String>,
    /// Ranks of the layout that was compared, or asked for.
    ranks: u32,
    /// What NCCL said to ranks that share a GPU.
    refused: Option<String>,
    rates: Vec<Rate>,
    /// Ours over NCCL's busbw, where both were measured.
    ratios: Vec<Ratio>,
    /// What this does not show.
    not_shown: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Ratio {
    collective: Collective,
    bytes: usize,
    ours_gb_per_s: f64,
    nccl_gb_per_s: f64,
    /// Above 1 the transport is faster.
    ratio: f64,
}

impl Compared {
    /// A line for each ratio.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.ratios.iter().map(|r| {
            format!(
                "{} of {} bytes: {:.2} of NCCL's busbw ({:.2} and {:.2} GB/s)",
                r.collective, r.bytes, r.ratio, r.ours_gb_per_s, r.nccl_gb_per_s
            )
        })
    }
}

/// The stage. `ours` are the transport's rates in the same layout.
pub(crate) fn stage(
    part: (&Part, Shares),
    devices: &[u32],
    ours: &[Rate],
    into: &mut Option<Compared>,
) -> Stage {
    let library = match Library::find() {
        Ok(library) => library,
        Err(why) => return Stage::skipped(why),
    };
    if part.1.all.is_over() {
        return Stage::stopped(vec!["it was not begun: no time".to_owned()]);
    }
    let mut compared =
        Compared { version: library.version(), ranks: count(devices), ..Compared::default() };
    let stage = compare(part, devices, ours, &mut compared);
    *into = Some(compared);
    stage.unwrap_or_else(Stage::failed)
}

fn count(devices: &[u32]) -> u32 {
    u32::try_from(devices.len()).unwrap_or(u32::MAX)
}

fn compare(
    (part, shares): (&Part, Shares),
    devices: &[u32],
    ours: &[Rate],
    compared: &mut Compared,
) -> Result<Stage, String> {
    let part = Part { work: Work::Nccl, ..part.clone() };
    let version = compared.version.clone().unwrap_or_else(|| "of unknown version".to_owned());
    let together = group::run(&part, devices, shares)?;
    let shared = devices.windows(2).all(|pair| pair[0] == pair[1]);
    if !shared || together.failures.is_empty() {
        compared.rates = together.rates.clone();
        compared.ratios = ratios(ours, &together.rates);
        let lines = compared.lines().collect::<Vec<_>>().join("; ");
        let words =
            if lines.is_empty() { "no rate was measured by both".to_owned() } else { lines };
        if shared {
            compared.not_shown.push("rates over links: all ranks share a GPU".to_owned());
        } else {
            compared.not_shown.push(
                "the transport along a plan of this machine: its rings were even, in the order of CUDA's numbers".to_owned(),
            );
        }
        return Ok(together.stage(format!("NCCL {version}, {} ranks: {words}", devices.len())));
    }
    // With one GPU: what it said to several ranks, and a single one.
    compared.refused = Some(together.failures.iter().cloned().collect::<Vec<_>>().join("; "));
    compared.not_shown.push(
        "how fast NCCL is between ranks: it refuses two on one GPU, and one rank only copies"
            .to_owned(),
    );
    let said = compared.refused.clone().unwrap_or_default();
    if shares.all.is_over() {
        return Ok(Stage::stopped(vec![said, "one rank alone was not tried: no time".to_owned()]));
    }
    let alone = group::run(&part, &devices[..1], shares)?;
    compared.rates = alone.rates.clone();
    if !alone.wrong.is_empty() || !alone.failures.is_empty() {
        return Ok(alone.stage(String::new()));
    }
    Ok(Stage::unshown(vec![
        format!("NCCL {version} refuses {} ranks on one GPU: {said}", devices.len()),
        "one rank alone gives right results; there is no rate between ranks to compare with"
            .to_owned(),
    ]))
}

/// Of what both measured.
fn ratios(ours: &[Rate], nccl: &[Rate]) -> Vec<Ratio> {
    let same =
        |a: &&Rate, b: &Rate| (a.collective, a.bytes, a.ranks) == (b.collective, b.bytes, b.ranks);
    let pair = |theirs: &Rate| {
        let own = ours.iter().find(|own| same(own, theirs))?;
        (theirs.busbw_gb_per_s > 0.0).then(|| Ratio {
            collective: own.collective,
            bytes: own.bytes,
            ours_gb_per_s: own.busbw_gb_per_s,
            nccl_gb_per_s: theirs.busbw_gb_per_s,
            ratio: own.busbw_gb_per_s / theirs.busbw_gb_per_s,
        })
    };
    nccl.iter().filter_map(pair).collect()
}

/// Does a rank's part.
pub(crate) fn as_rank(part: &Part) -> Found {
    let mut found = Found::default();
    if let Err(why) = join(part, &mut found) {
        found.failure = Some(why);
    }
    found
}

fn join(part: &Part, found: &mut Found) -> Result<(), String> {
    let (start, deadline) = (Instant::now(), Deadline::after(part.all));
    let gpu = Gpu::open(part.device)?;
    let library = Library::find()?;
    found.library = library.version();
    let id = part.folder.join("nccl-id");
    let id = if part.rank == 0 {
        let made = library.unique_id()?;
        // Whole, or not there at all.
        let draft = id.with_extension("draft");
        let told = std::fs::write(&draft, made).and_then(|()| std::fs::rename(&draft, &id));
        told.map_err(|error| format!("{}: {error}", id.display()))?;
        made
    } else {
        awaited(&id, deadline)?
    };
    let group = Group::join(&library, id, part.rank, part.ranks)?;
    let mut side = Side { gpu: &gpu, nccl: Nccl::new(&library, &group), part, found };
    side.check()?;
    side.measure(start)
}

/// What rank 0 wrote.
fn awaited(file: &PathBuf, deadline: Deadline) -> Result<[u8; ffi::ID_BYTES], String> {
    while !Path::new(file).exists() {
        if deadline.is_over() {
            return Err("rank 0 gave no identifier in time".to_owned());
        }
        std::thread::sleep(LOOK);
    }
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    bytes.try_into().map_err(|_| "the identifier is cut off".to_owned())
}

struct Side<'a> {
    gpu: &'a Gpu,
    nccl: Nccl<'a>,
    part: &'a Part,
    found: &'a mut Found,
}

impl Side<'_> {
    /// What goes in, and what must come out, of `count` elements in all; ranks divide them.
    fn data(&self, collective: Collective, count: usize) -> (Vec<u8>, Vec<u8>) {
        let (element, op) = (ElementType::F32, ReduceOp::Sum);
        let (rank, ranks) = (self.part.rank as usize, self.part.ranks as usize);
        if collective == Collective::AllReduce {
            return (brought(element, op, rank, 0, count), combined(element, op, ranks, count));
        }
        let each = count / ranks;
        let shard = |rank: usize| brought(element, op, rank, rank * each, each);
        (shard(rank), (0..ranks).flat_map(shard).collect())
    }

    fn enqueue(
        &self,
        collective: Collective,
        from: &Memory,
        to: &Memory,
        count: usize,
    ) -> Result<(), String> {
        if collective == Collective::AllReduce {
            self.nccl.all_reduce(self.gpu, from, to, count)
        } else {
            self.nccl.all_gather(self.gpu, from, to, count / self.part.ranks as usize)
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let ranks = self.part.ranks as usize;
        for collective in [Collective::AllReduce, Collective::AllGather] {
            let count = 65_537_usize.next_multiple_of(ranks);
            let (input, expected) = self.data(collective, count);
            let (from, to) = (self.gpu.allocate(input.len())?, self.gpu.allocate(expected.len())?);
            self.gpu.to_device(&from, &input)?;
            self.enqueue(collective, &from, &to, count)?;
            let mut found = vec![0; expected.len()];
            self.gpu.to_host(&mut found, &to)?;
            self.gpu.wait()?;
            self.found.checked += count as u64;
            if let Some((at, found, expected)) =
                first_difference(ElementType::F32, &found, &expected)
            {
                let wrong = format!(
                    "NCCL's {collective}: element {at} is {found:02x?}, not {expected:02x?}"
                );
                self.found.wrong.push(wrong);
            }
        }
        Ok(())
    }

    /// Operations whose start the ranks agree on by the one before.
    fn measure(&mut self, start: Instant) -> Result<(), String> {
        let quick = self.part.quick;
        for bytes in sizes(quick).iter().copied() {
            let count = (bytes / 4).next_multiple_of(self.part.ranks as usize);
            for collective in [Collective::AllReduce, Collective::AllGather] {
                if !self.goes_on(start)? {
                    let missed = format!(
                        "NCCL's {collective} of {bytes} bytes and what follows were not timed: no time"
                    );
                    self.found.missed.push(missed);
                    return Ok(());
                }
                let (input, result) = self.data(collective, count);
                let (from, to) =
                    (self.gpu.allocate(input.len())?, self.gpu.allocate(result.len())?);
                self.gpu.to_device(&from, &input)?;
                self.gpu.wait()?;
                let (batches, repeats) = batches(bytes, quick);
                let mut each = Vec::new();
                for batch in 0..=batches {
                    // No rank comes out of it before all have come to it.
                    self.goes_on(start)?;
                    let took = self.gpu.timed_by_host(|| {
                        (0..repeats).try_for_each(|_| self.enqueue(collective, &from, &to, count))
                    })?;
                    if batch > 0 {
                        each.push(took.as_secs_f64() * 1e6 / f64::from(repeats));
                    }
                }
                let bytes = count * 4;
                self.found.timed.push(Timed { collective, bytes, microseconds: each });
            }
        }
        Ok(())
    }

    /// Whether all ranks have time for more: the sum of those that have none.
    fn goes_on(&self, start: Instant) -> Result<bool, String> {
        let late = f32::from(u8::from(start.elapsed() >= self.part.all)).to_le_bytes();
        let memory = self.gpu.allocate(4)?;
        self.gpu.to_device(&memory, &late)?;
        self.nccl.all_reduce(self.gpu, &memory, &memory, 1)?;
        let mut sum = [0; 4];
        self.gpu.to_host(&mut sum, &memory)?;
        self.gpu.wait()?;
        Ok(f32::from_le_bytes(sum) == 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_where_both_were_measured() {
        let rate = |bytes, busbw| Rate {
            collective: Collective::AllReduce,
            ranks: 2,
            bytes,
            median_microseconds: 1.0,
            algbw_gb_per_s: busbw,
            busbw_gb_per_s: busbw,
        };
        let found =
            ratios(&[rate(8, 3.0), rate(64, 1.0)], &[rate(8, 2.0), rate(16, 5.0), rate(64, 0.0)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!((found[0].ratio - 1.5).abs() < 1e-9 && found[0].bytes == 8);
        let alone = Rate { ranks: 1, ..rate(8, 2.0) };
        assert!(ratios(&[rate(8, 3.0)], &[alone]).is_empty(), "of as many ranks");
    }
}
