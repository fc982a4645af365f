//! Which GPU a device number of a process means: `CUDA_VISIBLE_DEVICES` and its like.
//!
//! What the CUDA programming guide says of the variable: numbers or UUIDs, UUIDs by any beginning that only one GPU has, MIG
//! instances as `MIG-<GPU's UUID>/<instance>/<instance>`; the first entry that means nothing ends the list, so `-1` does. What it
//! leaves open is as PyTorch reads it (`torch/cuda/__init__.py`, `_parse_visible_devices`): the first entry decides which kind all
//! are, a number is what stands before other characters, and an entry that comes twice leaves no device at all. Numbers count GPUs
//! in the order of `CUDA_DEVICE_ORDER`, not NVML's.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::snapshot::{Gpu, Snapshot};
use crate::{BusId, GpuIndex};

/// The devices of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// By device number; `None` where a MIG instance does not tell which GPU it is of.
    pub gpus: Vec<Option<GpuIndex>>,
    /// What was taken from where, and what is not as one may think; for people.
    pub notes: Vec<String>,
}

/// The devices that a process with these variables has on this host.
#[must_use]
pub fn visible(snapshot: &Snapshot, variable: &dyn Fn(&str) -> Option<String>) -> Visible {
    let mut notes = Vec::new();
    let amd = snapshot.gpus.iter().any(|gpu| gpu.gfx.is_some());
    let mut devices: Vec<Option<&Gpu>> = ordered(snapshot, variable, &mut notes);
    // HIP numbers what the runtime below it shows, and takes CUDA's variable for its own.
    let names: &[&[&str]] = match amd {
        true => &[&["ROCR_VISIBLE_DEVICES"], &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]],
        false => &[&["CUDA_VISIBLE_DEVICES"]],
    };
    for names in names {
        let set = names.iter().find_map(|name| Some((*name, variable(name)?)));
        if let Some((name, list)) = set {
            let (chosen, note) = choose(&list, &devices);
            if let Some(note) = note {
                notes.push(format!("{name}='{list}': {note}"));
            }
            devices = chosen;
        }
    }
    Visible { gpus: devices.into_iter().map(|gpu| gpu.map(|gpu| gpu.index)).collect(), notes }
}

/// All GPUs in the order that numbers count them in.
fn ordered<'a>(
    snapshot: &'a Snapshot,
    variable: &dyn Fn(&str) -> Option<String>,
    notes: &mut Vec<String>,
) -> Vec<Option<&'a Gpu>> {
    let mut gpus: Vec<&Gpu> = snapshot.gpus.iter().collect();
    let address = |gpu: &&Gpu| -> (Option<BusId>, GpuIndex) { (gpu.bus_id, gpu.index) };
    if gpus.iter().all(|gpu| gpu.bus_id.is_some()) {
        gpus.sort_by_key(address);
    }
    let by_address = variable("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    let alike = gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    if !by_address && !alike {
        notes.push(
            "the GPUs are of several models, and without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest come first: numbers are taken as in order of address"
                .to_owned(),
        );
    }
    gpus.into_iter().map(Some).collect()
}

/// The devices of a list, and what is to be said of it.
fn choose<'a>(list: &str, devices: &[Option<&'a Gpu>]) -> (Vec<Option<&'a Gpu>>, Option<String>) {
    let mut chosen: Vec<(String, Option<&Gpu>)> = Vec::new();
    let by_name = list.trim_start().starts_with(|c: char| c.is_ascii_alphabetic());
    for entry in list.split(',').map(str::trim) {
        let found = match by_name {
            true => named(entry, devices),
            false => {
                numbered(entry).and_then(|number| Some((number.to_string(), *devices.get(number)?)))
            }
        };
        let Some((key, gpu)) = found else {
            let left = list.split(',').count() - chosen.len();
            let note = match (entry, left) {
                // The way to end a list, or to have no device.
                ("-1" | "", 1) => None,
                _ => Some(format!("'{entry}' is no device here, and ends the list")),
            };
            return (chosen.into_iter().map(|(_, gpu)| gpu).collect(), note);
        };
        if chosen.iter().any(|(own, _)| *own == key) {
            return (Vec::new(), Some(format!("'{entry}' comes twice, and no device is left")));
        }
        chosen.push((key, gpu));
    }
    (chosen.into_iter().map(|(_, gpu)| gpu).collect(), None)
}

/// The number at the beginning, as strtoul takes it; `None` where there is none, or a negative one.
fn numbered(entry: &str) -> Option<usize> {
    let text = entry.strip_prefix('+').unwrap_or(entry);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

/// What makes an entry the same as another, and its GPU.
fn named<'a>(entry: &str, devices: &[Option<&'a Gpu>]) -> Option<(String, Option<&'a Gpu>)> {
    let unique = |beginning: &str| -> Option<&'a Gpu> {
        let starts = |gpu: &&&'a Gpu| {
            gpu.uuid.as_deref().is_some_and(|uuid| starts_with_ignoring_case(uuid, beginning))
        };
        let mut found = devices.iter().flatten().filter(starts);
        match (found.next(), found.next()) {
            (Some(gpu), None) => Some(gpu),
            _ => None,
        }
    };
    if let Some(instance) = entry.strip_prefix("MIG-") {
        // The older form names the GPU; the newer is a UUID of the instance alone.
        let gpu = instance.split_once('/').and_then(|(gpu, _)| unique(gpu));
        return Some((entry.to_ascii_lowercase(), gpu));
    }
    let gpu = unique(entry).filter(|_| entry.len() > "GPU-".len())?;
    Some((gpu.index.to_string(), Some(gpu)))
}

fn starts_with_ignoring_case(text: &str, beginning: &str) -> bool {
    text.get(..beginning.len()).is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Source;
    use proptest::prelude::*;

    /// Eight GPUs whose NVML indices run against their addresses in the second half.
    fn host() -> Snapshot {
        let mut host = Snapshot::new(Source::Live);
        for (index, bus) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8), (5, 7), (6, 6), (7, 5)] {
            let uuid = format!("GPU-{bus:08x}-0000-4000-8000-00000000000{bus}");
            host.gpus.push(Gpu {
                bus_id: BusId::new(0, bus, 0, 0),
                uuid: Some(uuid),
                name: Some("H100".into()),
                ..Gpu::new(GpuIndex(index))
            });
        }
        host
    }

    fn indices(host: &Snapshot, variables: &[(&str, &str)]) -> (Vec<i64>, Vec<String>) {
        let variable = |name: &str| {
            variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        };
        let found = visible(host, &variable);
        let number = |gpu: &Option<GpuIndex>| gpu.map_or(-1, |gpu| i64::from(gpu.0));
        (found.gpus.iter().map(number).collect(), found.notes)
    }

    #[track_caller]
    fn check(list: &str, expect: &[i64], note: &str) {
        let (gpus, notes) = indices(&host(), &[("CUDA_VISIBLE_DEVICES", list)]);
        assert_eq!(gpus, expect, "{list}: {notes:?}");
        let said = if note.is_empty() { notes.is_empty() } else { notes.join(" ").contains(note) };
        assert!(said, "{list}: {notes:?}");
    }

    /// An NVML index taken for a CUDA ordinal binds to the wrong socket (sglang#24766, TensorRT-LLM#12985).
    #[test]
    fn field_case_048_devices_by_identity_and_not_by_number() {
        // Numbers count addresses, of which the second half runs against NVML's.
        check("3,6,5,4,0,7,1,2", &[3, 5, 6, 7, 0, 4, 1, 2], "");
        check("0,1", &[0, 1], "");
        check(" 2 ,1x", &[2, 1], "");
        check("0,2,-1,1", &[0, 2], "'-1'");
        check("-1", &[], "");
        check("", &[], "");
        check("0,9,1", &[0], "'9'");
        check("1,1", &[], "twice");
        check("GPU-00000008,GPU-00000001", &[4, 0], "");
        check("gpu-00000008-0000", &[4], "");
        // What eight GPUs begin with tells none of them.
        check("GPU-0000000", &[], "'GPU-0000000'");
        check("GPU-", &[], "'GPU-'");
        check("GPU-00000008,GPU-00000008-0000", &[], "twice");
        check("MIG-GPU-00000005-0000/1/0,MIG-GPU-00000005-0000/2/0", &[7, 7], "");
        check("MIG-11111111-2222-3333-4444-555555555555", &[-1], "");
        // Kinds do not mix.
        check("GPU-00000008,0", &[4], "'0'");
        check("0,GPU-00000008", &[0], "'GPU-00000008'");
        let (all, _) = indices(&host(), &[]);
        assert_eq!(all, [0, 1, 2, 3, 7, 6, 5, 4]);
    }

    #[test]
    fn several_models_have_no_order_of_their_own() {
        let mut host = host();
        host.gpus[3].name = Some("T4".into());
        assert_eq!(indices(&host, &[]).1.len(), 1);
        assert!(indices(&host, &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]).1.is_empty());
    }

    #[test]
    fn two_runtimes_of_amd_are_two_choices() {
        let mut host = host();
        host.gpus.iter_mut().for_each(|gpu| gpu.gfx = Some("gfx942".into()));
        let both = [("ROCR_VISIBLE_DEVICES", "4,5,6,7"), ("HIP_VISIBLE_DEVICES", "1,0")];
        assert_eq!(indices(&host, &both).0, [6, 7]);
        let other = [("CUDA_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "3")];
        assert_eq!(indices(&host, &other).0, [3]);
    }

    proptest! {
        #[test]
        fn never_panics_and_never_invents(list in "[GPUMIGgpu0-9,/ +\u{e9}-]{0,40}") {
            let (gpus, _) = indices(&host(), &[("CUDA_VISIBLE_DEVICES", &list)]);
            prop_assert!(gpus.iter().all(|gpu| (-1..8).contains(gpu)));
        }
    }
}
