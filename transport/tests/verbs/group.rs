//! Groups whose ranks are threads, each with NICs of its own.

use std::time::Duration;

use topology::{Collective, Rank};
use transport::even::full_plan;
use transport::{Communicator, Options, Transport};

/// Ranks with so many NICs each: rank 1 of two each has `mlx5_2` and `mlx5_3`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) ranks: u32,
    pub(crate) nics: u32,
    pub(crate) settings: &'static [(&'static str, &'static str)],
}

impl Group {
    fn options(&self, rank: u32) -> Options {
        let mut options = Options {
            timeout: Duration::from_secs(60),
            transport: Transport::Verbs,
            slot_bytes: Some(4096),
            collectives: Collective::ALL.to_vec(),
            ..Options::default()
        };
        let name = |nic| format!("mlx5_{}", rank * self.nics + nic);
        let names: Vec<String> = (0..self.nics).map(name).collect();
        options.set("ib_hca", &format!("={}", names.join(","))).expect("a setting");
        for (name, value) in self.settings {
            options.set(name, value).expect("a setting");
        }
        options
    }

    /// Makes the group and has each rank do something; what each came to, or why it could not be made. Every rank has ended then, and
    /// its communicator is dropped.
    pub(crate) fn each<T: Send>(
        &self,
        act: impl Fn(&mut Communicator) -> T + Sync,
    ) -> Vec<Result<T, String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let place = format!("file://{}", folder.path().join("meet").display());
        let rendezvous = place.parse().expect("a place");
        let plan = full_plan(self.ranks, self.nics);
        let one = |rank| {
            let made = Communicator::new(&plan, Rank(rank), &rendezvous, self.options(rank));
            let mut made = made.map_err(|error| transport::with_causes(&error))?;
            Ok(act(&mut made))
        };
        std::thread::scope(|scope| {
            let started = (0..self.ranks).map(|rank| scope.spawn(move || one(rank)));
            let threads: Vec<_> = started.collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank ends")).collect()
        })
    }
}
