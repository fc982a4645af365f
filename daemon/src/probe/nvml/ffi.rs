//! The NVML calls that nvml-wrapper gets wrong or does not have.
#![expect(unsafe_code, reason = "calls into the driver's C library")]

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlConfComputeSystemState_t, nvmlDevice_t, nvmlFieldValue_t, nvmlGpuFabricInfo_t,
    nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlMemory_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE as DOUBLE,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT as SIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG as SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG as UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT as UNSIGNED_SHORT,
};

/// Whether the library has the call that the wrapper makes on drop, and panics without.
pub(super) fn can_shut_down(nvml: &Nvml) -> bool {
    nvml.lib().nvmlShutdown.is_ok()
}

/// Kind of the device at the other end of a link, as NVML numbers it. The wrapper's own call gives the library a
/// temporary to write to, and always says Unknown.
pub(super) fn remote_device_type(device: &Device<'_>, link: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = 0;
    // SAFETY: the handle is valid as long as `device` borrows the library, and `kind` outlives the call.
    nvml_try(unsafe { call(handle(device), link, &raw mut kind) })?;
    Ok(kind)
}

/// A field's value in a scope, such as a link. The wrapper has no scopes, and its fields by link end at link 11.
pub(super) fn field(device: &Device<'_>, field: u32, scope: u32) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut value = nvmlFieldValue_t {
        fieldId: field,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 0,
        value: nvmlValue_t { ullVal: 0 },
    };
    // SAFETY: the handle is valid as long as `device` borrows the library; the count is that of the one value
    // pointed to, which outlives the call.
    nvml_try(unsafe { call(handle(device), 1, &raw mut value) })?;
    nvml_try(value.nvmlReturn)?;
    unsigned(&value).ok_or(NvmlError::UnexpectedVariant(value.valueType))
}

/// The value as an unsigned integer; `None` where it is none.
fn unsigned(field: &nvmlFieldValue_t) -> Option<u64> {
    let value = field.value;
    // Every member is an integer without invalid values, and all eight bytes are initialised.
    match field.valueType {
        // SAFETY: see above.
        UNSIGNED_INT => Some(unsafe { value.uiVal }.into()),
        // SAFETY: see above.
        UNSIGNED_LONG => Some(unsafe { value.ulVal }),
        // SAFETY: see above.
        UNSIGNED_LONG_LONG => Some(unsafe { value.ullVal }),
        // SAFETY: see above.
        UNSIGNED_SHORT => Some(unsafe { value.usVal }.into()),
        // SAFETY: see above.
        SIGNED_INT => u64::try_from(unsafe { value.siVal }).ok(),
        // SAFETY: see above.
        SIGNED_LONG_LONG => u64::try_from(unsafe { value.sllVal }).ok(),
        // No field read here is a fraction.
        DOUBLE => None,
        _ => None,
    }
}

/// Installed memory by the first version of the call; the wrapper knows only the second, which drivers before 510
/// do not have.
pub(super) fn total_memory_v1(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is valid as long as `device` borrows the library, and `memory` outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut memory) })?;
    Ok(memory.total)
}

/// What the driver tells of a GPU's fabric, in NVML's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FabricInfo {
    pub(super) state: u8,
    pub(super) status: u32,
    pub(super) cluster: [u8; 16],
    pub(super) clique: u32,
    /// From the second form of the answer on.
    pub(super) health_mask: Option<u32>,
    /// From the third on.
    pub(super) health: Option<u8>,
}

/// A structure's version as NVML's macro NVML_STRUCT_VERSION makes it: its size, and the number in the upper byte.
fn version_of<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

/// Registration with the fabric, in the newest of three forms that the library has.
pub(super) fn fabric_info(device: &Device<'_>) -> Result<FabricInfo, NvmlError> {
    // What an older library answers to a form it does not know is up to it; only these are about the device.
    let about_the_device = |error: &NvmlError| {
        matches!(
            error,
            NvmlError::NotSupported
                | NvmlError::NoPermission
                | NvmlError::GpuLost
                | NvmlError::ResetRequired
        )
    };
    let mut answer = fabric_info_v(device, 3);
    for older in [2, 1] {
        match answer {
            Err(error) if !about_the_device(&error) => {
                answer = match older {
                    2 => fabric_info_v(device, older),
                    _ => fabric_info_v1(device),
                };
            }
            answer => return answer,
        }
    }
    answer
}

/// The form of a number, 2 or 3.
fn fabric_info_v(device: &Device<'_>, number: u32) -> Result<FabricInfo, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    let version = match number {
        3 => version_of::<nvmlGpuFabricInfo_v3_t>(number),
        _ => version_of::<nvmlGpuFabricInfo_v2_t>(number),
    };
    let mut info = nvmlGpuFabricInfo_v3_t {
        version,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the handle is valid as long as `device` borrows the library, and `info` outlives the call. The second form
    // is the third without its last member; the version says which is meant, and the library writes no further than that.
    nvml_try(unsafe { call(handle(device), &raw mut info) })?;
    Ok(FabricInfo {
        state: info.state,
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health_mask: Some(info.healthMask),
        health: (number >= 3).then_some(info.healthSummary),
    })
}

fn fabric_info_v1(device: &Device<'_>) -> Result<FabricInfo, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    let mut info = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: the handle is valid as long as `device` borrows the library, and `info` outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut info) })?;
    Ok(FabricInfo {
        state: info.state,
        status: info.status,
        cluster: info.clusterUuid,
        clique: info.cliqueId,
        health_mask: None,
        health: None,
    })
}

/// Access of one device to another, as NVML numbers it. The wrapper's own call refuses a status newer than itself.
pub(super) fn p2p_status(
    device: &Device<'_>,
    other: &Device<'_>,
    which: u32,
) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetP2PStatus.as_ref())?;
    let mut status = 0;
    // SAFETY: both handles are valid as long as the devices borrow the library, and `status` outlives the call.
    nvml_try(unsafe { call(handle(device), handle(other), which, &raw mut status) })?;
    Ok(status)
}

/// The NUMA node that a GPU's own memory forms.
pub(super) fn memory_node(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNumaNodeId.as_ref())?;
    let mut node = 0;
    // SAFETY: the handle is valid as long as `device` borrows the library, and `node` outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut node) })?;
    Ok(node)
}

/// Whether confidential computing is on.
pub(super) fn confidential_computing(nvml: &Nvml) -> Result<bool, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeState.as_ref())?;
    let mut state = nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 };
    // SAFETY: `state` outlives the call.
    nvml_try(unsafe { call(&raw mut state) })?;
    // NVML_CC_SYSTEM_FEATURE_ENABLED.
    Ok(state.ccFeature == 1)
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed to the library it came from, while `device` borrows it.
    unsafe { device.handle() }
}
