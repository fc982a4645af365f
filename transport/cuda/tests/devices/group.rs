//! Groups of threads of this process, each with a device of its own.

use std::sync::Arc;
use std::time::Duration;

use topology::{Collective, Plan, Rank};
use transport::Rendezvous;
use transport_cuda::{
    Buffer, Communicator, Context, CudaError, Device, FLAGGED_PARAMETERS, Image, Memory, Options,
    SOURCES, Stream, flagged_names, names,
};

use crate::number::Number;

/// An image for a driver that has the kernels built for a host: it need only name them.
pub(crate) fn image() -> Image {
    let mut text = ".version 7.0\n.target sm_70\n.address_size 64\n".to_owned();
    for name in names() {
        // The parameters of the kernels' source.
        let parameters = [
            format!(".param .align 8 .b8 {name}_param_0[{}]", 8 * SOURCES),
            format!(".param .u32 {name}_param_1"),
            format!(".param .u64 {name}_param_2"),
            format!(".param .u64 {name}_param_3"),
            format!(".param .u32 {name}_param_4"),
        ];
        text.push_str(&format!(
            ".visible .entry {name}(\n{}\n)\n{{\nret;\n}}\n",
            parameters.join(",\n")
        ));
    }
    for name in flagged_names() {
        let [places, program] = FLAGGED_PARAMETERS;
        text.push_str(&format!(
            ".visible .entry {name}(\n.param .align 8 .b8 {name}_param_0[{places}],\n\
             .param .align 4 .b8 {name}_param_1[{program}]\n)\n.maxntid 512\n{{\nret;\n}}\n"
        ));
    }
    Image::Given(text.into_bytes())
}

/// Short slots, so that messages are many.
pub(crate) fn options() -> Options {
    let host = transport::Options {
        timeout: Duration::from_secs(60),
        slot_bytes: Some(4096),
        ..Default::default()
    };
    Options {
        host,
        collectives: Collective::ALL.to_vec(),
        slots: 2,
        slot_bytes: 4096,
        image: image(),
        timeout: Duration::from_secs(120),
        ..Options::default()
    }
}

pub(crate) fn device_of(rank: Rank) -> Device {
    Device::by_ordinal(rank.index() % Device::count().unwrap()).unwrap()
}

/// Runs `each` on every rank of a fresh group, one thread per rank.
pub(crate) fn group<T: Send>(
    plan: &Plan,
    options: impl Fn(Rank) -> Options + Sync,
    each: impl Fn(Result<Communicator, CudaError>, Rank) -> T + Sync,
) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let rendezvous: Rendezvous =
        format!("file://{}/meet", folder.path().display()).parse().unwrap();
    std::thread::scope(|scope| {
        let ranks = plan.ranks.iter().map(|place| place.rank);
        let threads: Vec<_> = ranks
            .map(|rank| {
                let (rendezvous, options, each) = (&rendezvous, &options, &each);
                scope.spawn(move || {
                    let made = Context::new(device_of(rank)).and_then(|context| {
                        Communicator::new(plan, rank, rendezvous, &context, options(rank))
                    });
                    each(made, rank)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Device memory of elements, with as many before and behind that must stay as they are.
pub(crate) struct Guarded<T> {
    buffer: Arc<Buffer>,
    ahead: usize,
    count: usize,
    held: Vec<T>,
}

impl<T: Number> Guarded<T> {
    /// `ahead` elements lie before, so that odd ones leave it unaligned for wide loads.
    pub(crate) fn new(context: &Arc<Context>, ahead: usize, data: &[T]) -> Self {
        let mut held = vec![T::of(99); ahead + data.len() + 3];
        held[ahead..ahead + data.len()].copy_from_slice(data);
        Self { buffer: Buffer::of(context, &held).unwrap(), ahead, count: data.len(), held }
    }

    pub(crate) fn memory(&self) -> Memory {
        let size = size_of::<T>();
        self.buffer.memory().part(self.ahead * size, self.count * size)
    }

    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Memory {
        let size = size_of::<T>();
        self.memory().part(range.start * size, range.len() * size)
    }

    /// What is there now.
    #[track_caller]
    pub(crate) fn read(&self) -> Vec<T> {
        let mut now = vec![T::of(0); self.held.len()];
        self.buffer.read(0, &mut now).unwrap();
        let end = self.ahead + self.count;
        assert_eq!(now[..self.ahead], self.held[..self.ahead], "what lies before was written");
        assert_eq!(now[end..], self.held[end..], "what lies behind was written");
        now[self.ahead..end].to_vec()
    }
}

pub(crate) fn stream(communicator: &Communicator) -> Stream {
    Stream::new(communicator.context()).unwrap()
}
