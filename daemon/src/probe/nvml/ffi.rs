//! The NVML calls that nvml-wrapper gets wrong or does not have.
#![expect(unsafe_code, reason = "calls into the driver's C library")]

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t, nvmlMemory_t, nvmlValue_t,
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

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed to the library it came from, while `device` borrows it.
    unsafe { device.handle() }
}
