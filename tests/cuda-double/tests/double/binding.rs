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
