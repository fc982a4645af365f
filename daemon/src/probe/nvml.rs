//! What only the NVIDIA driver knows: identity of GPUs, NVLinks, MIG, affinity.
//!
//! The library is found at run time, and its absence is ordinary. Errors keep three cases apart, as the first word of
//! the fault: a device that is *denied* (by a cgroup, or by permissions), *lost* (off the bus, or waiting for a
//! reset), or *absent*.

use std::path::PathBuf;

use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_AFFINITY_SCOPE_NODE, NVML_NVLINK_MAX_LINKS, field_id,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS as P2P_ATOMICS,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK as P2P_NVLINK,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_PCI as P2P_PCI,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ as P2P_READ,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE as P2P_WRITE,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED as STATUS_CHIPSET,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_DISABLED_BY_REGKEY as STATUS_REGKEY,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_GPU_NOT_SUPPORTED as STATUS_GPU,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED as STATUS_TOPOLOGY,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED as STATUS_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK as STATUS_OK,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU as TYPE_IBM_NPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as TYPE_SWITCH,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0 as VERSION_1_0,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0 as VERSION_2_0,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_2 as VERSION_2_2,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0 as VERSION_3_0,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_1 as VERSION_3_1,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0 as VERSION_4_0,
    nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0 as VERSION_5_0,
};
use serde::{Deserialize, Serialize};
use topology::snapshot::{
    C2c, FabricHealth, FabricState, FaultKind, GpuFabric, LinkErrors, PeerAccess, PeerStatus,
};
use topology::{Bandwidth, BusId, CpuList, GpuIndex};

use super::NvmlChoice;
use super::apart::Report;
use super::trouble::Trouble;

pub mod child;
mod events;
mod ffi;

pub(crate) use events::{GpuEvent, NO_EVENTS};

/// This probe's name in faults.
pub(super) const PROBE: &str = "nvml";

/// The driver's library: the name every installation has, then the one that comes with development files.
const DEFAULT_LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Most links a GPU may claim. Rubin has 36 and the binding's own constant is behind at 18, so the device is asked;
/// this only keeps a nonsensical answer from being taken for a count.
const MOST_LINKS: u64 = 256;

/// Words of the CPU mask: 8,192 CPUs, the most a kernel for x86 is built for (NR_CPUS).
const CPU_WORDS: usize = 128;

/// Words of the node mask: 1,024 nodes, the most a kernel is built for (NODES_SHIFT, 10).
const NODE_WORDS: usize = 16;

/// A piece of this probe's facts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NvmlPart {
    /// There is no library, or no driver behind it.
    Unavailable {
        /// The library.
        place: String,
        /// Why.
        error: Trouble,
    },
    /// Version of the driver.
    Driver(String),
    /// Whether the GPUs are in confidential computing mode.
    Confidential(bool),
    /// A GPU.
    Gpu(Box<NvmlGpu>),
    /// A GPU's access to the others.
    Peers(GpuIndex, Vec<PeerAccess>),
    /// The GPU of this index cannot be used; a fault says why.
    Refused(GpuIndex),
    /// Every GPU has been told.
    Complete,
}

/// A GPU as NVML tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NvmlGpu {
    pub(super) index: GpuIndex,
    pub(super) bus_id: Option<BusId>,
    pub(super) uuid: Option<String>,
    pub(super) name: Option<String>,
    pub(super) compute_capability: Option<u32>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) mig: Option<bool>,
    /// NUMA nodes whose memory is near.
    pub(super) nodes: Vec<u32>,
    pub(super) cpus: Option<CpuList>,
    /// Active links.
    pub(super) links: Vec<NvLink>,
    /// Links that are there and not active; `None` where that could not be read.
    pub(super) inactive_links: Option<u32>,
    pub(super) c2c: Option<C2c>,
    pub(super) minor: Option<u32>,
    /// The NUMA node that its own memory forms.
    pub(super) memory_node: Option<u32>,
    pub(super) fabric: Option<GpuFabric>,
    /// Of active links, those with errors.
    pub(super) link_errors: Vec<LinkErrors>,
}

/// An active NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct NvLink {
    pub(super) remote: Remote,
    pub(super) remote_bus_id: Option<BusId>,
    pub(super) rate: Option<Bandwidth>,
}

/// Kind of device at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Remote {
    Gpu,
    Switch,
    Cpu,
    Unknown,
}

/// The libraries to try, in order; none where NVML is off.
pub(super) fn libraries(choice: &NvmlChoice) -> Option<Vec<PathBuf>> {
    match choice {
        NvmlChoice::Off => None,
        NvmlChoice::Default => Some(DEFAULT_LIBRARIES.map(PathBuf::from).into()),
        NvmlChoice::Library(path) => Some(vec![path.clone()]),
    }
}

/// Tells every GPU that NVML lists.
pub(super) fn read(libraries: &[PathBuf], report: &Report<NvmlPart>) {
    let library = match Library::open(libraries, &mut |call| report.calling(call)) {
        Ok(library) => library,
        Err(NotOpened::Unavailable { place, error }) => {
            return report.part(NvmlPart::Unavailable { place, error });
        }
        Err(NotOpened::Failed { place, error }) => return report.fault(place, error),
    };
    let Some(nvml) = library.nvml() else { return };
    if let Some(driver) = ask(report, "nvmlSystemGetDriverVersion()", || nvml.sys_driver_version())
    {
        report.part(NvmlPart::Driver(driver));
    }
    if let Some(count) = ask(report, "nvmlDeviceGetCount_v2()", || nvml.device_count()) {
        let mut usable = Vec::new();
        for index in 0..count {
            match gpu(nvml, index, report) {
                Some(gpu) => {
                    usable.push(index);
                    report.part(NvmlPart::Gpu(Box::new(gpu)));
                }
                None => report.part(NvmlPart::Refused(GpuIndex(index))),
            }
        }
        report.part(NvmlPart::Complete);
        // Last, because there are many of them: should one hang, the GPUs themselves are told.
        confidential(nvml, report);
        for index in &usable {
            if let Some(peers) = peers(nvml, *index, &usable, report) {
                report.part(NvmlPart::Peers(GpuIndex(*index), peers));
            }
        }
    }
    report.calling("nvmlShutdown()");
    if !ffi::can_shut_down(nvml) {
        report.fault(
            "nvmlShutdown()",
            Trouble::new(FaultKind::Absent, "the library has no such function"),
        );
    }
}

/// An open library, shut down when dropped where it has a function for that.
struct Library(Option<Nvml>);

impl Library {
    /// Opens the first of some libraries that is there; `calling` is told of each call before it is made.
    fn open(libraries: &[PathBuf], calling: &mut dyn FnMut(String)) -> Result<Self, NotOpened> {
        let mut unavailable = None;
        for library in libraries {
            let place = library.display().to_string();
            calling(format!("nvmlInit_v2() of {place}"));
            let error = match Nvml::builder().lib_path(library.as_os_str()).init() {
                Ok(nvml) => return Ok(Self(Some(nvml))),
                Err(error) => error,
            };
            match error {
                // The first name is the one whose absence tells.
                NvmlError::LibloadingError(_) => {
                    let trouble = Trouble::new(FaultKind::Absent, chain(&error));
                    unavailable.get_or_insert((place, trouble));
                }
                NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => {
                    unavailable = Some((place, Trouble::new(FaultKind::Absent, error)));
                    break;
                }
                error => {
                    let place = format!("nvmlInit_v2() of {place}");
                    return Err(NotOpened::Failed { place, error: Trouble::from(&error) });
                }
            }
        }
        let none = || ("NVML".into(), Trouble::new(FaultKind::Absent, "no library is named"));
        let (place, error) = unavailable.unwrap_or_else(none);
        Err(NotOpened::Unavailable { place, error })
    }

    fn nvml(&self) -> Option<&Nvml> {
        self.0.as_ref()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(nvml) = self.0.take()
            && !ffi::can_shut_down(&nvml)
        {
            std::mem::forget(nvml);
        }
    }
}

/// Why there is no library to ask.
enum NotOpened {
    /// There is none, or no driver behind it, which is ordinary.
    Unavailable { place: String, error: Trouble },
    /// It is there and does not start.
    Failed { place: String, error: Trouble },
}

/// An error with its causes: the loader's own words are in the last.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl From<&NvmlError> for Trouble {
    fn from(error: &NvmlError) -> Self {
        let kind = match error {
            // Under cgroups NVML says one or the other, by version.
            NvmlError::NoPermission | NvmlError::OperatingSystem => FaultKind::Denied,
            NvmlError::GpuLost | NvmlError::ResetRequired => FaultKind::Lost,
            NvmlError::NotFound | NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) => {
                FaultKind::Absent
            }
            NvmlError::Timeout => FaultKind::TimedOut,
            _ => FaultKind::Unreadable,
        };
        Self::new(kind, error)
    }
}

/// Makes a call; an error becomes a fault.
fn ask<T>(
    report: &Report<NvmlPart>,
    call: &str,
    make: impl FnOnce() -> Result<T, NvmlError>,
) -> Option<T> {
    report.calling(call);
    make().map_err(|error| report.fault(call, Trouble::from(&error))).ok()
}

/// Calls about one device. Once one of them finds it lost, the rest are not made.
struct Asker<'a, 'nvml> {
    device: &'a Device<'nvml>,
    index: u32,
    report: &'a Report<NvmlPart>,
    lost: bool,
}

impl<'nvml> Asker<'_, 'nvml> {
    fn place(&self, call: &str) -> String {
        format!("{call} of GPU {}", self.index)
    }

    /// Makes a call and gives its error back; `None` where the device is lost already.
    fn try_ask<T>(
        &mut self,
        call: &str,
        make: impl FnOnce(&Device<'nvml>) -> Result<T, NvmlError>,
    ) -> Option<Result<T, NvmlError>> {
        if self.lost {
            return None;
        }
        self.report.calling(self.place(call));
        let answer = make(self.device);
        if let Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) = &answer {
            self.lost = true;
            self.report.fault(self.place(call), Trouble::from(error));
            return None;
        }
        Some(answer)
    }

    /// Makes a call; an error is a fault.
    fn ask<T>(
        &mut self,
        call: &str,
        make: impl FnOnce(&Device<'nvml>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        match self.try_ask(call, make)? {
            Ok(value) => Some(value),
            Err(error) => {
                self.report.fault(self.place(call), Trouble::from(&error));
                None
            }
        }
    }

    /// Makes a call about something not every GPU or driver has; not to have it is no fault.
    fn ask_feature<T>(
        &mut self,
        call: &str,
        make: impl FnOnce(&Device<'nvml>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        match self.try_ask(call, make)? {
            Ok(value) => Some(value),
            Err(error) if lacks(&error) => None,
            Err(error) => {
                self.report.fault(self.place(call), Trouble::from(&error));
                None
            }
        }
    }
}

/// Whether an error says that the device, or the driver as a whole, has no such thing.
fn lacks(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::InvalidArg
            | NvmlError::NotFound
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
    )
}

fn confidential(nvml: &Nvml, report: &Report<NvmlPart>) {
    const CALL: &str = "nvmlSystemGetConfComputeState()";
    report.calling(CALL);
    match ffi::confidential_computing(nvml) {
        Ok(on) => report.part(NvmlPart::Confidential(on)),
        Err(error) if lacks(&error) => {}
        Err(error) => report.fault(CALL, Trouble::from(&error)),
    }
}

/// A GPU's access to each of the others; `None` where it was lost meanwhile.
fn peers(
    nvml: &Nvml,
    index: u32,
    usable: &[u32],
    report: &Report<NvmlPart>,
) -> Option<Vec<PeerAccess>> {
    let handle = |index: u32| {
        ask(report, &format!("nvmlDeviceGetHandleByIndex_v2({index})"), || {
            nvml.device_by_index(index)
        })
    };
    let device = handle(index)?;
    let mut asker = Asker { device: &device, index, report, lost: false };
    let mut all = Vec::new();
    for peer in usable.iter().copied().filter(|peer| *peer != index) {
        let other = handle(peer)?;
        let mut status = |which: u32, name: &str| {
            let call = format!("nvmlDeviceGetP2PStatus({peer}, {name})");
            let code = asker.ask_feature(&call, |device| ffi::p2p_status(device, &other, which))?;
            Some(peer_status(code))
        };
        all.push(PeerAccess {
            peer: GpuIndex(peer),
            read: status(P2P_READ, "read"),
            write: status(P2P_WRITE, "write"),
            nvlink: status(P2P_NVLINK, "NVLink"),
            atomics: status(P2P_ATOMICS, "atomics"),
            pcie: status(P2P_PCI, "PCIe"),
        });
    }
    let told = |access: &PeerAccess| access.read.is_some() || access.write.is_some();
    (!asker.lost).then(|| all.into_iter().filter(told).collect())
}

/// `nvmlGpuP2PStatus_t`.
fn peer_status(code: u32) -> PeerStatus {
    match code {
        STATUS_OK => PeerStatus::Ok,
        STATUS_CHIPSET => PeerStatus::ChipsetNotSupported,
        STATUS_GPU => PeerStatus::GpuNotSupported,
        STATUS_TOPOLOGY => PeerStatus::TopologyNotSupported,
        STATUS_REGKEY => PeerStatus::DisabledByRegkey,
        STATUS_NOT_SUPPORTED => PeerStatus::NotSupported,
        _ => PeerStatus::Unknown,
    }
}

/// Registration with the NVLink fabric, as fully as the driver tells.
fn fabric(asker: &mut Asker<'_, '_>) -> Option<GpuFabric> {
    let call = "nvmlDeviceGetGpuFabricInfoV()";
    let info = asker.ask_feature(call, ffi::fabric_info)?;
    let state = match info.state {
        1 => FabricState::NotStarted,
        2 => FabricState::InProgress,
        3 => FabricState::Completed,
        _ => FabricState::NotSupported,
    };
    let zero = info.cluster == [0; 16];
    Some(GpuFabric {
        state,
        status: (state == FabricState::Completed).then_some(info.status),
        cluster: (!zero).then(|| uuid(info.cluster)),
        clique: Some(info.clique),
        health_mask: info.health_mask,
        health: info.health.and_then(|summary| match summary {
            1 => Some(FabricHealth::Healthy),
            2 => Some(FabricHealth::Unhealthy),
            3 => Some(FabricHealth::LimitedCapacity),
            _ => None,
        }),
    })
}

/// In the usual form of 8-4-4-4-12 digits.
fn uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let ends = [8, 12, 16, 20, 32];
    let starts = [0, 8, 12, 16, 20];
    starts.into_iter().zip(ends).map(|(from, to)| &digits[from..to]).collect::<Vec<_>>().join("-")
}

/// `None` where the GPU cannot be used.
fn gpu(nvml: &Nvml, index: u32, report: &Report<NvmlPart>) -> Option<NvmlGpu> {
    let device = ask(report, &format!("nvmlDeviceGetHandleByIndex_v2({index})"), || {
        nvml.device_by_index(index)
    })?;
    let mut asker = Asker { device: &device, index, report, lost: false };
    let bus_id = asker.ask("nvmlDeviceGetPciInfo_v3()", Device::pci_info).and_then(|info| {
        let bus_id = info.bus_id.parse();
        let place = asker.place("nvmlDeviceGetPciInfo_v3()");
        bus_id.map_err(|error| report.fault(place, Trouble::new(FaultKind::Unreadable, error))).ok()
    });
    let capability =
        asker.ask("nvmlDeviceGetCudaComputeCapability()", Device::cuda_compute_capability);
    let (links, inactive_links) = links(&mut asker);
    let link_errors = links
        .iter()
        .map(|(number, _)| link_errors(&mut asker, *number))
        .filter(|errors| errors.replay + errors.recovery + errors.crc > 0)
        .collect();
    let links = links.into_iter().map(|(_, link)| link).collect();
    let gpu = NvmlGpu {
        index: GpuIndex(index),
        bus_id,
        uuid: asker.ask("nvmlDeviceGetUUID()", Device::uuid),
        name: asker.ask("nvmlDeviceGetName()", Device::name),
        compute_capability: capability.and_then(|capability| {
            let (major, minor) = (u32::try_from(capability.major), u32::try_from(capability.minor));
            Some(major.ok()? * 10 + minor.ok()?)
        }),
        memory_bytes: memory(&mut asker),
        // 1 is "enabled" (NVML_DEVICE_MIG_ENABLE). A GPU without MIG has it off.
        mig: asker
            .ask_feature("nvmlDeviceGetMigMode()", |device| Ok(device.mig_mode()?.current == 1)),
        nodes: nodes(&mut asker),
        cpus: cpus(&mut asker),
        c2c: c2c(&mut asker),
        links,
        inactive_links,
        minor: asker.ask_feature("nvmlDeviceGetMinorNumber()", Device::minor_number),
        memory_node: asker.ask_feature("nvmlDeviceGetNumaNodeId()", ffi::memory_node),
        fabric: fabric(&mut asker),
        link_errors,
    };
    (!asker.lost).then_some(gpu)
}

fn memory(asker: &mut Asker<'_, '_>) -> Option<u64> {
    let second = asker.try_ask("nvmlDeviceGetMemoryInfo_v2()", Device::memory_info)?;
    match second {
        Ok(memory) => Some(memory.total),
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {
            asker.ask("nvmlDeviceGetMemoryInfo()", ffi::total_memory_v1)
        }
        // A GPU that shares the CPU's memory has none of its own.
        Err(NvmlError::NotSupported) => None,
        Err(error) => {
            let place = asker.place("nvmlDeviceGetMemoryInfo_v2()");
            asker.report.fault(place, Trouble::from(&error));
            None
        }
    }
}

fn nodes(asker: &mut Asker<'_, '_>) -> Vec<u32> {
    let call = "nvmlDeviceGetMemoryAffinity()";
    let mask = asker
        .ask_feature(call, |device| device.memory_affinity(NODE_WORDS, NVML_AFFINITY_SCOPE_NODE));
    bits(&mask.unwrap_or_default())
}

fn cpus(asker: &mut Asker<'_, '_>) -> Option<CpuList> {
    let call = "nvmlDeviceGetCpuAffinityWithinScope()";
    let mask = asker.ask_feature(call, |device| {
        device.cpu_affinity_within_scope(CPU_WORDS, NVML_AFFINITY_SCOPE_NODE)
    });
    let cpus = bits(&mask?);
    (!cpus.is_empty()).then(|| CpuList::from_cpus(cpus))
}

/// Numbers of the bits that are set, lowest word first.
fn bits(words: &[std::ffi::c_ulong]) -> Vec<u32> {
    let width = std::ffi::c_ulong::BITS;
    let set = |(base, word): (u32, &std::ffi::c_ulong)| {
        let word = *word;
        (0..width).filter(move |bit| word >> bit & 1 == 1).map(move |bit| base + bit)
    };
    (0..).step_by(width as usize).zip(words).flat_map(set).collect()
}

/// Error counters of a link; 0 where the driver has none. Since Hopper they are fields, before that a call.
fn link_errors(asker: &mut Asker<'_, '_>, link: u32) -> LinkErrors {
    let mut count = |field: u32, counter: ErrorCounter, name: &str| {
        let call = format!("nvmlDeviceGetFieldValues({name}, {link})");
        let new = asker.ask_feature(&call, |device| ffi::field(device, field, link));
        new.or_else(|| {
            let call = format!("nvmlDeviceGetNvLinkErrorCounter({link}, {name})");
            asker.ask_feature(&call, |device| device.link_wrapper_for(link).error_counter(counter))
        })
        .unwrap_or(0)
    };
    use field_id::{
        NVML_FI_DEV_NVLINK_ERROR_DL_CRC as CRC, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY as RECOVERY,
        NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY as REPLAY,
    };
    LinkErrors {
        link,
        replay: count(REPLAY, ErrorCounter::DlReplay, "NVLINK_ERROR_DL_REPLAY"),
        recovery: count(RECOVERY, ErrorCounter::DlRecovery, "NVLINK_ERROR_DL_RECOVERY"),
        crc: count(CRC, ErrorCounter::DlCrcFlit, "NVLINK_ERROR_DL_CRC"),
    }
}

/// The active links with their numbers, and how many are there and not active.
fn links(asker: &mut Asker<'_, '_>) -> (Vec<(u32, NvLink)>, Option<u32>) {
    let count =
        |device: &Device<'_>| ffi::field(device, field_id::NVML_FI_DEV_NVLINK_LINK_COUNT, 0);
    let told = asker.ask_feature("nvmlDeviceGetFieldValues(NVLINK_LINK_COUNT)", count);
    let told =
        told.filter(|count| *count <= MOST_LINKS).and_then(|count| u32::try_from(count).ok());
    // Drivers that do not tell have no device with more links than the binding knows.
    let count = told.unwrap_or(0).max(NVML_NVLINK_MAX_LINKS);
    let mut active = Vec::new();
    let mut inactive = 0;
    let mut unread = false;
    for link in 0..count {
        let call = format!("nvmlDeviceGetNvLinkState({link})");
        match asker.try_ask(&call, |device| device.link_wrapper_for(link).is_active()) {
            None => return (active, None),
            Some(Ok(true)) => active.push((link, active_link(asker, link))),
            Some(Ok(false)) => inactive += 1,
            // Without the call, or with a card that has no NVLink, no link is there.
            Some(Err(error)) if lacks(&error) => {}
            Some(Err(error)) => {
                asker.report.fault(asker.place(&call), Trouble::from(&error));
                unread = true;
            }
        }
    }
    (active, (!unread).then_some(inactive))
}

fn active_link(asker: &mut Asker<'_, '_>, link: u32) -> NvLink {
    let call = format!("nvmlDeviceGetNvLinkRemoteDeviceType({link})");
    let remote = asker.ask_feature(&call, |device| ffi::remote_device_type(device, link)).map_or(
        Remote::Unknown,
        |kind| match kind {
            TYPE_GPU => Remote::Gpu,
            TYPE_SWITCH => Remote::Switch,
            TYPE_IBM_NPU => Remote::Cpu,
            _ => Remote::Unknown,
        },
    );
    let call = format!("nvmlDeviceGetNvLinkRemotePciInfo_v2({link})");
    let remote_pci = asker.ask(&call, |device| device.link_wrapper_for(link).remote_pci_info());
    // For a switch in another chassis it says `ffffffff:ffff:ff`, or nothing but zeros.
    let remote_bus_id = remote_pci.and_then(|pci| pci.bus_id.parse::<BusId>().ok());
    NvLink {
        remote,
        remote_bus_id: remote_bus_id.filter(|id| !is_zero(*id)),
        rate: rate(asker, link),
    }
}

fn is_zero(id: BusId) -> bool {
    BusId::new(0, 0, 0, 0) == Some(id)
}

/// Per direction: the speed in MB/s where the driver tells, else by the version of the link.
fn rate(asker: &mut Asker<'_, '_>, link: u32) -> Option<Bandwidth> {
    let call = format!("nvmlDeviceGetFieldValues(NVLINK_GET_SPEED, {link})");
    let speed =
        |device: &Device<'_>| ffi::field(device, field_id::NVML_FI_DEV_NVLINK_GET_SPEED, link);
    // 2 TB/s on one link is no speed.
    let speed = asker.ask_feature(&call, speed).filter(|mbps| (1..2_000_000).contains(mbps));
    speed.map(Bandwidth::from_mbps).or_else(|| {
        let call = format!("nvmlDeviceGetNvLinkVersion({link})");
        let version = asker.ask_feature(&call, |device| device.link_wrapper_for(link).version())?;
        nominal_mbps(version).map(Bandwidth::from_mbps)
    })
}

/// Nominal MB/s of one link and direction, by NVML's number of the version. Figures of NVIDIA's pages on NVLink:
/// 20 GB/s on P100, 25 from V100 to H100, 50 on B200.
fn nominal_mbps(version: u32) -> Option<u64> {
    match version {
        VERSION_1_0 => Some(20_000),
        VERSION_2_0 | VERSION_2_2 | VERSION_3_0 | VERSION_3_1 | VERSION_4_0 => Some(25_000),
        VERSION_5_0 => Some(50_000),
        _ => None,
    }
}

/// Active links to the CPU, all at the rate of the slowest.
fn c2c(asker: &mut Asker<'_, '_>) -> Option<C2c> {
    let read = |asker: &mut Asker<'_, '_>, name: &str, field: u32, scope: u32| {
        let call = format!("nvmlDeviceGetFieldValues({name}, {scope})");
        asker.ask_feature(&call, |device| ffi::field(device, field, scope))
    };
    let count = read(asker, "C2C_LINK_COUNT", field_id::NVML_FI_DEV_C2C_LINK_COUNT, 0)?;
    let mut rates = Vec::new();
    for link in 0..u32::try_from(count.min(MOST_LINKS)).ok()? {
        let status =
            read(asker, "C2C_LINK_GET_STATUS", field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS, link);
        if status == Some(1) {
            // In MB/s.
            rates.extend(read(
                asker,
                "C2C_LINK_GET_MAX_BW",
                field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW,
                link,
            ));
        }
    }
    let rate = rates.iter().copied().min().filter(|mbps| (1..2_000_000).contains(mbps))?;
    Some(C2c { count: u32::try_from(rates.len()).ok()?, rate: Bandwidth::from_mbps(rate) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(bits(&[0b101, 0, 1]), [0, 2, 2 * std::ffi::c_ulong::BITS]);
        assert_eq!(bits(&[]), [0; 0]);
    }

    #[test]
    fn errors_tell_denied_lost_and_absent_apart() {
        let check = |error: NvmlError, expect: FaultKind| {
            assert_eq!(Trouble::from(&error).kind, expect);
        };
        check(NvmlError::NoPermission, FaultKind::Denied);
        check(NvmlError::OperatingSystem, FaultKind::Denied);
        check(NvmlError::GpuLost, FaultKind::Lost);
        check(NvmlError::NotFound, FaultKind::Absent);
        check(NvmlError::Unknown, FaultKind::Unreadable);
    }
}
