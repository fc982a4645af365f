//! Calls that nvml-wrapper does not make, or not rightly, through the raw binding.
#![expect(unsafe_code, reason = "the raw binding is unsafe")]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "a call with its handle is one step")]

use std::mem::size_of;

use machines::scenario::{C2cLink, Code, Fabric, NvLinkError};
use machines::{Deviation, dgx_h100, dgx1v, vm_flat};
use nvml_wrapper::Nvml;
use nvml_wrapper::sys_exports::field_id::*;
use nvml_wrapper_sys::bindings::*;

use crate::Stage;

/// One field of device 0: its return code and value.
fn field(nvml: &Nvml, id: u32, scope: u32) -> Result<u64, Code> {
    let device = nvml.device_by_index(0).unwrap();
    // SAFETY: a structure of plain numbers.
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    value.fieldId = id;
    value.scopeId = scope;
    // SAFETY: a valid handle and one initialised value.
    let code = unsafe { nvml.lib().nvmlDeviceGetFieldValues(device.handle(), 1, &mut value) };
    assert_eq!(code, 0);
    if value.nvmlReturn != 0 {
        return Err(Code(value.nvmlReturn));
    }
    // SAFETY: the double writes the whole union.
    Ok(unsafe { value.value.ullVal })
}

#[test]
fn fields_of_links() {
    let stage = Stage::new(&dgx1v().with(Deviation::NvLinkDown { gpu: 0, link: 1 }));
    let nvml = stage.nvml();
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_LINK_COUNT, 0), Ok(6));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 0), Ok(25_781));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 1), Ok(0));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_STATE, 0), Ok(1));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_STATE, 1), Ok(0));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_VERSION, 0), Ok(2));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 6), Err(Code::NOT_SUPPORTED));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 99), Err(Code::INVALID_ARGUMENT));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_SPEED_MBPS_L5, 0), Ok(25_781));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0), Ok(25_781));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0), Ok(0));
    assert_eq!(field(&nvml, NVML_FI_DEV_C2C_LINK_COUNT, 0), Err(Code::NOT_SUPPORTED));
    assert_eq!(field(&nvml, NVML_FI_DEV_MEMORY_TEMP, 0), Err(Code::NOT_SUPPORTED));
}

#[test]
fn a_spoilt_field_leaves_the_others() {
    let mut fault = machines::scenario::Fault::new(
        "nvmlDeviceGetFieldValues",
        machines::scenario::Action::Return(Code::NOT_SUPPORTED),
    );
    fault.field = Some(NVML_FI_DEV_NVLINK_GET_SPEED);
    let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 0), Err(Code::NOT_SUPPORTED));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, 0), Ok(25_781));
}

#[test]
fn remote_kind() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let mut kind = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: a valid handle and a number to fill in.
    let code =
        unsafe { nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType(device.handle(), 0, &mut kind) };
    assert_eq!((code, kind), (0, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU));
}

#[test]
fn peer_access() {
    let stage = Stage::new(&dgx1v().with(Deviation::PeerAccessDenied { a: 0, b: 3 }));
    let nvml = stage.nvml();
    let status = |a: u32, b: u32, which| {
        let (a, b) = (nvml.device_by_index(a).unwrap(), nvml.device_by_index(b).unwrap());
        let mut status = nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN;
        // SAFETY: valid handles and a number to fill in.
        let code = unsafe {
            nvml.lib().nvmlDeviceGetP2PStatus(a.handle(), b.handle(), which, &mut status)
        };
        (code, status)
    };
    let read = nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ;
    let nvlink = nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK;
    assert_eq!(status(0, 4, read), (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK));
    assert_eq!(status(0, 4, nvlink), (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK));
    assert_eq!(
        status(0, 5, read),
        (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED)
    );
    assert_eq!(status(0, 5, nvlink), (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED));
    assert_eq!(
        status(0, 3, read),
        (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED)
    );
    assert_eq!(status(3, 0, nvlink), (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED));
    assert_eq!(status(0, 0, read).0, Code::INVALID_ARGUMENT.0);
    assert_eq!(status(0, 1, 17).0, Code::INVALID_ARGUMENT.0);
}

#[test]
fn fabric() {
    let mut machine = dgx1v();
    machine.gpus[1].fabric = Some(Fabric {
        state: 3,
        status: Code::SUCCESS,
        cluster_uuid: [7; 16],
        clique_id: 32766,
        health_mask: 0xaa,
        health_summary: 2,
    });
    let stage = Stage::new(&machine);
    let nvml = stage.nvml();
    let version = |size: usize, number: u32| u32::try_from(size).unwrap() | number << 24;
    let ask = |index: u32, version: u32| {
        let device = nvml.device_by_index(index).unwrap();
        // SAFETY: a structure of plain numbers; the third form is the largest.
        let mut info: nvmlGpuFabricInfo_v3_t = unsafe { std::mem::zeroed() };
        info.version = version;
        // SAFETY: a valid handle and a structure of at least the size that its version says.
        let code = unsafe { nvml.lib().nvmlDeviceGetGpuFabricInfoV(device.handle(), &mut info) };
        (code, info)
    };
    let v2 = version(size_of::<nvmlGpuFabricInfo_v2_t>(), 2);
    let v3 = version(size_of::<nvmlGpuFabricInfo_v3_t>(), 3);
    assert_eq!(ask(0, v3).0, Code::NOT_SUPPORTED.0);
    assert_eq!(ask(1, 0).0, Code::ARGUMENT_VERSION_MISMATCH.0);
    for (form, summary) in [(v2, 0), (v3, 2)] {
        let (code, info) = ask(1, form);
        assert_eq!(code, 0);
        assert_eq!(info.clusterUuid, [7; 16]);
        assert_eq!((info.cliqueId, info.state, info.healthMask), (32766, 3, 0xaa));
        assert_eq!(info.healthSummary, summary);
    }
}

#[test]
fn buffers_and_arguments() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    let lib = nvml.lib();
    // SAFETY: handles are compared and never dereferenced.
    let handle = unsafe { nvml.device_by_index(0).unwrap().handle() };
    let mut text = [1; 96];
    // SAFETY: in each of these a valid pointer with its true length, or null.
    unsafe {
        let length = nvml.device_by_index(0).unwrap().name().unwrap().len();
        let length = u32::try_from(length).unwrap();
        assert_eq!(
            lib.nvmlDeviceGetName(handle, text.as_mut_ptr(), length),
            Code::INSUFFICIENT_SIZE.0
        );
        assert_eq!(text, [1; 96]);
        assert_eq!(lib.nvmlDeviceGetName(handle, text.as_mut_ptr(), length + 1), 0);
        assert_eq!(
            lib.nvmlDeviceGetName(handle, std::ptr::null_mut(), 96),
            Code::INVALID_ARGUMENT.0
        );
        let stranger = std::ptr::without_provenance_mut(64);
        assert_eq!(
            lib.nvmlDeviceGetName(stranger, text.as_mut_ptr(), 96),
            Code::INVALID_ARGUMENT.0
        );
        let null = std::ptr::null_mut();
        assert_eq!(lib.nvmlDeviceGetName(null, text.as_mut_ptr(), 96), Code::INVALID_ARGUMENT.0);
        assert_eq!(lib.nvmlDeviceGetCount_v2(std::ptr::null_mut()), Code::INVALID_ARGUMENT.0);
        let mut node = 0;
        assert_eq!(lib.nvmlDeviceGetNumaNodeId(handle, &mut node), Code::NOT_SUPPORTED.0);
        let mut nodes = [0; 1];
        assert_eq!(lib.nvmlDeviceGetMemoryAffinity(handle, 1, nodes.as_mut_ptr(), 0), 0);
        assert_eq!(nodes, [1]);
        assert_eq!(
            lib.nvmlDeviceGetMemoryAffinity(handle, 1, nodes.as_mut_ptr(), 9),
            Code::INVALID_ARGUMENT.0
        );
    }
}

#[test]
fn before_initialising() {
    let stage = Stage::new(&dgx1v());
    // SAFETY: the double has no code that runs on loading.
    let lib = unsafe { NvmlLib::new(stage.library.as_os_str()) }.unwrap();
    let mut count = 0;
    // SAFETY: a number to fill in.
    assert_eq!(unsafe { lib.nvmlDeviceGetCount_v2(&mut count) }, Code::UNINITIALIZED.0);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { lib.nvmlShutdown() }, Code::UNINITIALIZED.0);
    // SAFETY: gives a static string.
    let text = unsafe { std::ffi::CStr::from_ptr(lib.nvmlErrorString(15)) };
    assert_eq!(text.to_str().unwrap(), "GPU is lost");
}

#[test]
fn c2c_and_counters() {
    let mut machine = dgx_h100();
    machine.gpus[0].links[2].errors.insert(NvLinkError::Replay, 12);
    let mut scenario = machine.scenario();
    scenario.devices[0].c2c_links = vec![C2cLink { active: true, mbytes_per_second: 44_712 }; 10];
    scenario.absent_link = Code::INVALID_ARGUMENT;
    scenario.max_links = 36;
    let stage = Stage::new(&machine);
    let text = serde_json::to_string(&scenario).unwrap();
    std::fs::write(stage.path(machines::scenario::SCENARIO_BESIDE_LIBRARY), text).unwrap();
    let nvml = stage.nvml();
    assert_eq!(field(&nvml, NVML_FI_DEV_C2C_LINK_COUNT, 0), Ok(10));
    assert_eq!(field(&nvml, NVML_FI_DEV_C2C_LINK_GET_STATUS, 9), Ok(1));
    assert_eq!(field(&nvml, NVML_FI_DEV_C2C_LINK_GET_MAX_BW, 9), Ok(44_712));
    assert_eq!(field(&nvml, NVML_FI_DEV_C2C_LINK_GET_MAX_BW, 10), Err(Code::INVALID_ARGUMENT));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 2), Ok(12));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 3), Ok(0));
    // Hopper dropped the fields with the link in their number.
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L2, 0), Err(Code::NOT_SUPPORTED));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_SPEED, 17), Ok(26_562));
    assert_eq!(field(&nvml, NVML_FI_DEV_NVLINK_GET_STATE, 18), Err(Code::INVALID_ARGUMENT));
    let device = nvml.device_by_index(0).unwrap();
    assert!(
        !device
            .link_wrapper_for(20)
            .has_capability(nvml_wrapper::enum_wrappers::nv_link::Capability::P2p)
            .unwrap()
    );
}

#[test]
fn partitioned() {
    let stage = Stage::new(&vm_flat().with(Deviation::MigOn { gpu: 1 }));
    let nvml = stage.nvml();
    assert_eq!(nvml.device_by_index(1).unwrap().mig_mode().unwrap().current, 1);
    assert_eq!(nvml.device_by_index(0).unwrap().mig_mode().unwrap().current, 0);
    let mut status = 0;
    let (a, b) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    // SAFETY: valid handles and a number to fill in.
    let code = unsafe { nvml.lib().nvmlDeviceGetP2PStatus(a.handle(), b.handle(), 0, &mut status) };
    assert_eq!((code, status), (0, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_GPU_NOT_SUPPORTED));
}

#[test]
fn a_switch_at_the_other_end() {
    let stage = Stage::new(&dgx_h100());
    let nvml = stage.nvml();
    let device = nvml.device_by_index(3).unwrap();
    let mut kind = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: a valid handle and a number to fill in.
    let code =
        unsafe { nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType(device.handle(), 17, &mut kind) };
    assert_eq!((code, kind), (0, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH));
    let remote = device.link_wrapper_for(17).remote_pci_info().unwrap();
    assert_eq!((remote.bus_id.as_str(), remote.pci_device_id), ("00000000:0A:00.0", 0x22a3_10de));
}
