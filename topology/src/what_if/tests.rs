use super::*;
use crate::{HostId, RateModel, Snapshot, formats, lower};

/// GPUs 0 and 1 with two NVLinks between them, 2 with one to 0; 0 and `mlx5_0` below one switch, 1 and 2 below another, and
/// `mlx5_1` on the processor.
fn host() -> Vec<Snapshot> {
    let pci = |bus: u32, class: &str, width: u32, inner: &str| {
        format!(
            r#"<pci busid="0000:{bus:02x}:00.0" class="{class}" link_speed="16.0 GT/s PCIe" link_width="{width}">{inner}</pci>"#
        )
    };
    let gpu = |index: u32, links: &[(u32, u32)]| {
        let links: String = links
            .iter()
            .map(|(peer, count)| {
                format!(r#"<nvlink target="0000:{:02x}:00.0" count="{count}"/>"#, 0x10 + peer)
            })
            .collect();
        pci(0x10 + index, "0x030200", 16, &format!(r#"<gpu dev="{index}" sm="80">{links}</gpu>"#))
    };
    let nic = |index: u32| {
        let net = format!(
            r#"<nic><net name="mlx5_{index}" dev="{index}" speed="200000" port="1" guid="0x{}" gdr="1"/></nic>"#,
            index + 1
        );
        pci(0x20 + index, "0x020700", 16, &net)
    };
    let left = pci(1, "0x060400", 16, &(gpu(0, &[(1, 2), (2, 1)]) + &nic(0)));
    let right = pci(2, "0x060400", 16, &(gpu(1, &[(0, 2)]) + &gpu(2, &[(0, 1)])));
    let text = format!(
        r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
        {left}{right}{}</cpu></system>"#,
        nic(1)
    );
    formats::read(text.as_bytes()).unwrap()
}

fn machine() -> Topology {
    lower(&host(), RateModel::Effective).unwrap()
}

/// `2x NVLink 40`, of every technology; `-` where nothing joins the two.
fn links(topology: &Topology, from: &str, to: &str) -> String {
    let ends = (topology.find(from), topology.find(to));
    let (Some(from), Some(to)) = ends else { return "gone".into() };
    let words = topology.links_between(from, to).into_iter().map(|id| {
        let link = topology.link(id);
        format!("{}x {} {}", link.count, link.kind, link.bandwidth.display_gbps())
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

/// After the changes, the links between pairs of devices.
#[track_caller]
fn check(changes: &[&str], expect: &[(&str, &str, &str)]) -> Topology {
    let before = machine();
    let after = apply(&before, changes).unwrap();
    for (from, to, expected) in expect {
        assert_eq!(links(&after, from, to), *expected, "{from} to {to} after {changes:?}");
    }
    assert_eq!(after.changes(), changes);
    for change in changes {
        assert!(after.assumptions().contains(&format!("what if: {change}")));
    }
    assert_ne!(after.fingerprint(), before.fingerprint());
    after
}

#[track_caller]
fn refused(change: &str, part: &str) {
    let error = apply(&machine(), &[change]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("'{change}': ")) && error.contains(part), "{error}");
}

#[test]
fn the_machine_is_as_described() {
    let machine = machine();
    for (from, to, expected) in [
        ("GPU0", "GPU1", "2x NVLink 40"),
        ("GPU0", "GPU2", "1x NVLink 20"),
        ("GPU0", "0000:01:00.0", "1x PCIe 24"),
        ("mlx5_0", "fabric", "1x network 25"),
        ("0000:02:00.0", "numa0", "1x PCIe 24"),
    ] {
        assert_eq!(links(&machine, from, to), expected);
    }
    assert_eq!(apply(&machine, &[""; 0]).unwrap().fingerprint(), machine.fingerprint());
}

#[test]
fn links_change() {
    let both = |expected| [("GPU0", "GPU1", expected), ("GPU1", "GPU0", expected)];
    check(&["remove GPU0-GPU1"], &both("-"));
    check(&["remove GPU0-GPU1 x1"], &both("1x NVLink 20"));
    check(&["GPU0-GPU1 x1"], &both("1x NVLink 20"));
    check(&["GPU0-GPU1 x5"], &both("5x NVLink 100"));
    check(&["set gpu0 - gpu1 to 33GB/s"], &both("2x NVLink 33"));
    check(&["slow GPU0-GPU1 to 30GB/s"], &both("2x NVLink 30"));
    check(&["add GPU0-GPU1"], &both("3x NVLink 60"));
    check(&["add GPU0-GPU1 x2"], &both("4x NVLink 80"));
    check(&["add GPU0-GPU1 25GB/s"], &both("3x NVLink 65"));
    // A pair without any: as fast as the others of the two.
    check(
        &["add GPU1-GPU2"],
        &[("GPU1", "GPU2", "1x NVLink 20"), ("GPU2", "GPU1", "1x NVLink 20")],
    );
    // One way only.
    check(
        &["remove GPU0>GPU1 x1"],
        &[("GPU0", "GPU1", "1x NVLink 20"), ("GPU1", "GPU0", "2x NVLink 40")],
    );
    // By PCI address, in any spelling.
    check(&["remove 00000000:10:00.0-0000:11:00.0"], &both("-"));
    // Lanes of PCIe.
    check(&["GPU0-0000:01:00.0 x8"], &[("GPU0", "0000:01:00.0", "1x PCIe 12")]);
}

#[test]
fn devices_change() {
    let after = check(&["remove GPU2"], &[("GPU2", "GPU0", "gone")]);
    assert_eq!(after.gpus().len(), 2);
    let after = check(&["remove mlx5_0"], &[("GPU0", "GPU1", "2x NVLink 40")]);
    assert_eq!(after.nics().len(), 1);
    check(
        &["slow mlx5_0 to 12.5GB/s"],
        &[("mlx5_0", "fabric", "1x network 12.5"), ("mlx5_0", "0000:01:00.0", "1x PCIe 12.5")],
    );
    check(
        &["slow NIC0 to x8"],
        &[("mlx5_0", "fabric", "1x network 25"), ("mlx5_0", "0000:01:00.0", "1x PCIe 12")],
    );
    check(
        &["move mlx5_0 to 0000:02:00.0"],
        &[
            ("mlx5_0", "0000:01:00.0", "-"),
            ("mlx5_0", "0000:02:00.0", "1x PCIe 24"),
            ("mlx5_0", "fabric", "1x network 25"),
        ],
    );
    check(
        &["move 0000:01:00.0 to 0000:02:00.0"],
        &[("0000:01:00.0", "numa0", "-"), ("0000:01:00.0", "0000:02:00.0", "1x PCIe 24")],
    );
    let after = check(
        &["add nic mlx5_2 to 0000:02:00.0"],
        &[("mlx5_2", "0000:02:00.0", "1x PCIe 24"), ("mlx5_2", "fabric", "1x network 25")],
    );
    assert_eq!(after.find_device("NIC2"), after.find("mlx5_2"));
    check(
        &["add nic n9 to numa0 50GB/s"],
        &[("n9", "numa0", "1x PCIe 50"), ("fabric", "n9", "1x network 50")],
    );
    let after = check(&["add gpu GPU3 to 0000:02:00.0"], &[("GPU3", "0000:02:00.0", "1x PCIe 24")]);
    assert_eq!(after.gpus().len(), 4);
    // Later changes know earlier ones, and a number is never given twice.
    let after = check(
        &["remove GPU2", "add gpu new to 0000:02:00.0", "add GPU0-new x2"],
        &[("GPU0", "new", "2x NVLink 40")],
    );
    assert_eq!(after.find_device("GPU3"), after.find("new"));
}

#[test]
fn refusals_name_the_place() {
    refused(
        "remove GPU0-GPU9",
        "there is no device 'GPU9'; there are GPU0, GPU1, GPU2, 0000:01:00.0",
    );
    refused("remove GPU9", "there is no device 'GPU9'");
    refused("remove GPU1-GPU2", "the links of GPU1 are GPU1-GPU0, GPU1-0000:02:00.0");
    refused("slow GPU0-mlx5_0 to 1GB/s", "the way is GPU0 - 0000:01:00.0 - mlx5_0");
    refused("remove GPU0-GPU1 x3", "GPU0 has 2 NVLink to GPU1, not 3");
    refused("remove GPU0 x3", "removed as a whole");
    refused("GPU0 x3", "'GPU0' is a device; its links are GPU0-GPU1, GPU0-GPU2, GPU0-0000:01:00.0");
    refused("remove GPU0-GPU0", "joins GPU0 with itself");
    refused(
        "slow GPU0-GPU1 to 50GB/s",
        "GPU0 to GPU1 carries 40 GB/s now, so 50 GB/s would not be slower",
    );
    refused("slow mlx5_0 to 99GB/s", "no link of mlx5_0 becomes slower; it has");
    refused("GPU0-0000:01:00.0 x7", "no width that PCIe has");
    refused("add GPU0-fabric", "no link can join GPU0 and fabric");
    refused("add nic mlx5_0 to numa0", "there is a device 'mlx5_0' already");
    refused("add nic NIC1 to numa0", "there is a device 'NIC1' already");
    refused(
        "add nic n9 to GPU0",
        "PCIe switches and NUMA nodes are 0000:01:00.0, 0000:02:00.0, numa0",
    );
    refused("add nic n9 to fabric", "belongs to no host");
    refused("move GPU0 to GPU1", "no place for a device");
    refused("move mlx5_0 to 0000:01:00.0", "below 0000:01:00.0 already");
    refused("move numa0 to 0000:01:00.0", "hangs below nothing");
    refused("move fabric to numa0", "not of one host");
    refused("nonsense", "says nothing to do");
}

#[test]
fn a_switch_does_not_hang_below_itself() {
    let after = apply(&machine(), &["move 0000:01:00.0 to 0000:02:00.0"]).unwrap();
    let error = apply(&after, &["move 0000:02:00.0 to 0000:01:00.0"]).unwrap_err();
    assert!(error.reason.contains("is below 0000:02:00.0 itself"), "{error}");
}

#[test]
fn hosts_are_joined_by_the_network_alone() {
    let two = lower(&[host().remove(0), host().remove(0)], RateModel::Effective).unwrap();
    let after = apply(&two, &["remove 1:mlx5_1", "slow 0:mlx5_0 to 10GB/s"]).unwrap();
    assert_eq!(
        (links(&after, "0:mlx5_0", "fabric"), links(&after, "1:mlx5_0", "fabric")),
        ("1x network 10".into(), "1x network 25".into())
    );
    assert_eq!(links(&after, "1:mlx5_1", "fabric"), "gone");
    let error = apply(&two, &["add 0:GPU0-1:GPU0"]).unwrap_err();
    assert!(error.reason.contains("only the network joins hosts"), "{error}");
    assert!(apply(&two, &["add nic n9 to 1:numa0"]).unwrap().find("1:n9").is_some());
}

#[test]
fn link_graphs_change_too() {
    let text = r#"{"schema_version":1,"name":"g","gpus":["a-1","b-1","a"],"switches":["s"],
        "links":[["a-1","b-1",10],["b-1","a-1",10],["a-1","s",5],["s","b-1",5],["a","s",7]]}"#;
    let graph = lower(&formats::read(text.as_bytes()).unwrap(), RateModel::Effective).unwrap();
    let after = |change: &str| apply(&graph, &[change]);
    // Names may hold the sign that parts them.
    let slowed = after("slow a-1-b-1 to 4GB/s").unwrap();
    assert_eq!(
        (links(&slowed, "a-1", "b-1"), links(&slowed, "b-1", "a-1")),
        ("1x link 4".into(), "1x link 4".into())
    );
    let one_way = after("slow a-1>b-1 to 4GB/s").unwrap();
    assert_eq!(
        (links(&one_way, "a-1", "b-1"), links(&one_way, "b-1", "a-1")),
        ("1x link 4".into(), "1x link 10".into())
    );
    let new = after("add gpu c to s").unwrap();
    assert_eq!((links(&new, "c", "s"), new.gpus().len()), ("1x link 5".into(), 4));
    assert!(after("move a to s").unwrap_err().reason.contains("no place for a device"));
}

#[test]
fn stated_classes_are_given_up() {
    let text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n";
    let stated = lower(&formats::read(text.as_bytes()).unwrap(), RateModel::Effective).unwrap();
    let class = |topology: &Topology| {
        let [a, b] = [0, 1].map(|at| topology.gpus()[at]);
        (topology.path(a, b).class, topology.matrix(HostId(0)).cells.len())
    };
    assert_eq!(class(&stated), (PathType::Nvl, 2));
    let after = apply(&stated, &["remove GPU0-GPU1"]).unwrap();
    assert_eq!(class(&after), (PathType::Node, 2));
}

#[test]
fn the_order_of_the_input_does_not_matter() {
    let mut other = host();
    other[0].gpus.reverse();
    other[0].pci_devices.reverse();
    let [one, two] = [host(), other].map(|hosts| {
        let changes = ["GPU0-GPU1 x1", "add nic n9 to 0000:02:00.0", "remove GPU2"];
        apply(&lower(&hosts, RateModel::Effective).unwrap(), &changes).unwrap()
    });
    assert_eq!(one.fingerprint(), two.fingerprint());
}

proptest::proptest! {
    /// A change and the one that takes it back leave the machine as it was.
    #[test]
    fn there_and_back(count in 1_u32..6, pair in 0_usize..2) {
        let before = machine();
        let (link, now) = [("GPU0-GPU1", 2), ("GPU0-GPU2", 1)][pair];
        let there = [format!("add {link} x{count}"), format!("{link} x{now}")];
        let after = apply(&before, &there).unwrap();
        proptest::prop_assert_eq!(after.fingerprint(), before.fingerprint());
    }

    /// Whatever is asked of it, it answers.
    #[test]
    fn never_panics(
        verb in "remove|slow|add|move|set|add nic|add gpu|",
        a in "GPU[0-3]|mlx5_[01]|numa0|fabric|0000:0[12]:00.0",
        sign in "-|>| ",
        b in "GPU[0-3]|mlx5_[01]|numa0|fabric|0000:0[12]:00.0",
        rest in "| x[0-9]| [0-9]{1,2}GB/s| to 3GB/s",
    ) {
        let _ = apply(&machine(), &[format!("{verb} {a}{sign}{b}{rest}")]);
    }
}
