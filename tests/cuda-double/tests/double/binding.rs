//! The binding that the transport uses, over the double: it loads the library by its name, so a process of its own is started.

use std::process::Command;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::Ptx;

const STARTED: &str = "CUDA_DOUBLE_TEST_BINDING";

#[test]
fn the_binding_finds_and_drives_it() {
    let Some(kernels) = crate::kernels::library() else { return };
    let folder = tempfile::tempdir().unwrap();
    machines::install_cuda_double(folder.path()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "binding::other_process", "--ignored"]);
    command.env("LD_LIBRARY_PATH", folder.path()).env(STARTED, "1");
    command.env("TOPOD_CUDA_DOUBLE_KERNELS", kernels);
    assert!(command.status().unwrap().success());
}

/// The parameters' structure, as the kernels have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sources([u64; 16]);

// SAFETY: plain numbers that the kernel reads as addresses.
unsafe impl cudarc::driver::DeviceRepr for Sources {}

#[test]
#[ignore = "the other process of a test"]
fn other_process() {
    assert!(std::env::var_os(STARTED).is_some(), "started by another test");
    let context = CudaContext::new(3).unwrap();
    assert_eq!(context.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    let dma_buf = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
    assert_eq!(context.attribute(dma_buf).unwrap(), 1);
    let stream = context.new_stream().unwrap();
    let values: Vec<f32> = (0..100_u8).map(f32::from).collect();
    let one = stream.clone_htod(&values).unwrap();
    let mut sum = stream.alloc_zeros::<f32>(100).unwrap();
    let mut text = crate::kernels::module("8.7", 90);
    text.pop();
    let module = context.load_module(Ptx::from_src(text)).unwrap();
    let function = module.load_function("topod_fold_f32_sum").unwrap();
    {
        use cudarc::driver::{DevicePtr as _, DevicePtrMut as _};
        let (at_one, _one) = one.device_ptr(&stream);
        let (at_sum, _sum) = sum.device_ptr_mut(&stream);
        let mut sources = Sources([0; 16]);
        sources.0[..2].copy_from_slice(&[at_one, at_one]);
        let mut launch = stream.launch_builder(&function);
        let (count, elements, ranks) = (2_u32, 100_u64, 0_i32);
        launch.arg(&sources).arg(&count).arg(&at_sum).arg(&elements).arg(&ranks);
        let shape =
            LaunchConfig { grid_dim: (2, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: as many parameters as the kernel takes, over memory that is there.
        unsafe { launch.launch(shape) }.unwrap();
    }
    let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
    assert_eq!(stream.clone_dtoh(&sum).unwrap(), doubled);
    let other: Arc<CudaContext> = CudaContext::new(0).unwrap();
    let event = other.new_event(None).unwrap();
    event.record(&other.default_stream()).unwrap();
    event.synchronize().unwrap();
    stream.wait(&event).unwrap();
    let refused = CudaContext::new(8).unwrap_err();
    assert_eq!(refused.0, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

/// Numbers and names of codes are the header's.
#[test]
fn codes_are_the_headers() {
    use CUresult::*;
    let driver = crate::raw::Driver::load("{}");
    for code in [
        CUDA_SUCCESS,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUDA_ERROR_NO_DEVICE,
        CUDA_ERROR_INVALID_DEVICE,
        CUDA_ERROR_INVALID_IMAGE,
        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_NOT_FOUND,
        CUDA_ERROR_NOT_READY,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_NOT_PERMITTED,
        CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_SYSTEM_NOT_READY,
        CUDA_ERROR_UNKNOWN,
    ] {
        let number = code as u32;
        let mut text: *const std::ffi::c_char = std::ptr::null();
        driver.ok("cuGetErrorName", &[number.into(), crate::raw::out(&mut text)]);
        // SAFETY: a terminated text of the library.
        let name = unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap();
        assert_eq!(name, format!("{code:?}"));
    }
    driver.fails(
        crate::raw::code::INVALID_VALUE,
        "cuGetErrorName",
        &[12_345, crate::raw::out(&mut 0_u64)],
    );
}
