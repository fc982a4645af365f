//! Many tensors in few operations.

use super::*;

/// Sizes around a bucket of 400 bytes: many in one, one that fills it, one beyond, none at all.
const LENGTHS: [usize; 9] = [1, 3, 0, 50, 100, 7, 30_000, 2, 2];

#[test]
fn tensors_come_back_where_they_were() {
    for (transport, most) in [(Transport::Shm, 400), (Transport::Shm, 0), (Transport::Tcp, 1 << 20)]
    {
        let options = |_| Options { transport, observe: true, ..Options::for_all() };
        let operations = group(&ring_plan(3, 1), options, |made, rank| {
            let mut communicator = made.unwrap();
            let mut tensors: Vec<Vec<f32>> = LENGTHS
                .iter()
                .enumerate()
                .map(|(t, length)| (0..*length).map(|i| value(rank, i + t)).collect())
                .collect();
            let mut borrowed: Vec<&mut [f32]> = tensors.iter_mut().map(|t| &mut t[..]).collect();
            let stats = communicator.all_reduce_fused(&mut borrowed, ReduceOp::Sum, most).unwrap();
            assert_eq!(stats.bytes, 4 * LENGTHS.iter().sum::<usize>() as u64);
            for (t, tensor) in tensors.iter().enumerate() {
                for (i, found) in tensor.iter().enumerate() {
                    let wanted: f32 = (0..3).map(|r| value(Rank(r), i + t)).sum();
                    assert_eq!(*found, wanted, "tensor {t}, element {i}");
                }
            }
            communicator.totals().iter().map(|(.., totals)| totals.operations).sum::<u64>()
        });
        // [1 3 0 50] [100] [7] [30000] [2 2] in 400 bytes; each alone in none; all in one of a MiB.
        let wanted = match most {
            400 => 5,
            0 => LENGTHS.len() as u64,
            _ => 1,
        };
        assert_eq!(operations, [wanted; 3], "in buckets of {most} bytes");
    }
}

#[test]
fn what_cannot_be_combined_is_refused() {
    group(
        &ring_plan(2, 1),
        |_| Options::default(),
        |made, _| {
            let mut communicator = made.unwrap();
            let (mut a, mut b) = ([1.0_f32], [2.0_f32; 2]);
            let error =
                communicator.all_reduce_fused(&mut [&mut a[..], &mut b[..]], ReduceOp::Or, 100);
            assert!(matches!(error, Err(TransportError::NotCombined { .. })));
            assert_eq!(
                communicator.all_reduce_fused::<f32>(&mut [], ReduceOp::Sum, 9).unwrap().bytes,
                0
            );
        },
    );
}
