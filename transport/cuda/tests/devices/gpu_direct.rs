//! Device memory that NICs read and write themselves, over the doubles of CUDA's driver and of libibverbs together: ranks that pass for those of
//! two hosts, each with a board and a NIC of its own.
#![expect(unsafe_code, reason = "calls the doubles' own controls")]

use std::ffi::{CString, c_char, c_int};
use std::sync::Barrier;
use std::time::Duration;

use libloading::Library;
use serde_json::{Value, json};
use topology::Rank;
use topology::health::{GpuDirect, GpuDirectPath};
use transport::even::{full_plan, ring_plan};
use transport::{Element, Failure, ReduceOp, Transport, VerbsMessages, verbs_messages};
use transport_cuda::{Communicator, CudaError, Options, Way};

use crate::collectives::Side;
use crate::double::{command, is_child, run};
use crate::group::{Guarded, group, options, stream};

/// The controls of a double that this process has loaded.
pub(crate) struct Controls {
    library: Library,
    name: &'static str,
}

impl Controls {
    pub(crate) fn cuda() -> Self {
        let path = std::env::var_os("TOPOD_CUDA_LIBRARY").unwrap();
        Self { library: unsafe_load(path.to_str().unwrap()), name: "topodCudaDouble" }
    }

    fn verbs() -> Self {
        Self { library: unsafe_load("libibverbs.so.1"), name: "topodVerbsDouble" }
    }

    fn report(&self) -> Value {
        type Report = unsafe extern "C" fn(*mut u8, usize) -> c_int;
        let mut text = vec![0_u8; 1 << 16];
        let symbol = format!("{}Report", self.name);
        // SAFETY: it has this signature; of the other double's the length is a word, of which this is the lower half.
        let get = unsafe { self.library.get::<Report>(symbol.as_bytes()) }.unwrap();
        // SAFETY: there is that much room.
        assert_eq!(unsafe { get(text.as_mut_ptr(), 1 << 16) }, 0);
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        serde_json::from_slice(&text[..end]).unwrap()
    }

    pub(crate) fn set_faults(&self, faults: &str) {
        type Set = unsafe extern "C" fn(*const c_char) -> c_int;
        let text = CString::new(faults).unwrap();
        let symbol = format!("{}SetFaults", self.name);
        // SAFETY: it has this signature.
        let set = unsafe { self.library.get::<Set>(symbol.as_bytes()) }.unwrap();
        // SAFETY: a terminated text.
        assert_eq!(unsafe { set(text.as_ptr()) }, 0, "{faults}");
    }
}

fn unsafe_load(name: &str) -> Library {
    // SAFETY: the doubles have no initialisers, and are loaded already or will be.
    unsafe { Library::new(name) }.unwrap()
}

/// Runs `body` in a child over both doubles. `attributes` are those of every board, by their numbers.
#[track_caller]
fn over(
    test: &str,
    ranks: u32,
    attributes: &Value,
    variables: &[(&str, &str)],
    body: impl FnOnce(&Controls, &Controls),
) {
    if is_child(test) {
        return body(&Controls::cuda(), &Controls::verbs());
    }
    let Some(mut command) = command(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (shown, config) = (folder.path().join("shown"), folder.path().join("cuda.json"));
    let library = folder.path().join("libibverbs.so.1");
    std::os::unix::fs::symlink(machines::verbs_double_library(), library).unwrap();
    std::fs::write(&config, json!({ "attributes": attributes }).to_string()).unwrap();
    let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    command.env("LD_LIBRARY_PATH", format!("{}:{before}", folder.path().display()));
    command.env("TOPOD_CUDA_DOUBLE_CONFIG", config);
    command.env("TOPOD_VERBS_SYSFS", &shown).env("TOPOD_VERBS_DOUBLE_SYSFS", &shown);
    command.env("TOPOD_VERBS_DOUBLE_DEVICES", ranks.to_string());
    run(command.envs(variables.iter().copied()));
}

/// Each rank with a NIC of its own, which may reach its device's memory by a way or may not.
fn options_of(rank: Rank, hosts: u32, path: Option<GpuDirectPath>) -> Options {
    let mut options = options();
    options.host.transport = Transport::Verbs;
    for (name, value) in [
        ("ib_hca", format!("=mlx5_{}", rank.0).as_str()),
        ("ib_timeout", "14"),
        ("ib_retry_cnt", "2"),
    ] {
        options.host.set(name, value).unwrap();
    }
    Options {
        pretended_host: Some(format!("host {}", rank.0 % hosts)),
        gpu_direct: path.map(GpuDirect::Open),
        ..options
    }
}

#[track_caller]
fn nothing_left(cuda: &Controls, verbs: &Controls) {
    for report in [cuda.report(), verbs.report()] {
        let left = report["left"].as_object().unwrap();
        assert!(left.values().all(|count| *count == 0), "{report}");
    }
    assert_eq!(verbs.report()["misuse"], json!([]));
}

/// What NICs carried while two ranks on two hosts sum so many elements, by the link's own count and by the double's.
fn summed(
    verbs: &Controls,
    paths: [Option<GpuDirectPath>; 2],
    count: usize,
) -> (VerbsMessages, u64, u64) {
    let meet = Barrier::new(2);
    let counted = |name: &str| verbs.report()[name].as_u64().unwrap();
    let each = group(
        &ring_plan(2, 1),
        |rank| options_of(rank, 2, paths[rank.index()]),
        |made, rank| {
            let mut communicator = made.unwrap();
            let expected =
                if paths[rank.index()].is_some() { Way::GpuDirect } else { Way::Network };
            assert_eq!(communicator.links()[0].way, expected, "{:?}", communicator.links());
            let stream = stream(&communicator);
            let data = Guarded::new(communicator.context(), 0, &vec![1.0_f32; count]);
            let memory = data.memory();
            meet.wait();
            let before = (verbs_messages(), counted("from_devices"), counted("into_devices"));
            meet.wait();
            let pending =
                communicator.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream);
            communicator.wait(pending.unwrap()).unwrap();
            meet.wait();
            let now = verbs_messages();
            let mut carried = now;
            carried.sent -= before.0.sent;
            carried.lent -= before.0.lent;
            carried.received -= before.0.received;
            carried.landed -= before.0.landed;
            let (from, into) =
                (counted("from_devices") - before.1, counted("into_devices") - before.2);
            meet.wait();
            assert_eq!(data.read(), vec![2.0; count]);
            (carried, from, into)
        },
    );
    each[0]
}

/// Tells a child which of several cases it is.
const CASE: &str = "TOPOD_CUDA_TEST_CASE";

const COUNT: usize = 5000;
/// Of a sum over two ranks each sends as much as it has, once.
const BYTES: u64 = 2 * 4 * COUNT as u64;

#[test]
fn device_memory_goes_from_nic_to_nic_without_a_copy_of_the_host() {
    let test = "gpu_direct::device_memory_goes_from_nic_to_nic_without_a_copy_of_the_host";
    over(test, 2, &json!({}), &[], |cuda, verbs| {
        let path = Some(GpuDirectPath::DmaBuf);
        let (carried, from, into) = summed(verbs, [path, path], COUNT);
        assert!(carried.sent > 0, "{carried:?}");
        // Every message was read from a device, and written into one.
        assert_eq!([carried.lent, carried.received, carried.landed], [carried.sent; 3]);
        assert_eq!((from, into), (BYTES, BYTES));
        let registered = &verbs.report()["registered"];
        assert_eq!((&registered["dma_buf"], registered.get("peer")), (&json!(2), None));
        // The boards order such writes for their own work.
        assert_eq!(cuda.report()["calls"].get("cuFlushGPUDirectRDMAWrites"), None);
        nothing_left(cuda, verbs);
    });
}

#[test]
fn either_end_may_have_its_slots_in_the_host() {
    let test = "gpu_direct::either_end_may_have_its_slots_in_the_host";
    over(test, 2, &json!({}), &[], |cuda, verbs| {
        let path = Some(GpuDirectPath::DmaBuf);
        for paths in [[path, None], [None, path]] {
            let (carried, from, into) = summed(verbs, paths, COUNT);
            assert_eq!((from, into), (BYTES / 2, BYTES / 2), "{carried:?}");
            assert_eq!([carried.lent, carried.landed], [carried.sent / 2; 2], "{carried:?}");
        }
        let (carried, from, into) = summed(verbs, [None, None], COUNT);
        assert_eq!((carried.lent, carried.landed, from, into), (0, 0, 0, 0));
        nothing_left(cuda, verbs);
    });
}

/// A driver that exports nothing, and a module that knows device memory.
#[test]
fn a_peer_memory_module_serves_where_nothing_is_exported() {
    let test = "gpu_direct::a_peer_memory_module_serves_where_nothing_is_exported";
    let variables = [("TOPOD_VERBS_DOUBLE_PEER_MEMORY", "1")];
    over(test, 2, &json!({ "124": 0 }), &variables, |cuda, verbs| {
        let path = Some(GpuDirectPath::Peermem);
        let (_, from, into) = summed(verbs, [path, path], COUNT);
        assert_eq!((from, into), (BYTES, BYTES));
        let registered = &verbs.report()["registered"];
        assert_eq!((&registered["peer"], registered.get("dma_buf")), (&json!(2), None));
        nothing_left(cuda, verbs);
    });
}

/// A board that does not order what NICs write: it is flushed before any stream is told.
#[test]
fn writes_of_nics_are_flushed_where_the_board_does_not_order_them() {
    let test = "gpu_direct::writes_of_nics_are_flushed_where_the_board_does_not_order_them";
    over(test, 2, &json!({ "118": 0 }), &[], |cuda, verbs| {
        let path = Some(GpuDirectPath::DmaBuf);
        let (carried, from, into) = summed(verbs, [path, path], COUNT);
        assert_eq!((from, into), (BYTES, BYTES));
        let flushes = cuda.report()["calls"]["cuFlushGPUDirectRDMAWrites"].as_u64().unwrap();
        // At least once for each rank, and no more than once for a message.
        assert!((2..=carried.received).contains(&flushes), "{flushes} {carried:?}");
        nothing_left(cuda, verbs);
    });
}

#[test]
fn every_collective_between_hosts_by_nics() {
    let test = "gpu_direct::every_collective_between_hosts_by_nics";
    over(test, 4, &json!({}), &[("TOPOD_VERBS_DOUBLE_SEED", "9")], |cuda, verbs| {
        let of = |rank| options_of(rank, 2, Some(GpuDirectPath::DmaBuf));
        group(&full_plan(4, 2), of, |made, rank| {
            let mut communicator = made.unwrap();
            for link in communicator.links() {
                let near = link.peer.0 % 2 == rank.0 % 2;
                assert_eq!(link.way, if near { Way::Peer } else { Way::GpuDirect }, "{link:?}");
                assert!(near || link.why.ends_with("by DMA-BUF"), "{link:?}");
            }
            Side::new(&mut communicator).all(&[0, 7, 1003]);
        });
        nothing_left(cuda, verbs);
    });
}

/// What is against it is said, and messages go through the host.
#[test]
fn where_it_is_refused_messages_go_through_the_host() {
    let test = "gpu_direct::where_it_is_refused_messages_go_through_the_host";
    let verbs_faults = |text| ("TOPOD_VERBS_DOUBLE_FAULTS", text);
    for (attributes, variable, words) in [
        (
            json!({}),
            verbs_faults("call:ibv_reg_dmabuf_mr,code=12"),
            "register 2097152 bytes with mlx5_",
        ),
        (json!({ "124": 0 }), verbs_faults(""), "the driver exports none"),
        (json!({ "116": 0 }), verbs_faults(""), "the device does not support it"),
        (json!({ "117": 0, "118": 0 }), verbs_faults(""), "the host cannot flush them"),
        (
            json!({}),
            ("TOPOD_CUDA_DOUBLE_FAULTS", "call:cuMemGetHandleForAddressRange,code=801"),
            "cuMemGetHandleForAddressRange",
        ),
    ] {
        over(test, 2, &attributes, &[variable, (CASE, words)], |cuda, verbs| {
            let words = &*std::env::var(CASE).unwrap();
            let of = |rank| options_of(rank, 2, Some(GpuDirectPath::DmaBuf));
            group(&full_plan(2, 1), of, |made, _| {
                let mut communicator = made.unwrap();
                let link = &communicator.links()[0];
                assert!(link.way == Way::Network && link.why.contains(words), "{words}: {link:?}");
                Side::new(&mut communicator).all_reduce::<f32>(1003, ReduceOp::Sum);
            });
            assert_eq!(verbs.report()["into_devices"], 0);
            nothing_left(cuda, verbs);
        });
        if is_child(test) {
            return;
        }
    }
}

#[test]
fn it_is_not_tried_where_the_host_does_not_offer_it() {
    let test = "gpu_direct::it_is_not_tried_where_the_host_does_not_offer_it";
    over(test, 2, &json!({}), &[], |cuda, verbs| {
        for (verdict, words) in [
            (None, "GPUDirect RDMA is off"),
            (Some(GpuDirect::Closed("no module".to_owned())), "is not possible: no module"),
            (Some(GpuDirect::Unknown("facts")), "is not known: facts"),
        ] {
            let of = |rank| Options { gpu_direct: verdict.clone(), ..options_of(rank, 2, None) };
            group(&full_plan(2, 1), of, |made, _| {
                let communicator = made.unwrap();
                let link = &communicator.links()[0];
                assert!(link.way == Way::Network && link.why.contains(words), "{words}: {link:?}");
            });
        }
        assert_eq!(verbs.report()["registered"].get("dma_buf"), None);
        nothing_left(cuda, verbs);
    });
}

fn sum(communicator: &mut Communicator) -> Result<(), Box<Failure>> {
    let stream = stream(communicator);
    let data = Guarded::new(communicator.context(), 0, &vec![0.0_f32; 3000]);
    let memory = data.memory();
    let called = communicator.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream);
    match called.and_then(|pending| communicator.wait(pending)) {
        Ok(()) => Ok(()),
        Err(CudaError::Failed(failure)) => Err(failure),
        Err(other) => panic!("{other}"),
    }
}

/// Sums until something fails, with faults of either double that are set once the group is there. What each rank was told, and that nothing
/// was written into a device once all were.
fn struck(cuda: &Controls, verbs: &Controls, of_cuda: &str, of_verbs: &str) -> Vec<String> {
    let meet = Barrier::new(2);
    let said = group(
        &ring_plan(2, 1),
        |rank| Options {
            timeout: Duration::from_secs(20),
            ..options_of(rank, 2, Some(GpuDirectPath::DmaBuf))
        },
        |made, rank| {
            let mut communicator = made.unwrap();
            assert_eq!(communicator.links()[0].way, Way::GpuDirect);
            sum(&mut communicator).unwrap();
            meet.wait();
            if rank == Rank(0) {
                cuda.set_faults(of_cuda);
                verbs.set_faults(of_verbs);
            }
            meet.wait();
            let failure = (0..1000).find_map(|_| sum(&mut communicator).err());
            meet.wait();
            let written = verbs.report()["into_devices"].clone();
            meet.wait();
            drop(communicator);
            meet.wait();
            assert_eq!(verbs.report()["into_devices"], written, "after everybody was told");
            failure.expect("something fails").to_string()
        },
    );
    cuda.set_faults("");
    verbs.set_faults("");
    let report = verbs.report();
    assert!(report["left"].as_object().unwrap().values().all(|count| *count == 0), "{report}");
    said
}

#[test]
fn what_fails_under_way_is_named_and_leaves_nothing_registered() {
    let test = "gpu_direct::what_fails_under_way_is_named_and_leaves_nothing_registered";
    for (case, of_cuda, of_verbs, words) in [
        ("lost", "lost:device=1,after=40", "", "its device failed"),
        ("flush", "", "cut:device=0,peer=1,after=30", "transport retry counter exceeded"),
        ("fatal", "", "device-fatal:device=1,after=30", "the device failed or was removed"),
        ("access", "", "remote-access:device=0,peer=1,after=20,times=1", "remote access error"),
    ] {
        let variables = [(CASE, case)];
        over(test, 2, &json!({}), &variables, |cuda, verbs| {
            if std::env::var(CASE).unwrap() != case {
                return;
            }
            let said = struck(cuda, verbs, of_cuda, of_verbs);
            println!("{case}: {said:#?}");
            assert!(said.iter().any(|said| said.contains(words)), "{words} in {said:#?}");
        });
    }
}
