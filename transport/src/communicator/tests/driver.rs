//! Communicators that threads share.

use super::*;
use crate::Driver;

/// Without anybody calling, the progress thread brings operations to their end.
#[test]
fn a_progress_thread_moves_what_is_in_flight() {
    for transport in [Transport::Shm, Transport::Tcp] {
        group(&ring_plan(2, 1), with(transport), |made, rank| {
            let driver = Driver::new(made.unwrap(), true).unwrap();
            let flights: Vec<_> = (0..3)
                .map(|i| {
                    let data = vec![rank.0.cast_signed() + i; 100_000];
                    driver.with(|c| c.start_all_reduce(data, ReduceOp::Sum)).unwrap()
                })
                .collect();
            // This thread only looks; it moves nothing.
            while driver.with(|c| c.in_flight()) > 0 {
                std::thread::yield_now();
            }
            for (i, flight) in (0..).zip(flights) {
                let (data, _) = driver.with(|c| c.wait(flight)).unwrap();
                assert_eq!(data, vec![1 + 2 * i; 100_000]);
            }
        });
    }
}

/// A rank that is gone ends an operation that nobody waits for yet.
#[test]
fn a_progress_thread_hears_of_failures() {
    group(
        &ring_plan(2, 1),
        |_| Options::default(),
        |made, rank| {
            let made = made.unwrap();
            if rank == Rank(1) {
                return;
            }
            let driver = Driver::new(made, true).unwrap();
            let flight = driver.with(|c| c.start_all_reduce(vec![1_u8; 1 << 20], ReduceOp::Max));
            let Ok(flight) = flight else { return };
            while driver.with(|c| c.in_flight()) > 0 {
                std::thread::yield_now();
            }
            let error = driver.with(|c| c.wait(flight)).unwrap_err();
            assert!(matches!(error, TransportError::Unusable(_)), "{error}");
        },
    );
}
