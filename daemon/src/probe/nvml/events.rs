//! One event that only the driver knows, waited for in a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

use super::{Library, NotOpened};

/// Exit code of a child where no driver tells of events.
pub(crate) const NO_EVENTS: i32 = 3;

/// Errors of applications, by NVIDIA's catalogue of Xids: engine exception, MMU fault, reset channel verification, preemptive
/// cleanup. They say nothing of the machine, and some jobs raise them by the hundred.
const OF_APPLICATIONS: [u64; 4] = [13, 31, 43, 45];

/// Longest wait at once, of those NVML takes: 49 days.
const FOR_EVER_MS: u32 = u32::MAX;

/// What a child's first line begins with: it lists the GPUs that answer.
pub(super) const ROLL: &str = "roll ";

/// What the driver told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuEvent {
    /// An error of a GPU, by its number.
    Xid(u64),
    /// Partitions changed, or the kind of event is not told.
    Other,
    /// Not all GPUs answer that did, or others do: something happened while nobody listened.
    Missed,
}

impl GpuEvent {
    /// Whether facts may have changed.
    fn concerns_the_machine(self) -> bool {
        !matches!(self, Self::Xid(number) if OF_APPLICATIONS.contains(&number))
    }
}

/// Waits for an event that concerns the machine, and prints it.
pub(super) fn serve(libraries: &[PathBuf]) -> ExitCode {
    let none = || ExitCode::from(u8::try_from(NO_EVENTS).unwrap_or(1));
    let library = match Library::open(libraries, &mut |_| {}) {
        Ok(library) => library,
        Err(NotOpened::Unavailable { .. }) => return none(),
        Err(NotOpened::Failed { .. }) => return ExitCode::FAILURE,
    };
    match library.nvml().map(wait) {
        Some(Ok(event)) => match serde_json::to_string(&event) {
            Ok(line) => {
                use std::io::Write as _;
                let _ = writeln!(std::io::stdout().lock(), "{line}");
                ExitCode::SUCCESS
            }
            Err(_) => ExitCode::FAILURE,
        },
        Some(Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_))) | None => none(),
        Some(Err(_)) => ExitCode::FAILURE,
    }
}

fn wait(nvml: &Nvml) -> Result<GpuEvent, NvmlError> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::MIG_CONFIG_CHANGE;
    let mut set = nvml.create_event_set()?;
    let mut registered = 0;
    for index in 0..nvml.device_count()? {
        // One that is denied or lost has no events; the probe says so.
        let Ok(device) = nvml.device_by_index(index) else { continue };
        let kinds = device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
        if !kinds.is_empty() {
            set = device.register_events(kinds, set).map_err(|error| error.error)?;
            registered += 1;
        }
    }
    if registered == 0 {
        return Err(NvmlError::NotSupported);
    }
    // Only now: what is lost from here on tells an event.
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout().lock(), "{ROLL}{}", roll(nvml)?);
    loop {
        let event = match set.wait(FOR_EVER_MS) {
            Err(NvmlError::Timeout) => continue,
            Err(error) => return Err(error),
            Ok(data) => match data.event_data {
                Some(XidError::Value(number)) => GpuEvent::Xid(number),
                Some(XidError::Unknown) | None => GpuEvent::Other,
            },
        };
        if event.concerns_the_machine() {
            return Ok(event);
        }
    }
}

/// Each GPU by its UUID, or the error it answers with.
fn roll(nvml: &Nvml) -> Result<String, NvmlError> {
    let answer = |index| match nvml.device_by_index(index).and_then(|device| device.uuid()) {
        Ok(uuid) => uuid,
        Err(error) => error.to_string(),
    };
    let answers: Vec<String> = (0..nvml.device_count()?).map(answer).collect();
    // Messages of errors may have lines.
    Ok(answers.join(", ").split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_applications_do_not_concern_the_machine() {
        for (event, expect) in [
            (GpuEvent::Xid(79), true),
            (GpuEvent::Xid(74), true),
            (GpuEvent::Xid(31), false),
            (GpuEvent::Other, true),
        ] {
            assert_eq!(event.concerns_the_machine(), expect, "{event:?}");
        }
    }
}
