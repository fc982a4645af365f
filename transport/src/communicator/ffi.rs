//! Operations on memory named by address: what faces for other languages are made of.
//!
//! The methods for Rust borrow or own their buffers; here the caller answers for them.
#![expect(unsafe_code, reason = "other languages name memory by address")]

use std::any::Any;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use topology::{Collective, Rank};

use super::collectives::{expect, total};
use super::fusion::buckets;
use super::operation::Request;
use super::{Communicator, DeviceMemory, Path, Pending, Stats};
use crate::arena::SharedBuffer;
use crate::element::{Element, ElementType, ReduceOp};
use crate::error::TransportError;
use crate::kernel::Kernel;
use crate::memory::{MemoryKey, Slot, caller, caller_mut, copy};

/// A buffer of a caller: where it is and how many elements it has.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    address: NonNull<u8>,
    count: usize,
    element: ElementType,
}

// SAFETY: An address; whoever made the place answers for what is behind it, on every thread.
unsafe impl Send for Place {}

impl Place {
    /// `count` elements at `address`; `None` where that is not aligned to them, ends beyond the address space, or is null
    /// though elements are to be there.
    #[must_use]
    pub fn new(address: *mut u8, count: usize, element: ElementType) -> Option<Self> {
        let size = element.bytes();
        let bytes = count.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok())?;
        if bytes == 0 {
            return Some(Self { address: NonNull::<u64>::dangling().cast(), count, element });
        }
        address.addr().checked_add(bytes)?;
        let address = NonNull::new(address).filter(|at| at.addr().get().is_multiple_of(size))?;
        Some(Self { address, count, element })
    }

    /// Its elements.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    fn slot(self) -> Slot {
        let bytes = self.count * self.element.bytes();
        // SAFETY: Whoever starts the operation vouches for the memory until it ends (`Communicator::start_at`).
        unsafe { Slot::new(self.address, bytes, MemoryKey::default()) }
    }
}

/// An operation with its buffers. Input and output may be the same place where the operation has a form in place; a shard's
/// place is then within the buffer of all. All buffers of an operation are of one element type.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Call {
    /// As [`Communicator::all_reduce_into`].
    AllReduce { input: Place, output: Place, op: ReduceOp },
    /// As [`Communicator::all_gather`].
    AllGather { shard: Place, output: Place },
    /// As [`Communicator::reduce_scatter`].
    ReduceScatter { input: Place, shard: Place, op: ReduceOp },
    /// As [`Communicator::broadcast`].
    Broadcast { buffer: Place, root: Rank },
    /// As [`Communicator::reduce`].
    Reduce { input: Place, output: Place, op: ReduceOp, root: Rank },
    /// As [`Communicator::gather`]; `output` is looked at on the root alone.
    Gather { shard: Place, output: Place, count: usize, root: Rank },
    /// As [`Communicator::scatter`]; `input` is looked at on the root alone.
    Scatter { input: Place, shard: Place, count: usize, root: Rank },
    /// As [`Communicator::all_to_all`].
    AllToAll { input: Place, output: Place },
    /// As [`Communicator::all_to_all_uneven`].
    AllToAllUneven { input: Place, sends: Vec<usize>, output: Place, receives: Vec<usize> },
    /// As [`Communicator::send`].
    Send { data: Place, to: Rank },
    /// As [`Communicator::receive`].
    Receive { data: Place, from: Rank },
}

impl Communicator {
    /// Does an operation and waits for its end.
    ///
    /// # Safety
    /// Inputs are valid for reads, and outputs for reads and writes, while this runs; nobody else writes the ones or touches
    /// the others. Places of one call do not overlap, but where the operation is in place.
    ///
    /// # Errors
    /// As the method named at [`Call`].
    pub unsafe fn run_at(
        &mut self,
        element: ElementType,
        call: Call,
    ) -> Result<Stats, TransportError> {
        let request = self.request(element, call)?;
        self.operate(request)
    }

    /// Starts an operation; `owner` keeps its memory and is given back when it is done.
    ///
    /// # Safety
    /// As [`Communicator::run_at`], until the operation is done, it fails, or the communicator is dropped: as long as it
    /// keeps `owner`.
    ///
    /// # Errors
    /// As the method named at [`Call`], for what is found before anything is sent.
    pub unsafe fn start_at<B: Send + 'static>(
        &mut self,
        element: ElementType,
        call: Call,
        owner: B,
    ) -> Result<Pending<B>, TransportError> {
        let request = self.request(element, call)?;
        self.start_owned(request, owner)
    }

    /// As [`Communicator::receive_any`].
    ///
    /// # Safety
    /// As [`Communicator::run_at`].
    ///
    /// # Errors
    /// As [`Communicator::receive_any`].
    pub unsafe fn receive_any_at(
        &mut self,
        element: ElementType,
        data: Place,
    ) -> Result<Rank, TransportError> {
        self.receive_any_of(element, data.count, data.slot())
    }

    /// Takes memory of a device in, for NICs to read and write it themselves ([`Communicator::carries`]); `None` where no NICs join ranks.
    /// `dma_buf` holds exactly this memory; without it the memory is registered by its address, which a module of the kernel must
    /// know. `owner` keeps the memory until no NIC has it any more: this is dropped, or the communicator is, whichever is later.
    ///
    /// # Safety
    /// `address` is one of a device for `bytes` bytes as long as `owner` lives, and null of none.
    pub unsafe fn adopt(
        &self,
        address: u64,
        bytes: usize,
        dma_buf: Option<OwnedFd>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Option<DeviceMemory> {
        let registry = self.registry.as_ref()?;
        let place = usize::try_from(address).ok()?;
        let place = NonNull::new(std::ptr::with_exposed_provenance_mut(place))?;
        // SAFETY: The caller vouches for it as long as the owner lives, which goes with it.
        let whole = unsafe { Slot::of_device(place, bytes) };
        Some(DeviceMemory::new(registry.adopt(whole, dma_buf, owner)))
    }

    /// An all-reduce of many tensors, in place: packed into buckets of at most `bucket_bytes`, which are all in flight at
    /// once. A tensor that fills a bucket is not copied. The result has the same bits in every run for the same tensors and
    /// bucket size, which must be equal on every rank.
    ///
    /// # Safety
    /// As [`Communicator::run_at`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub unsafe fn all_reduce_fused_at(
        &mut self,
        element: ElementType,
        tensors: &[Place],
        op: ReduceOp,
        bucket_bytes: usize,
    ) -> Result<Stats, TransportError> {
        enum Flight {
            InPlace(Pending<()>),
            Packed(Pending<SharedBuffer<f64>>, Range<usize>),
        }
        let size = element.bytes();
        let bytes: Vec<usize> = tensors.iter().map(|tensor| tensor.count * size).collect();
        let kernel = Kernel::new(element, op).ok_or(TransportError::NotCombined { op, element })?;
        let start = Instant::now();
        let mut flights = Vec::new();
        for bucket in buckets(&bytes, bucket_bytes) {
            let whole = |slot: Slot| {
                let count = slot.bytes() / size;
                let request = Request::new(Collective::AllReduce, count, kernel, slot, slot);
                Request { result: Some(slot), ..request }
            };
            if bucket.len() == 1 {
                let request = whole(tensors[bucket.start].slot());
                flights.push(Flight::InPlace(self.start_owned(request, ())?));
                continue;
            }
            let filled: usize = bytes[bucket.clone()].iter().sum();
            let length = filled.div_ceil(8);
            // Where the group's heap is full, ordinary memory does; as it does where NICs would have to be told of it for one operation.
            let shared = self.shared.as_ref().and_then(|_| self.allocate::<f64>(length).ok());
            let mut memory = shared.unwrap_or_else(|| SharedBuffer::private(length));
            let slot = caller_mut(&mut memory[..]).part(0, filled);
            let mut at = 0;
            for tensor in &tensors[bucket.clone()] {
                let from = tensor.slot();
                copy(slot.part(at, from.bytes()), from);
                at += from.bytes();
            }
            flights.push(Flight::Packed(self.start_owned(whole(slot), memory)?, bucket));
        }
        let mut stats = Stats {
            elapsed: Duration::ZERO,
            bytes: 0,
            path: Path::Plan,
            channels: 0,
            steps: 0,
            sleeps: 0,
            held: Duration::ZERO,
        };
        for flight in flights {
            let of_flight = match flight {
                Flight::InPlace(pending) => self.wait(pending)?.1,
                Flight::Packed(pending, bucket) => {
                    let (memory, of_flight) = self.wait(pending)?;
                    let slot = caller(&memory[..]);
                    let mut at = 0;
                    for tensor in &tensors[bucket] {
                        let to = tensor.slot();
                        copy(to, slot.part(at, to.bytes()));
                        at += to.bytes();
                    }
                    of_flight
                }
            };
            stats.bytes += of_flight.bytes;
            stats.steps += of_flight.steps;
            stats.sleeps += of_flight.sleeps;
            stats.held += of_flight.held;
            (stats.path, stats.channels) = (of_flight.path, of_flight.channels);
        }
        stats.elapsed = start.elapsed();
        Ok(stats)
    }

    /// Combines many tensors, element by element, in place, by few operations: small ones travel together.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_fused<T: Element>(
        &mut self,
        tensors: &mut [&mut [T]],
        op: ReduceOp,
        bucket_bytes: usize,
    ) -> Result<Stats, TransportError> {
        let place = |tensor: &mut &mut [T]| Place {
            address: NonNull::from(&mut **tensor).cast(),
            count: tensor.len(),
            element: T::TYPE,
        };
        let places: Vec<Place> = tensors.iter_mut().map(place).collect();
        // SAFETY: The tensors are borrowed for the whole call, and do not overlap.
        unsafe { self.all_reduce_fused_at(T::TYPE, &places, op, bucket_bytes) }
    }

    fn request(&mut self, element: ElementType, call: Call) -> Result<Request, TransportError> {
        let combine =
            |op| Kernel::new(element, op).ok_or(TransportError::NotCombined { op, element });
        let moving = |collective, count, input: Place, output: Place| {
            let (input, output) = (input.slot(), output.slot());
            Request::new(collective, count, Kernel::moving(element), input, output)
        };
        let rooted = |request, root| Request { root: Some(root), ..request };
        let own = self.rank();
        let shard = |count, found: usize| {
            expect("a shard", crate::schedule::shard(count, own, self.ranks()).len(), found)
        };
        Ok(match call {
            Call::AllReduce { input, output, op } => {
                expect("an output", input.count, output.count)?;
                let (count, kernel) = (input.count, combine(op)?);
                let (input, output) = (input.slot(), output.slot());
                let request = Request::new(Collective::AllReduce, count, kernel, input, output);
                Request { result: Some(output), ..request }
            }
            Call::AllGather { shard: part, output } => {
                shard(output.count, part.count)?;
                moving(Collective::AllGather, output.count, part, output)
            }
            Call::ReduceScatter { input, shard: part, op } => {
                shard(input.count, part.count)?;
                let (count, kernel) = (input.count, combine(op)?);
                let (input, part) = (input.slot(), part.slot());
                let request = Request::new(Collective::ReduceScatter, count, kernel, input, part);
                Request { result: Some(part), ..request }
            }
            Call::Broadcast { buffer, root } => {
                rooted(moving(Collective::Broadcast, buffer.count, buffer, buffer), root)
            }
            Call::Reduce { input, output, op, root } => {
                let place = if own == root { output } else { input };
                expect("an output", input.count, place.count)?;
                let (count, kernel) = (input.count, combine(op)?);
                let (input, output) = (input.slot(), place.slot());
                let request = Request::new(Collective::Reduce, count, kernel, input, output);
                let result = (own == root).then_some(output);
                Request { root: Some(root), result, ..request }
            }
            Call::Gather { shard: part, output, count, root } => {
                shard(count, part.count)?;
                if own == root {
                    expect("an output", count, output.count)?;
                }
                rooted(moving(Collective::Gather, count, part, output), root)
            }
            Call::Scatter { input, shard: part, count, root } => {
                shard(count, part.count)?;
                if own == root {
                    expect("an input", count, input.count)?;
                }
                rooted(moving(Collective::Scatter, count, input, part), root)
            }
            Call::AllToAll { input, output } => {
                expect("an output", input.count, output.count)?;
                moving(Collective::AllToAll, input.count, input, output)
            }
            Call::AllToAllUneven { input, sends, output, receives } => {
                expect("an input", total(&sends), input.count)?;
                expect("an output", total(&receives), output.count)?;
                let blocks = self.agree_on_blocks(&sends, &receives)?;
                let request = moving(Collective::AllToAll, blocks.total(), input, output);
                Request { blocks: Some(blocks), ..request }
            }
            Call::Send { data, to } => {
                self.message_of(element, own, to, data.count, data.slot())?
            }
            Call::Receive { data, from } => {
                self.message_of(element, from, own, data.count, data.slot())?
            }
        })
    }
}
