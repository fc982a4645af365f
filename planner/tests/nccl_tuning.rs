//! The cost model beside NCCL's own choice on one host of eight A100 or H100, by an independent account of NCCL's model: NVIDIA/nccl
//! 2.30, `src/graph/tuning.cc`, without its table of corrections by size. Times in us, rates in GB/s.

use planner::cost::{Machine, Shape, table};
use topology::plan::SizeChoice;
use topology::{Algorithm, Collective, Fraction, Protocol};

const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// A host of eight GPUs on NVSwitches.
#[derive(Clone, Copy)]
struct Host {
    /// Links of a GPU times NCCL's rate of one.
    links: u32,
    tenths: u32,
    capability: u32,
    ll_max: f64,
    ring_ll128_per_channel: f64,
    tree_per_channel: f64,
    channels: f64,
}

const A100: Host = Host {
    links: 12,
    tenths: 200,
    capability: 80,
    ll_max: 87.7,
    ring_ll128_per_channel: 20.0,
    tree_per_channel: 24.0,
    channels: 24.0,
};
const H100: Host = Host {
    links: 18,
    tenths: 206,
    capability: 90,
    ll_max: 141.0,
    ring_ll128_per_channel: 36.7,
    tree_per_channel: 38.7,
    channels: 24.0,
};

impl Host {
    fn bus(self) -> f64 {
        f64::from(self.links * self.tenths) / 10.0
    }

    /// NCCL's time of an all-reduce among the eight.
    fn nccl_us(self, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> f64 {
        let n = 8.0;
        let at = PROTOCOLS.iter().position(|p| *p == protocol).unwrap();
        let (base, hop, hops) = match algorithm {
            Algorithm::Ring => ([6.6, 14.0, 8.4], [0.6, 1.9, 3.4], 2.0 * (n - 1.0)),
            _ => ([6.8, 14.0, 8.4], [0.6, 1.25, 4.0], 2.0 * (n - 1.0)),
        };
        let mut bus = self.bus();
        let algbw = if algorithm == Algorithm::Ring {
            bus = match protocol {
                Protocol::Ll => (bus * 0.5).min(self.ll_max),
                Protocol::Ll128 => (bus * 0.92).min(self.channels * self.ring_ll128_per_channel),
                Protocol::Simple => bus,
            };
            bus * n / (2.0 * (n - 1.0))
        } else {
            bus = (bus * 0.92).min(self.channels * self.tree_per_channel);
            bus = match protocol {
                Protocol::Ll => (bus / 3.8).min(self.ll_max),
                Protocol::Ll128 => {
                    (bus * 7.0 / 9.0).min(self.channels * self.ring_ll128_per_channel)
                }
                Protocol::Simple => bus,
            };
            bus / 2.0
        };
        base[at] + hops * hop[at] + bytes as f64 / (1000.0 * algbw)
    }

    fn nccl(self, bytes: u64) -> (Algorithm, Protocol, f64) {
        let all = [Algorithm::Ring, Algorithm::Tree]
            .into_iter()
            .flat_map(|a| PROTOCOLS.map(|p| (a, p, self.nccl_us(a, p, bytes))));
        all.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap()
    }

    fn machine(self) -> Machine {
        Machine {
            ranks: 8,
            hosts: 1,
            gpu_links: true,
            compute_capability: Some(self.capability),
            amd_cpu: false,
        }
    }

    /// An algorithm that puts `of` over `over` of its data on each GPU's links.
    fn shape(self, algorithm: Algorithm, hops: u64, of: i128, over: i128) -> Shape {
        let bus = Fraction::of(u64::from(self.links * self.tenths), 10);
        Shape {
            algorithm,
            algbw_gbps: bus * Fraction::new(over, of).unwrap(),
            intra_hops: hops,
            inter_hops: 0,
            prefixes: vec![(1, Fraction::ONE)],
        }
    }
}

fn choice(rows: &[SizeChoice], bytes: u64) -> &SizeChoice {
    rows.iter().find(|row| bytes <= row.max_bytes).unwrap()
}

fn sizes() -> impl Iterator<Item = u64> {
    (10..=33).map(|power| 1 << power)
}

/// Given NCCL's own shapes (its tree is a chain inside a host), the same choice; where it is another, both are within the twentieth
/// that it takes to leave what is best for large sizes.
#[test]
fn with_nccls_candidates_the_choice_is_nccls() {
    for host in [A100, H100] {
        let shapes =
            [host.shape(Algorithm::Ring, 14, 14, 8), host.shape(Algorithm::Tree, 14, 2, 1)];
        let rows = table(&host.machine(), Collective::AllReduce, &shapes);
        let mut same = 0;
        for bytes in sizes() {
            let (algorithm, protocol, least) = host.nccl(bytes);
            let ours = choice(&rows, bytes);
            let theirs = host.nccl_us(ours.algorithm, ours.protocol, bytes);
            assert!(
                theirs <= 1.06 * least,
                "{bytes} bytes: {} {} instead of {algorithm} {protocol}",
                ours.algorithm,
                ours.protocol
            );
            same += usize::from((ours.algorithm, ours.protocol) == (algorithm, protocol));
            if let Some(ps) = ours.predicted_ps.filter(|_| ours.max_bytes == bytes) {
                let predicted = ps as f64 / 1e6;
                assert!((predicted / theirs - 1.0).abs() < 0.01, "{bytes}: {predicted}, {theirs}");
            }
        }
        assert!(same >= 22, "only {same} of 24 sizes alike");
    }
}

/// With all candidates: never slower than NCCL's choice by NCCL's own figures, another only where hops decide, NCCL's where bandwidth
/// does.
#[test]
fn what_other_candidates_change() {
    for host in [A100, H100] {
        let shapes = [
            host.shape(Algorithm::Ring, 14, 14, 8),
            host.shape(Algorithm::Direct, 2, 14, 8),
            host.shape(Algorithm::Tree, 6, 2, 1),
            host.shape(Algorithm::OneShot, 1, 7, 1),
        ];
        let rows = table(&host.machine(), Collective::AllReduce, &shapes);
        for bytes in sizes() {
            let ours = choice(&rows, bytes);
            let (algorithm, protocol, least) = host.nccl(bytes);
            if let Some(ps) = ours.predicted_ps.filter(|_| ours.max_bytes == bytes) {
                assert!(ps as f64 / 1e6 <= 1.06 * least, "{bytes}: {ps} ps, NCCL {least} us");
            }
            let large = bytes >= 1 << 30;
            if large {
                assert_eq!((ours.algorithm, ours.protocol), (algorithm, protocol), "{bytes}");
            }
        }
        let first = &rows[0];
        assert_eq!((first.algorithm, first.protocol), (Algorithm::OneShot, Protocol::Ll));
        assert!(rows.iter().any(|row| row.algorithm == Algorithm::Direct));
    }
}
