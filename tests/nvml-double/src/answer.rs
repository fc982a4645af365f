//! What NVML answers, as plain values. No pointers here.
#![expect(non_upper_case_globals, reason = "patterns name NVML's constants")]

use std::collections::BTreeMap;

use machines::scenario::{
    C2cLink, Code, Device, Level, NvLink, NvLinkError, P2p, Pair, RemoteKind, Scenario,
};
use nvml_wrapper_sys::bindings::{field_id, *};
use topology::BusId;

/// A bus id in NVML's own spelling, with the function always 0, as its header's format string has it.
pub(crate) fn bus_id(id: BusId) -> String {
    format!("{:08X}:{:02X}:{:02X}.0", id.domain(), id.bus(), id.device())
}

/// The older spelling, with 16 bits of domain.
pub(crate) fn bus_id_legacy(id: BusId) -> String {
    format!("{:04X}:{:02X}:{:02X}.0", id.domain() & 0xffff, id.bus(), id.device())
}

/// A link of a device. Beyond what the library's header knows is an invalid argument; beyond what the
/// device has is whatever this driver answers.
pub(crate) fn nvlink<'a>(
    scenario: &Scenario,
    device: &'a Device,
    link: u32,
) -> Result<&'a NvLink, Code> {
    if link >= scenario.max_links {
        return Err(Code::INVALID_ARGUMENT);
    }
    at(&device.nvlinks, link).ok_or(scenario.absent_link)
}

fn at<T>(list: &[T], index: u32) -> Option<&T> {
    usize::try_from(index).ok().and_then(|index| list.get(index))
}

/// How many there are. No device has four billion links.
fn count<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// A capability of a link. NVML answers it for every link number its header knows, whether or not the device
/// has that link; only the state call tells.
pub(crate) fn capability(
    scenario: &Scenario,
    device: &Device,
    link: u32,
    which: u32,
) -> Result<u32, Code> {
    if link >= scenario.max_links {
        return Err(Code::INVALID_ARGUMENT);
    }
    if device.nvlinks.is_empty() {
        return Err(Code::NOT_SUPPORTED);
    }
    let present = at(&device.nvlinks, link);
    let to_cpu = present
        .and_then(|link| link.remote.as_ref())
        .is_some_and(|remote| remote.kind == RemoteKind::Npu);
    match which {
        nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED
        | nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS => {
            Ok(u32::from(present.is_some() && !to_cpu))
        }
        nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ACCESS
        | nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ATOMICS => Ok(u32::from(to_cpu)),
        nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SLI_BRIDGE => Ok(0),
        nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID => Ok(u32::from(present.is_some())),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// An error counter of a link.
pub(crate) fn error_counter(link: &NvLink, which: u32) -> Result<u64, Code> {
    let kind = match which {
        nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY => NvLinkError::Replay,
        nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY => NvLinkError::Recovery,
        nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT => NvLinkError::CrcFlit,
        nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA => NvLinkError::CrcData,
        nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_ECC_DATA => NvLinkError::EccData,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    Ok(errors_of(link, kind))
}

fn errors_of(link: &NvLink, kind: NvLinkError) -> u64 {
    link.errors.get(&kind).copied().unwrap_or(0)
}

/// NVML's number for the other end's kind.
pub(crate) const fn remote_kind(kind: RemoteKind) -> u32 {
    match kind {
        RemoteKind::Gpu => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
        RemoteKind::Npu => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU,
        RemoteKind::Switch => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        RemoteKind::Unknown => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN,
    }
}

/// NVML's number for an architecture, by compute capability.
pub(crate) const fn architecture(device: &Device) -> u32 {
    match device.compute_capability {
        (3, _) => NVML_DEVICE_ARCH_KEPLER,
        (5, _) => NVML_DEVICE_ARCH_MAXWELL,
        (6, _) => NVML_DEVICE_ARCH_PASCAL,
        (7, 5) => NVML_DEVICE_ARCH_TURING,
        (7, _) => NVML_DEVICE_ARCH_VOLTA,
        (8, 9) => NVML_DEVICE_ARCH_ADA,
        (8, _) => NVML_DEVICE_ARCH_AMPERE,
        (9, _) => NVML_DEVICE_ARCH_HOPPER,
        (10 | 12, _) => NVML_DEVICE_ARCH_BLACKWELL,
        _ => NVML_DEVICE_ARCH_UNKNOWN,
    }
}

/// What the scenario says of two devices, in either order.
fn pair(scenario: &Scenario, a: u32, b: u32) -> Option<&Pair> {
    scenario.pairs.iter().find(|pair| (pair.a, pair.b) == (a, b) || (pair.b, pair.a) == (a, b))
}

/// Where the paths of two devices meet.
pub(crate) fn common_ancestor(scenario: &Scenario, a: u32, b: u32) -> u32 {
    let level = if a == b {
        Level::Internal
    } else {
        pair(scenario, a, b).map_or(Level::System, |pair| pair.level)
    };
    level.code()
}

/// Peer access of one device to another.
pub(crate) fn p2p_status(scenario: &Scenario, a: u32, b: u32, which: u32) -> Result<u32, Code> {
    if a == b {
        return Err(Code::INVALID_ARGUMENT);
    }
    let pair = pair(scenario, a, b);
    let status = match which {
        nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ => pair.map(|pair| pair.read),
        nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE => pair.map(|pair| pair.write),
        nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK => pair.map(|pair| pair.nvlink),
        nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS => pair.map(|pair| pair.atomics),
        nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_PCI => pair.map(|pair| pair.pci),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    Ok(match status.unwrap_or(P2p::NotSupported) {
        P2p::Ok => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
        P2p::ChipsetNotSupported => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
        P2p::GpuNotSupported => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_GPU_NOT_SUPPORTED,
        P2p::TopologyNotSupported => {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED
        }
        P2p::DisabledByRegkey => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_DISABLED_BY_REGKEY,
        P2p::NotSupported => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED,
        P2p::Unknown => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN,
    })
}

/// A field's value with its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Int(u32),
    LongLong(u64),
}

/// One field of `nvmlDeviceGetFieldValues`; the scope is a link number where the field is of a link. Fields that
/// say nothing of topology are not supported here.
pub(crate) fn field(
    scenario: &Scenario,
    device: &Device,
    id: u32,
    scope: u32,
) -> Result<Value, Code> {
    let links = &device.nvlinks;
    let link = || nvlink(scenario, device, scope);
    let speed = |link: &NvLink| if link.active { link.mbytes_per_second } else { 0 };
    let c2c = || at::<C2cLink>(&device.c2c_links, scope).ok_or(Code::INVALID_ARGUMENT);
    Ok(match id {
        field_id::NVML_FI_DEV_NVLINK_LINK_COUNT => Value::Int(count(links)),
        field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => {
            let active = links.iter().find(|link| link.active);
            Value::Int(active.map(speed).ok_or(Code::NOT_SUPPORTED)?)
        }
        field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L0..=field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L5 => {
            let number = id - field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L0;
            Value::Int(nvlink(scenario, device, number).map(speed)?)
        }
        field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L6
            ..=field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L11 => {
            let number = 6 + id - field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L6;
            Value::Int(nvlink(scenario, device, number).map(speed)?)
        }
        field_id::NVML_FI_DEV_NVLINK_GET_SPEED => Value::Int(link().map(speed)?),
        field_id::NVML_FI_DEV_NVLINK_GET_STATE => Value::Int(u32::from(link()?.active)),
        field_id::NVML_FI_DEV_NVLINK_GET_VERSION => Value::Int(link()?.version),
        field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID => {
            let remote = link()?.remote.as_ref().and_then(|remote| remote.link);
            Value::Int(remote.ok_or(Code::NOT_SUPPORTED)?)
        }
        field_id::NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT => {
            let to_switch = |link: &&NvLink| {
                link.active
                    && link.remote.as_ref().is_some_and(|end| end.kind == RemoteKind::Switch)
            };
            let connected = links.iter().filter(to_switch).count();
            Value::Int(u32::try_from(connected).unwrap_or(u32::MAX))
        }
        field_id::NVML_FI_DEV_C2C_LINK_COUNT if device.compute_capability.0 >= 9 => {
            Value::Int(count(&device.c2c_links))
        }
        field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS => Value::Int(u32::from(c2c()?.active)),
        field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW => Value::Int(c2c()?.mbytes_per_second),
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => {
            Value::LongLong(errors_of(link()?, NvLinkError::Replay))
        }
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => {
            Value::LongLong(errors_of(link()?, NvLinkError::Recovery))
        }
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => {
            Value::LongLong(errors_of(link()?, NvLinkError::CrcFlit))
        }
        // Hopper and later count errors under the scoped fields above alone (NVML's change log, release 525).
        _ if device.compute_capability.0 < 9 && !links.is_empty() => {
            let (kind, number) = counter_field(id).ok_or(Code::NOT_SUPPORTED)?;
            match number {
                Some(number) => Value::LongLong(errors_of(nvlink(scenario, device, number)?, kind)),
                None => Value::LongLong(links.iter().map(|link| errors_of(link, kind)).sum()),
            }
        }
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

/// The counter fields that have one number for each link up to 11, in two runs, and one for the total.
fn counter_field(id: u32) -> Option<(NvLinkError, Option<u32>)> {
    use field_id::*;
    /// Kind, first field of links 0 to 5, total, first field of links 6 to 11.
    const COUNTERS: [(NvLinkError, u32, u32, u32); 4] = [
        (
            NvLinkError::CrcFlit,
            NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0,
            NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6,
        ),
        (
            NvLinkError::CrcData,
            NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0,
            NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6,
        ),
        (
            NvLinkError::Replay,
            NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0,
            NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6,
        ),
        (
            NvLinkError::Recovery,
            NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0,
            NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6,
        ),
    ];
    COUNTERS.iter().find_map(|&(kind, low, total, high)| match id {
        _ if id == total => Some((kind, None)),
        _ if (low..low + 6).contains(&id) => Some((kind, Some(id - low))),
        _ if (high..high + 6).contains(&id) => Some((kind, Some(6 + id - high))),
        _ => None,
    })
}

/// Sets the bits of the numbers in an array of machine words; numbers beyond its end are left out, as NVML does.
pub(crate) fn set_bits(words: &mut [u64], numbers: impl Iterator<Item = u32>) {
    words.fill(0);
    let mut masks = BTreeMap::<usize, u64>::new();
    for number in numbers {
        if let Ok(word) = usize::try_from(number / 64) {
            *masks.entry(word).or_default() |= 1 << (number % 64);
        }
    }
    for (word, mask) in masks {
        if let Some(slot) = words.get_mut(word) {
            *slot = mask;
        }
    }
}
