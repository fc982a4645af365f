//! The collectives.
//!
//! Each takes a place for an operation: with null it blocks, else it starts and leaves a handle there.

use std::ffi::c_void;

use topology::Rank;
use transport::{Call, ElementType, Place, ReduceOp};

use crate::communicator::CommunicatorHandle;
use crate::error::{Error, Status, array, borrow, give, give_handle, guard};
use crate::operation::OperationHandle;

/// What a buffer holds.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE 754 single precision.
    F32 = 0,
    /// IEEE 754 double precision.
    F64 = 1,
    /// IEEE 754 half precision.
    F16 = 2,
    /// The upper half of a single.
    Bf16 = 3,
    /// 8 bits, signed.
    I8 = 4,
    /// 32 bits, signed.
    I32 = 5,
    /// 64 bits, signed.
    I64 = 6,
    /// 8 bits, unsigned.
    U8 = 7,
}

/// What elements are combined by.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Addition.
    Sum = 0,
    /// Multiplication.
    Prod = 1,
    /// The least.
    Min = 2,
    /// The greatest.
    Max = 3,
    /// The sum over the number of ranks.
    Avg = 4,
    /// The bits that are set in all; integers alone.
    And = 5,
    /// The bits that are set in any; integers alone.
    Or = 6,
}

/// The numbers above are places in the library's own lists.
fn element(number: u32) -> Result<ElementType, Error> {
    let found = ElementType::ALL.get(number as usize).copied();
    found.ok_or_else(|| Error::invalid(format!("{number} is no element type")))
}

fn op(number: u32) -> Result<ReduceOp, Error> {
    let found = ReduceOp::ALL.get(number as usize).copied();
    found.ok_or_else(|| Error::invalid(format!("{number} is no operation on elements")))
}

fn place(
    address: *const c_void,
    count: usize,
    of: ElementType,
    what: &str,
) -> Result<Place, Error> {
    Place::new(address.cast_mut().cast(), count, of).ok_or_else(|| {
        Error::invalid(format!(
            "{what} is null, not aligned to {of}, or too long: {count} elements"
        ))
    })
}

/// Runs the call that `make` makes of a communicator and an element type to its end, or starts it.
///
/// # Safety
/// `communicator` is one; the buffers of the call are as the functions below demand; `operation` is null or has room for a handle.
unsafe fn run(
    communicator: *const CommunicatorHandle,
    element_type: u32,
    operation: *mut *mut OperationHandle,
    make: impl FnOnce(&CommunicatorHandle, ElementType) -> Result<Call, Error>,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        let of = element(element_type)?;
        let call = make(handle, of)?;
        if operation.is_null() {
            // SAFETY: The buffers stay for the whole call, by the caller's word.
            handle.driver.with(|communicator| unsafe { communicator.run_at(of, call) })?;
            return Ok(());
        }
        let started = handle.driver.with(|communicator| {
            // SAFETY: The buffers stay until the operation is done or freed, by the caller's word.
            unsafe { communicator.start_at(of, call, ()) }
        });
        // SAFETY: By the caller's word.
        unsafe { give_handle(operation, OperationHandle::new(&handle.driver, started?)) }
    })
}

/// The shard of this rank.
fn shard(handle: &CommunicatorHandle, count: usize) -> usize {
    transport::schedule::shard(count, Rank(handle.rank), handle.ranks as usize).len()
}

/// Combines the inputs of all ranks, element by element, into every rank's output. In place where both are the same.
/// `element_type` is a topod_element, `reduce_op` a topod_op; `operation` null to block, here and below.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_all_reduce(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    reduce_op: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |_, of| {
            let (input, output) =
                (place(input, count, of, "input")?, place(output, count, of, "output")?);
            Ok(Call::AllReduce { input, output, op: op(reduce_op)? })
        })
    }
}

/// Combines `tensors` buffers, each in place, by few operations: those that fit are packed into buckets of at most
/// `bucket_bytes` (25 MiB where that is 0). `counts` has the number of elements of each. Blocks.
///
/// # Safety
/// `communicator` is one; `buffers` and `counts` have `tensors` entries; each buffer is valid for reads and writes, nobody else
/// touches it meanwhile, and none overlaps another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_all_reduce_fused(
    communicator: *const CommunicatorHandle,
    buffers: *const *mut c_void,
    counts: *const usize,
    tensors: usize,
    element_type: u32,
    reduce_op: u32,
    bucket_bytes: usize,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        // SAFETY: By the caller's word.
        let buffers = unsafe { array(buffers, tensors, "buffers") }?;
        // SAFETY: By the caller's word.
        let counts = unsafe { array(counts, tensors, "counts") }?;
        let (of, op) = (element(element_type)?, op(reduce_op)?);
        let both = buffers.iter().zip(counts);
        let places = both.map(|(buffer, count)| place(*buffer, *count, of, "a buffer"));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let most = if bucket_bytes == 0 { 25 << 20 } else { bucket_bytes };
        handle.driver.with(|communicator| {
            // SAFETY: The buffers stay for the whole call, by the caller's word.
            unsafe { communicator.all_reduce_fused_at(of, &places, op, most) }
        })?;
        Ok(())
    })
}

/// Gathers every rank's shard into every rank's output of `count` elements, by rank; topod_shard says how they are cut. In
/// place where the input is at its place in the output.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_all_gather(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |handle, of| {
            let shard = place(input, shard(handle, count), of, "input")?;
            Ok(Call::AllGather { shard, output: place(output, count, of, "output")? })
        })
    }
}

/// Combines the inputs of `count` elements of all ranks and leaves each rank its shard of the result. In place where the output
/// is at its place in the input.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_reduce_scatter(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    reduce_op: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |handle, of| {
            let shard = place(output, shard(handle, count), of, "output")?;
            let input = place(input, count, of, "input")?;
            Ok(Call::ReduceScatter { input, shard, op: op(reduce_op)? })
        })
    }
}

/// Every rank's buffer becomes that of `root`.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_broadcast(
    communicator: *const CommunicatorHandle,
    buffer: *mut c_void,
    count: usize,
    element_type: u32,
    root: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |_, of| {
            Ok(Call::Broadcast { buffer: place(buffer, count, of, "buffer")?, root: Rank(root) })
        })
    }
}

/// Combines the inputs of all ranks into the output of `root`; elsewhere `output` is not looked at and may be null.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_reduce(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    reduce_op: u32,
    root: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |handle, of| {
            let input = place(input, count, of, "input")?;
            let own = handle.rank == root;
            let output = if own { place(output, count, of, "output")? } else { input };
            Ok(Call::Reduce { input, output, op: op(reduce_op)?, root: Rank(root) })
        })
    }
}

/// Gathers every rank's shard of `count` elements into the output of `root`; elsewhere `output` is not looked at and may be
/// null.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_gather(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    root: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |handle, of| {
            let shard = place(input, shard(handle, count), of, "input")?;
            let length = if handle.rank == root { count } else { 0 };
            let output = place(output, length, of, "output")?;
            Ok(Call::Gather { shard, output, count, root: Rank(root) })
        })
    }
}

/// Leaves every rank its shard of the `count` elements of the root's input; elsewhere `input` is not looked at and may be
/// null.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_scatter(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    root: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |handle, of| {
            let shard = place(output, shard(handle, count), of, "output")?;
            let length = if handle.rank == root { count } else { 0 };
            let input = place(input, length, of, "input")?;
            Ok(Call::Scatter { input, shard, count, root: Rank(root) })
        })
    }
}

/// Sends the r-th of the equal parts of the input to rank r, and leaves what comes from rank r in the r-th part of the output.
/// `count` elements each in all, which the number of ranks divides.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_all_to_all(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |_, of| {
            let (input, output) =
                (place(input, count, of, "input")?, place(output, count, of, "output")?);
            Ok(Call::AllToAll { input, output })
        })
    }
}

/// As topod_all_to_all, with `sends[r]` elements to rank r and `receives[r]` from it. Blocks one after the other. Counts that do not
/// match are an error on every rank before any data moves.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_all_to_all_uneven(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    sends: *const usize,
    output: *mut c_void,
    receives: *const usize,
    element_type: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    let make = |handle: &CommunicatorHandle, of| {
        let ranks = handle.ranks as usize;
        // SAFETY: A number for each rank, by the caller's word.
        let sends = unsafe { array(sends, ranks, "sends") }?.to_vec();
        // SAFETY: A number for each rank, by the caller's word.
        let receives = unsafe { array(receives, ranks, "receives") }?.to_vec();
        let all = |counts: &[usize]| counts.iter().fold(0_usize, |sum, n| sum.saturating_add(*n));
        let input = place(input, all(&sends), of, "input")?;
        let output = place(output, all(&receives), of, "output")?;
        Ok(Call::AllToAllUneven { input, sends, output, receives })
    };
    // SAFETY: By the caller's word.
    unsafe { run(communicator, element_type, operation, make) }
}

/// Sends to one rank, which receives as many elements of the same type; messages between two ranks arrive in order.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_send(
    communicator: *const CommunicatorHandle,
    input: *const c_void,
    count: usize,
    element_type: u32,
    to: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |_, of| {
            Ok(Call::Send { data: place(input, count, of, "input")?, to: Rank(to) })
        })
    }
}

/// Receives from one rank.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_receive(
    communicator: *const CommunicatorHandle,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    from: u32,
    operation: *mut *mut OperationHandle,
) -> Status {
    // SAFETY: By the caller's word.
    unsafe {
        run(communicator, element_type, operation, |_, of| {
            Ok(Call::Receive { data: place(output, count, of, "output")?, from: Rank(from) })
        })
    }
}

/// Receives from whichever rank sends first, and writes who it was. Blocks.
///
/// # Safety
/// `communicator` is one. Inputs are valid for reads and outputs for writes until this returns or, where it starts an
/// operation, until that is done or freed; nobody else touches them meanwhile. `operation` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_receive_any(
    communicator: *const CommunicatorHandle,
    output: *mut c_void,
    count: usize,
    element_type: u32,
    from: *mut u32,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        let of = element(element_type)?;
        let data = place(output, count, of, "output")?;
        let sender = handle.driver.with(|communicator| {
            // SAFETY: The buffer stays for the whole call, by the caller's word.
            unsafe { communicator.receive_any_at(of, data) }
        })?;
        // SAFETY: By the caller's word.
        unsafe { give(from, sender.0) };
        Ok(())
    })
}
