//! Wiring against the corpus's model of the same board, where the corpus is at hand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use machines::machine::NvLinkPeer;
use machines::{Machine, dgx1p, dgx1v};

/// How many links join two GPUs, by index.
type Wiring = BTreeMap<(usize, usize), u32>;

fn corpus_file(name: &str) -> Option<String> {
    let corpus = std::env::var_os("TOPOD_CORPUS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus")),
        PathBuf::from,
    );
    std::fs::read_to_string(corpus.join("nccl-model").join(name)).ok()
}

fn wiring_of_model(text: &str) -> (Wiring, Vec<(u32, usize)>) {
    let document = roxmltree::Document::parse(text).unwrap();
    let gpus: Vec<_> = document.descendants().filter(|node| node.has_tag_name("gpu")).collect();
    let address = |gpu: &roxmltree::Node<'_, '_>| {
        gpu.parent().unwrap().attribute("busid").unwrap().to_owned()
    };
    let addresses: BTreeMap<String, usize> = gpus
        .iter()
        .map(|gpu| (address(gpu), gpu.attribute("dev").unwrap().parse().unwrap()))
        .collect();
    let mut wiring = Wiring::new();
    let mut places = Vec::new();
    for gpu in &gpus {
        let index = addresses[&address(gpu)];
        for link in gpu.children().filter(|node| node.has_tag_name("nvlink")) {
            let peer = addresses[link.attribute("target").unwrap()];
            *wiring.entry((index, peer)).or_default() +=
                link.attribute("count").unwrap().parse::<u32>().unwrap();
        }
        let numa = gpu
            .ancestors()
            .find(|node| node.has_tag_name("cpu"))
            .unwrap()
            .attribute("numaid")
            .unwrap();
        let switch = gpu.ancestors().filter(|node| node.has_tag_name("pci")).nth(1).unwrap();
        let nics = switch.descendants().filter(|node| node.has_tag_name("net")).count();
        places.push((numa.parse().unwrap(), nics));
    }
    (wiring, places)
}

fn wiring_of(machine: &Machine) -> (Wiring, Vec<(u32, usize)>) {
    let mut wiring = Wiring::new();
    let mut places = Vec::new();
    for (index, gpu) in machine.gpus.iter().enumerate() {
        for link in &gpu.links {
            let NvLinkPeer::Gpu(peer, _) = link.peer else { panic!("a link to no GPU") };
            *wiring.entry((index, peer)).or_default() += 1;
        }
        let near = |nic: &&machines::machine::Nic| {
            machine.level(nic.bus_id, gpu.bus_id) == machines::scenario::Level::Single
        };
        places.push((gpu.numa_node.unwrap(), machine.nics.iter().filter(near).count()));
    }
    (wiring, places)
}

#[expect(clippy::print_stdout, reason = "a skipped check is said aloud")]
fn skipped(file: &str) {
    println!("skipped: no corpus with {file}");
}

/// The same links between the same GPUs, each at the same NUMA node with as many NICs on its switch.
fn check(machine: &Machine, file: &str) {
    let Some(text) = corpus_file(file) else {
        return skipped(file);
    };
    assert_eq!(wiring_of(machine), wiring_of_model(&text), "{file}");
}

#[test]
fn hybrid_cube_meshes() {
    check(&dgx1v(), "dgx1v.xml");
    check(&dgx1p(), "dgx1p.xml");
}
