//! What the NVML double answers: the machine it plays and the faults it plays on top.
//!
//! The double reads this as JSON from the file that `TOPOD_NVML_DOUBLE_SCENARIO` names. The types live here and not
//! with the double, because a C library cannot be linked by those who write its scenarios.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use topology::CpuList;

/// Environment variable that names the scenario file.
pub const SCENARIO_VARIABLE: &str = "TOPOD_NVML_DOUBLE_SCENARIO";

/// Name of the scenario file beside a copy of the library, read where the variable is not set. A process that
/// loads two copies so plays two machines.
pub const SCENARIO_BESIDE_LIBRARY: &str = "nvml-scenario.json";

/// A driver with its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Driver release: `535.161.08`.
    pub driver_version: String,
    /// NVML release: `12.535.161.08`.
    #[serde(default = "default_nvml_version")]
    pub nvml_version: String,
    /// CUDA release the driver supports, as NVML codes it: 12020 for 12.2.
    #[serde(default = "default_cuda_version")]
    pub cuda_driver_version: i32,
    /// `NVML_NVLINK_MAX_LINKS` of this driver: link numbers from here on are invalid arguments.
    #[serde(default = "default_max_links")]
    pub max_links: u32,
    /// Answer for link numbers below `max_links` that the device does not have.
    #[serde(default = "default_absent_link")]
    pub absent_link: Code,
    /// Whether confidential computing is on; `None`: not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidential: Option<bool>,
    /// In index order.
    pub devices: Vec<Device>,
    /// What NVML says of pairs; a pair not listed meets at the system level and has no peer access.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// Delivered in this order to whoever waits on an event set that registered for them.
    #[serde(default)]
    pub events: Vec<Event>,
    /// Faults; the first that matches a call plays.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// A file to which every call appends a line: the function's name, then the device's index and the link
    /// where it has one. Tests wait on it instead of sleeping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_log: Option<PathBuf>,
}

fn default_nvml_version() -> String {
    "12.535.161.08".to_owned()
}

const fn default_cuda_version() -> i32 {
    12020
}

/// The value in the headers of CUDA 11.8 to 13.0.
const fn default_max_links() -> u32 {
    18
}

const fn default_absent_link() -> Code {
    Code::NOT_SUPPORTED
}

/// One GPU as NVML shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// `GPU-...`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// In any spelling; the double answers in NVML's own.
    pub bus_id: topology::BusId,
    /// PCI device id above vendor id: `0x1db110de`, as a number.
    pub pci_device_id: u32,
    /// Subsystem device id above subsystem vendor id.
    #[serde(default)]
    pub pci_subsystem_id: u32,
    /// Number of its device file.
    pub minor: u32,
    /// Board serial number; `None` is not supported, as on boards without an inforom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Board part number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board_part_number: Option<String>,
    /// Bytes.
    pub memory_total: u64,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// `None`: the board cannot partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// CPUs near it; `None` is not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// NUMA nodes near it; `None` is not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_nodes: Option<Vec<u32>>,
    /// The NUMA node that the GPU's own memory forms, only on coherent boards (GH200 and later); elsewhere not
    /// supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_numa_node: Option<u32>,
    /// The PCIe link.
    pub pcie: Pcie,
    /// By link number; the device has as many.
    #[serde(default)]
    pub nvlinks: Vec<NvLink>,
    /// By link number.
    #[serde(default)]
    pub c2c_links: Vec<C2cLink>,
    /// `None`: fabric calls are not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Place on the base board; `None` is not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_id: Option<u32>,
}

/// Partitioning modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// In force.
    pub current: bool,
    /// After the next reset.
    pub pending: bool,
}

/// NVML's view of a PCIe link. Generations from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Of device and system together.
    pub max_generation: u32,
    /// Of the device alone.
    pub device_max_generation: u32,
    /// Lanes.
    pub max_width: u32,
    /// As trained now; an idle GPU is at 1.
    pub current_generation: u32,
    /// As trained now.
    pub current_width: u32,
}

/// One NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// Whether it is up.
    pub active: bool,
    /// NVML's version code (`nvmlNvlinkVersion_t`): 1 is 1.0, 2 is 2.0, 3 is 2.2, 4 is 3.0, 6 is 4.0, 7 is 5.0.
    pub version: u32,
    /// Rate per direction as NVML tells it for an active link, MB/s: 25781 on V100, 25000 on A100, 26562 on H100.
    pub mbytes_per_second: u32,
    /// `None`: calls for the other end are not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// Error counters; only the ones listed are not zero.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<NvLinkError, u64>,
}

/// The other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// What it is.
    pub kind: RemoteKind,
    /// Answered as it stands where it is no bus id.
    pub bus_id: String,
    /// PCI device id above vendor id.
    #[serde(default)]
    pub pci_device_id: u32,
    /// Link number at the other end, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
}

/// `nvmlIntNvLinkDeviceType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteKind {
    /// A GPU.
    Gpu,
    /// A POWER CPU.
    Npu,
    /// An NVSwitch.
    Switch,
    /// NVML does not say.
    Unknown,
}

/// `nvmlNvLinkErrorCounter_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLinkError {
    /// Data link replays.
    Replay,
    /// Data link recoveries.
    Recovery,
    /// Flits with a wrong checksum.
    CrcFlit,
    /// Data with a wrong checksum.
    CrcData,
    /// Data with a wrong error correcting code.
    EccData,
}

/// One chip-to-chip link to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct C2cLink {
    /// Whether it is up.
    pub active: bool,
    /// Per direction.
    pub mbytes_per_second: u32,
}

/// `nvmlGpuFabricInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// Outcome of the registration, once completed.
    #[serde(default = "default_success")]
    pub status: Code,
    /// 16 bytes.
    pub cluster_uuid: [u8; 16],
    /// Clique within the cluster.
    pub clique_id: u32,
    /// Two bits a condition, from `NVML_GPU_FABRIC_HEALTH_MASK_*`.
    #[serde(default)]
    pub health_mask: u32,
    /// 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    #[serde(default)]
    pub health_summary: u8,
}

const fn default_success() -> Code {
    Code::SUCCESS
}

/// What NVML says of two devices, both ways alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Index of the one.
    pub a: u32,
    /// Index of the other.
    pub b: u32,
    /// Where their PCIe paths meet.
    pub level: Level,
    /// Peer reads.
    pub read: P2p,
    /// Peer writes.
    pub write: P2p,
    /// Over NVLink.
    pub nvlink: P2p,
    /// Atomic operations.
    pub atomics: P2p,
    /// Over PCIe.
    pub pci: P2p,
}

/// `nvmlGpuTopologyLevel_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// On one board.
    Internal,
    /// Through one PCIe switch.
    Single,
    /// Through several PCIe switches.
    Multiple,
    /// Through one host bridge.
    HostBridge,
    /// Through several host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    System,
}

impl Level {
    /// NVML's number.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Internal => 0,
            Self::Single => 10,
            Self::Multiple => 20,
            Self::HostBridge => 30,
            Self::Node => 40,
            Self::System => 50,
        }
    }
}

/// `nvmlGpuP2PStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2p {
    /// Works.
    Ok,
    /// The chipset does not support it.
    ChipsetNotSupported,
    /// The GPU does not support it.
    GpuNotSupported,
    /// The way between the root complexes does not support it.
    TopologyNotSupported,
    /// Turned off by a driver option.
    DisabledByRegkey,
    /// Not supported.
    NotSupported,
    /// Not known.
    Unknown,
}

/// Something that happened to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Its index.
    pub device: u32,
    /// One bit of `nvmlEventType*`: 8 is a critical Xid error.
    pub kind: u64,
    /// The Xid.
    #[serde(default)]
    pub data: u64,
    /// Withheld until this file exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_exists: Option<PathBuf>,
}

/// Something that goes wrong in a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The function's name; a `*` at the end stands for any rest.
    pub call: String,
    /// Only for this device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// Only for this link number or scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
    /// Only for this field of `nvmlDeviceGetFieldValues`; it then spoils that field and not the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<u32>,
    /// So many matching calls pass first.
    #[serde(default)]
    pub skip: u64,
    /// It plays so often and then no more; `None` is always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Only while this file exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub while_exists: Option<PathBuf>,
    /// What happens.
    pub action: Action,
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// The call answers this at once.
    Return(Code),
    /// The call waits until the file is gone, then answers as it would have; with no file it never returns.
    Hang {
        /// The file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_gone: Option<PathBuf>,
    },
    /// The call takes so long, then answers as it would have.
    Delay {
        /// Milliseconds.
        milliseconds: u64,
    },
    /// The process dies.
    Abort,
}

/// `nvmlReturn_t`, in JSON by name (`gpu-is-lost`) or by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($constant:ident = $number:literal, $name:literal, $text:literal;)*) => {
        impl Code {
            $(#[doc = $text]
            pub const $constant: Self = Self($number);)*

            /// Number, name in JSON and description of each.
            pub const ALL: &[(u32, &str, &str)] = &[$(($number, $name, $text)),*];
        }
    };
}

codes! {
    SUCCESS = 0, "success", "Success";
    UNINITIALIZED = 1, "uninitialized", "Uninitialized";
    INVALID_ARGUMENT = 2, "invalid-argument", "Invalid Argument";
    NOT_SUPPORTED = 3, "not-supported", "Not Supported";
    NO_PERMISSION = 4, "no-permission", "Insufficient Permissions";
    ALREADY_INITIALIZED = 5, "already-initialized", "Already Initialized";
    NOT_FOUND = 6, "not-found", "Not Found";
    INSUFFICIENT_SIZE = 7, "insufficient-size", "Insufficient Size";
    INSUFFICIENT_POWER = 8, "insufficient-power", "Insufficient External Power";
    DRIVER_NOT_LOADED = 9, "driver-not-loaded", "Driver Not Loaded";
    TIMEOUT = 10, "timeout", "Timeout";
    IRQ_ISSUE = 11, "irq-issue", "Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, "library-not-found", "NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, "function-not-found", "Function Not Found";
    CORRUPTED_INFOROM = 14, "corrupted-inforom", "Corrupted infoROM";
    GPU_IS_LOST = 15, "gpu-is-lost", "GPU is lost";
    RESET_REQUIRED = 16, "reset-required", "GPU requires restart";
    OPERATING_SYSTEM = 17, "operating-system", "The operating system has blocked the request";
    LIB_RM_VERSION_MISMATCH = 18, "lib-rm-version-mismatch", "RM has detected an NVML/RM version mismatch";
    IN_USE = 19, "in-use", "The operation cannot be performed because the GPU is in use";
    MEMORY = 20, "memory", "Insufficient Memory";
    NO_DATA = 21, "no-data", "No data";
    VGPU_ECC_NOT_SUPPORTED = 22, "vgpu-ecc-not-supported", "ECC on vGPU is not supported";
    INSUFFICIENT_RESOURCES = 23, "insufficient-resources", "Insufficient resources";
    FREQ_NOT_SUPPORTED = 24, "freq-not-supported", "Frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25, "argument-version-mismatch", "Argument version mismatch";
    DEPRECATED = 26, "deprecated", "Deprecated";
    NOT_READY = 27, "not-ready", "Not ready";
    GPU_NOT_FOUND = 28, "gpu-not-found", "GPU not found";
    INVALID_STATE = 29, "invalid-state", "Invalid state";
    RESET_TYPE_NOT_SUPPORTED = 30, "reset-type-not-supported", "Reset type not supported";
    UNKNOWN = 999, "unknown", "Unknown Error";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Self::ALL.iter().find(|(number, ..)| *number == self.0) {
            Some((_, name, _)) => serializer.serialize_str(name),
            None => serializer.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u32),
            Name(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Name(name) => Self::ALL
                .iter()
                .find(|(_, known, _)| *known == name)
                .map(|(number, ..)| Self(*number))
                .ok_or_else(|| serde::de::Error::custom(format!("'{name}' is no NVML return"))),
        }
    }
}

impl Fault {
    /// A fault of every call that matches.
    #[must_use]
    pub fn new(call: &str, action: Action) -> Self {
        Self {
            call: call.to_owned(),
            device: None,
            link: None,
            field: None,
            skip: 0,
            times: None,
            while_exists: None,
            action,
        }
    }

    /// Only for this device.
    #[must_use]
    pub fn on_device(mut self, index: u32) -> Self {
        self.device = Some(index);
        self
    }
}
