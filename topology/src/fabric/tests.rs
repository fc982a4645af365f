use super::levels::Crossings;
use super::*;
use alloc::collections::BTreeSet;
use alloc::string::ToString;

fn parse(text: &str) -> Fabric {
    let form = sniff(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let fabric = read(form, text).unwrap_or_else(|error| panic!("{error}"));
    fuzz::sound(&fabric);
    fabric
}

#[track_caller]
fn refused(text: &str, said: &str) {
    let error = sniff(text).and_then(|form| read(form, text)).unwrap_err();
    assert!(error.to_string().contains(said), "expected '{said}' in '{error}'");
}

fn order(fabric: &Fabric) -> Vec<&str> {
    fabric.levels().order().iter().map(|host| fabric.hosts[*host].name.as_str()).collect()
}

/// A fabric as ibnetdiscover prints it: `units` scalable units of `per_unit` hosts with `rails` NICs, a leaf per unit and rail, and
/// `spines` above with one cable each.
fn rail_optimised(units: usize, per_unit: usize, rails: usize, spines: usize) -> String {
    let mut text = String::new();
    let cable = |text: &mut String, port: usize, id: &str, far: usize, name: &str, rate: &str| {
        text.push_str(&format!("[{port}]\t\"{id}\"[{far}]\t\t# \"{name}\" lid 1 {rate}\n"));
    };
    for unit in 0..units {
        for rail in 0..rails {
            text.push_str(&format!(
                "Switch\t65 \"S-{unit}-{rail}\"\t# \"MF0;leaf-{unit}-{rail}:MQM9701/U1\" base port 0 lid 1 lmc 0\n"
            ));
            for host in 0..per_unit {
                let number = unit * per_unit + host;
                let (id, name) = (format!("H-{number}-{rail}"), format!("n{number} mlx5_{rail}"));
                cable(&mut text, host + 1, &id, 1, &name, "4xNDR");
            }
            for spine in 0..spines {
                let port = unit * rails + rail + 1;
                cable(
                    &mut text,
                    40 + spine,
                    &format!("S-{spine}"),
                    port,
                    "MF0;spine:Q/U1",
                    "4xNDR",
                );
            }
            text.push('\n');
        }
    }
    for spine in 0..spines {
        text.push_str(&format!(
            "Switch\t65 \"S-{spine}\"\t# \"MF0;spine-{spine}:MQM9701/U1\" lid 1\n"
        ));
        for unit in 0..units {
            for rail in 0..rails {
                let port = unit * rails + rail + 1;
                let id = format!("S-{unit}-{rail}");
                cable(&mut text, port, &id, 40 + spine, "MF0;leaf:Q/U1", "4xNDR");
            }
        }
        text.push('\n');
    }
    for number in 0..units * per_unit {
        for rail in 0..rails {
            let leaf = format!("S-{}-{rail}", number / per_unit);
            text.push_str(&format!(
                "Ca\t1 \"H-{number}-{rail}\"\t\t# \"n{number} mlx5_{rail}\"\n[1](a) \t\"{leaf}\"[{}]\t\t# lid 1 lmc 0 \"MF0;x:Q/U1\" lid 2 4xNDR\n\n",
                number % per_unit + 1
            ));
        }
    }
    text
}

#[test]
fn rails_tiers_and_order() {
    let fabric = parse(&rail_optimised(3, 4, 2, 2));
    assert_eq!((fabric.switches.len(), fabric.hosts.len()), (8, 12));
    assert_eq!(fabric.links(), 24 + 12);
    let tiers = fabric.tiers();
    assert_eq!(
        tiers.iter().map(|tier| (tier.tier, tier.switches)).collect::<Vec<_>>(),
        [(1, 6), (2, 2)]
    );
    assert_eq!(tiers[0].over_subscription(), Some(200));
    assert_eq!((tiers[0].down, tiers[0].up, tiers[0].in_mbit), (24 * 400_000, 12 * 400_000, true));
    assert_eq!(tiers[1].over_subscription(), None);
    for host in &fabric.hosts {
        let rails: Vec<_> = host.nics.iter().map(|nic| nic.rail).collect();
        assert_eq!(rails, [Some(Rail(0)), Some(Rail(1))]);
    }
    assert_eq!(fabric.levels().names, ["leaf", "tier 2"]);
    assert_eq!(order(&fabric)[..5], ["n0", "n1", "n2", "n3", "n4"]);
    assert_eq!(fabric.odd(), []);
}

/// Each odd thing, made of the same fabric by one change of the text.
#[test]
fn odd_things() {
    let text = rail_optimised(2, 4, 2, 3);
    let codes = |text: &str| -> Vec<(String, String)> {
        let odd = parse(text).odd();
        odd.into_iter().map(|finding| (finding.code, finding.component)).collect()
    };
    // n1's second NIC at the first NICs' leaf, on a port that was free.
    let ca = "\"H-1-1\"\t\t# \"n1 mlx5_1\"\n[1](a) \t\"S-0-1\"[2]";
    assert!(text.contains(ca));
    let at_leaf = "[2]\t\"H-1-1\"[1]\t\t# \"n1 mlx5_1\" lid 1 4xNDR\n";
    let strayed = text
        .replace(ca, "\"H-1-1\"\t\t# \"n1 mlx5_1\"\n[1](a) \t\"S-0-0\"[30]")
        .replace(at_leaf, "")
        .replace(
            "[2]\t\"H-1-0\"",
            "[30]\t\"H-1-1\"[1]\t\t# \"n1 mlx5_1\" lid 1 4xNDR\n[2]\t\"H-1-0\"",
        );
    assert_eq!(codes(&strayed), [("fabric-nic-off-rail".into(), "n1 mlx5_1".into())]);
    // A NIC in the other unit's leaf joins no units.
    let crossed = text
        .replace(ca, "\"H-1-1\"\t\t# \"n1 mlx5_1\"\n[1](a) \t\"S-1-1\"[30]")
        .replace(at_leaf, "")
        .replace(
            "[1]\t\"H-4-1\"",
            "[30]\t\"H-1-1\"[1]\t\t# \"n1 mlx5_1\" lid 1 4xNDR\n[1]\t\"H-4-1\"",
        );
    assert_eq!(codes(&crossed), [("fabric-nic-off-rail".into(), "n1 mlx5_1".into())]);
    assert_eq!(order(&parse(&crossed)), order(&parse(&text)));
    let slow = text.replace(
        "[1]\t\"H-0-0\"[1]\t\t# \"n0 mlx5_0\" lid 1 4xNDR",
        "[1]\t\"H-0-0\"[1]\t\t# \"n0 mlx5_0\" lid 1 2xNDR",
    );
    assert_eq!(codes(&slow), [("fabric-link-slow".into(), "leaf-0-0 port 1".into())]);
    let slow = text
        .replace(
            "[40]\t\"S-0\"[1]\t\t# \"MF0;spine:Q/U1\" lid 1 4xNDR",
            "[40]\t\"S-0\"[1]\t\t# \"MF0;spine:Q/U1\" lid 1 4xHDR",
        )
        .replace(
            "[1]\t\"S-0-0\"[40]\t\t# \"MF0;leaf:Q/U1\" lid 1 4xNDR",
            "[1]\t\"S-0-0\"[40]\t\t# \"MF0;leaf:Q/U1\" lid 1 4xHDR",
        );
    assert_eq!(codes(&slow).len(), 1, "told once: {:?}", codes(&slow));
    let gone = text
        .replace("[1]\t\"H-0-0\"[1]\t\t# \"n0 mlx5_0\" lid 1 4xNDR\n", "")
        .replace("Ca\t1 \"H-0-0\"\t\t# \"n0 mlx5_0\"\n[1](a) \t\"S-0-0\"[1]\t\t# lid 1 lmc 0 \"MF0;x:Q/U1\" lid 2 4xNDR\n", "");
    assert_eq!(codes(&gone), [("fabric-host-incomplete".into(), "n0".into())]);
    let unnamed = text.replace("n0 mlx5_0\"", "MT4129 ConnectX7   Mellanox Technologies\"");
    assert_eq!(
        codes(&unnamed),
        [
            ("fabric-host-incomplete".into(), "n0".into()),
            ("fabric-adapter-unnamed".into(), "1 adapters".into())
        ]
    );
}

/// The order does not depend on the order of blocks in the file.
#[test]
fn blocks_in_any_order() {
    let text = rail_optimised(3, 4, 2, 2);
    let mut blocks: Vec<&str> = text.split("\n\n").collect();
    let expect = order(&parse(&text)).join(" ");
    for turn in 1..blocks.len() {
        blocks.rotate_left(turn);
        assert_eq!(order(&parse(&blocks.join("\n\n"))).join(" "), expect);
    }
}

#[test]
fn prompts_of_shells_are_passed_over() {
    let text = "[root@n1 ~]# ibnetdiscover\nSwitch 8 \"S1\"\n[1] \"H1\"[1]\n[root@n1 ~]#\n";
    assert_eq!(parse(text).links(), 1);
}

#[test]
fn a_managers_host_makes_no_leaf() {
    let mut text = rail_optimised(2, 8, 1, 2);
    text.push_str("Ca\t1 \"H-ufm\"\t# \"ufm mlx5_0\"\n[1](b)\t\"S-0\"[64]\t# lid 1 lmc 0 \"MF0;x:Q/U1\" lid 2 4xNDR\n");
    let fabric = parse(&text);
    let tiers: Vec<_> = fabric.tiers().iter().map(|tier| (tier.tier, tier.switches)).collect();
    assert_eq!(tiers, [(1, 2), (2, 2)]);
    assert_eq!(order(&fabric).last(), Some(&"ufm"));
}

/// Routers of a group are linked all to all, groups by single links.
#[test]
fn dragonfly_by_group() {
    let (groups, routers) = (4_usize, 4_usize);
    let mut text = String::new();
    for group in 0..groups {
        for router in 0..routers {
            text.push_str(&format!("Switch 32 \"S-{group}{router}\"\n"));
            // Names run across groups, so that only links tell them.
            for host in 0..2 {
                text.push_str(&format!(
                    "[{}] \"n{}\"[1]\n",
                    host + 1,
                    (host * routers + router) * groups + group
                ));
            }
            for other in (0..routers).filter(|other| *other != router) {
                text.push_str(&format!("[{}] \"S-{group}{other}\"[{}]\n", 10 + other, 10 + router));
            }
            // Router r of group g leads to group r; of the pair, each group's router of the other's number.
            if router != group {
                text.push_str(&format!("[20] \"S-{router}{group}\"[20]\n"));
            }
            text.push('\n');
        }
    }
    let fabric = parse(&text);
    let levels = fabric.levels();
    assert_eq!(levels.names, ["leaf", "group of tier 1", "between tier 1"]);
    let group_of = |name: &str| name[1..].parse::<usize>().unwrap() % groups;
    let in_order: Vec<usize> = order(&fabric).into_iter().map(group_of).collect();
    let expect: Vec<usize> = (0..groups).flat_map(|group| core::iter::repeat_n(group, 8)).collect();
    assert_eq!(in_order, expect);
}

#[test]
fn port_lists() {
    let fabric = parse(
        "CA   134  1 0x7c01 4x EDR - SW  1719 10 0x7ce0 ( 'o1 HCA-1' - 'leaf' )\n\
         CA   135  1 0x7c02 4x EDR - SW  1719 11 0x7ce0 ( 'o2 HCA-1' - 'leaf' )\n\
         SW  1719 10 0x7ce0 4x EDR - CA   134  1 0x7c01 ( 'leaf' - 'o1 HCA-1' )\n\
         SW  1719  1 0x7ce0 4x EDR - SW  1516  1 0x7cf0 ( 'leaf' - 'spine' )\n\
         SW  1719 37 0x7ce0 4x ???                                    'leaf'\n",
    );
    let names: Vec<_> = fabric.switches.iter().map(|switch| (&*switch.name, switch.tier)).collect();
    assert_eq!(names, [("leaf", Some(1)), ("spine", Some(2))]);
    assert_eq!((fabric.links(), fabric.hosts.len()), (3, 2));
    assert_eq!(fabric.hosts[0].nics[0].mbit, Some(100_000));
    assert_eq!(fabric.notes.len(), 3, "{:?}", fabric.notes);
}

#[test]
fn slurm_trees_and_blocks() {
    let fabric = parse(
        "# c\nSwitchName=root Switches=s[1-2] # top\nswitchname=s1 nodes=\"n[3-4]\" LinkSpeed=9\nSwitchName=s2 \\\n Nodes=n[1-2],m\n",
    );
    let tiers: Vec<_> = fabric.switches.iter().map(|switch| (&*switch.name, switch.tier)).collect();
    assert_eq!(tiers, [("root", Some(2)), ("s1", Some(1)), ("s2", Some(1))]);
    assert_eq!(order(&fabric), ["m", "n1", "n2", "n3", "n4"]);
    assert_eq!(fabric.levels().names, ["leaf", "tier 2"]);

    let fabric = parse(
        "BlockName=b1 Nodes=n[5-8]\nBlockName=b2 Nodes=n[1-4]\nBlockName=b3 Nodes=n[9-12]\nBlockName=b4 Nodes=n[13-16]\nBlockSizes=4,8,16\n",
    );
    let levels = fabric.levels();
    assert_eq!(levels.names, ["block", "blocks of 8", "blocks of 16"]);
    assert_eq!(order(&fabric)[..6], ["n1", "n2", "n3", "n4", "n5", "n6"]);
    let ring = |order: &[usize]| -> Vec<(usize, usize)> {
        (0..order.len()).map(|at| (order[at], order[(at + 1) % order.len()])).collect()
    };
    let crossings = levels.count(ring(levels.order()));
    assert_eq!(crossings, Crossings { by_level: alloc::vec![12, 2, 2], apart: 0 });
}

#[test]
fn a_tree_without_a_common_root_has_hosts_apart() {
    let fabric = parse("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n");
    let levels = fabric.levels();
    assert_eq!(levels.meet(0, 1), Some(0));
    assert_eq!(levels.meet(1, 2), None);
}

#[test]
fn slurm_yaml_by_name_and_default() {
    let json = r#"[
        {"topology": "t1", "tree": {"switches": [{"switch": "s", "nodes": "a[1-2]"}]}},
        {"topology": "t2", "cluster_default": true,
         "block": {"block_sizes": [2, 4], "blocks": [{"block": "b1", "nodes": "n[1-2]"}, {"block": "b2", "nodes": "n[3-4]"}]}},
        {"topology": "t3", "flat": true}]"#;
    let topologies: Vec<slurm::SlurmTopology> = serde_json::from_str(json).unwrap();
    let names = |wanted| {
        let fabric = slurm::from_yaml(&topologies, wanted).unwrap();
        fuzz::sound(&fabric);
        (fabric.hosts.len(), fabric.switches.len(), fabric.blocks.len())
    };
    assert_eq!(names(None), (4, 0, 2));
    assert_eq!(names(Some("t1")), (2, 1, 0));
    let why =
        |of: &[slurm::SlurmTopology], wanted| slurm::from_yaml(of, wanted).unwrap_err().reason;
    assert_eq!(why(&topologies, Some("t3")), "topology 't3' is no tree and has no blocks");
    let unknown = why(&topologies, Some("t9"));
    assert!(unknown.contains("no topology 't9'") && unknown.contains("t1, t2"), "{unknown}");
    assert!(why(&topologies[2..], None).contains("none is a tree"));
}

#[test]
fn topographs_graph() {
    let fabric = parse(
        r#"{"instances": [
            {"id": "i3", "network_layers": ["l2", "s1"], "labels": {"accelerator.topograph.run/domain": "nvl-1"}},
            {"id": "i1", "network_layers": ["l1", "s1"], "labels": {"accelerator.topograph.run/domain": "nvl-1"}},
            {"id": "i2", "network_layers": ["l2", "s1"], "labels": {"accelerator.topograph.run/domain": "nvl-2"}},
            {"id": "j0", "network_layers": [], "attributes": {"nvlink": "nvl-9"}}]}"#,
    );
    assert_eq!((fabric.switches.len(), fabric.blocks.len()), (3, 3));
    // Blocks above all: i3 stays with i1 though it shares i2's leaf.
    assert_eq!(order(&fabric), ["i1", "i3", "i2", "j0"]);
    assert_eq!(fabric.levels().names, ["block", "leaf", "tier 2"]);
}

#[test]
fn lldp_in_its_forms() {
    let neighbour = |leaf: &str| {
        format!(
            r#"{{"via": "LLDP", "chassis": {{"{leaf}": {{"id": {{"type": "mac", "value": "{leaf}:00"}}}}}}, "port": {{"descr": "swp1"}}}}"#
        )
    };
    let list = format!(
        r#"{{"lldp": {{"interface": [{{"eth1": {}}}, {{"eth0": {}}}]}}}}"#,
        neighbour("leaf-2"),
        neighbour("leaf-1")
    );
    let object = format!(r#"{{"lldp": {{"interface": {{"eth0": {}}}}}}}"#, neighbour("leaf-1"));
    let json0 = r#"{"lldp": [{"interface": [{"name": "eth0", "chassis": [{"id": [{"type": "mac", "value": "leaf-1:00"}],
        "name": [{"value": "leaf-1"}]}]}]}]}"#;
    let nameless = r#"{"lldp": {"interface": {"eth0": {"chassis": {"id": {"type": "mac", "value": "leaf-1:00"}}}}}}"#;
    let seen = |text: &str| -> Vec<(String, String)> {
        let fabric = parse(text);
        let nics = fabric.hosts[0].nics.iter();
        nics.map(|nic| (nic.name.clone().unwrap(), fabric.switches[nic.leaf.unwrap()].name.clone()))
            .collect()
    };
    let pair = |nic: &str, leaf: &str| (nic.to_owned(), leaf.to_owned());
    assert_eq!(seen(&list), [pair("eth0", "leaf-1"), pair("eth1", "leaf-2")]);
    assert_eq!(seen(&object), [pair("eth0", "leaf-1")]);
    assert_eq!(seen(json0), [pair("eth0", "leaf-1")]);
    assert_eq!(seen(nameless), [pair("eth0", "leaf-1:00")]);
    let (mut a, mut b) = (parse(&list), parse(&object));
    a.hosts[0].name = "a".into();
    b.hosts[0].name = "b".into();
    let both = a.join(b);
    fuzz::sound(&both);
    assert_eq!((both.hosts.len(), both.switches.len()), (2, 2));
    assert_eq!(both.levels().meet(0, 1), Some(0));
}

#[test]
fn refusals_name_the_line() {
    refused("", "known are ibnetdiscover");
    refused("LLDP neighbors:\n", "line 1: lldpctl's text form");
    refused("{\"a\": 1}", "neither 'instances'");
    refused("{\"instances\": [{\"id\": 3}]}", "topograph graph JSON, line 1");
    refused("{\"lldp\": {}}", "no interface hears a neighbour");
    refused("Switch 8 \"S1\"\n[1] \"H1\"\n", "line 2: '[1] \"H1\"' names no port of the far end");
    refused("Switch 8 \"S1\"\n[1] x\n", "names no far end");
    refused("Switch 8 \"S1\"\n[x] \"H1\"[1]\n", "line 2");
    refused("[1] \"H1\"[1]\nSwitch 8 \"S1\"\n", "line 1: a port before any node");
    refused("Switch 8 \"S1\"\n\nSwitch 8 \"S1\"\n", "line 3: 'S1' is also at line 1");
    refused("Switch 8 \"S1\"\n[1] \"H1\"[1]\n[1] \"H2\"[1]\n", "line 3: port 1 is also at line 2");
    refused(
        "Switch 8 \"S1\"\n[1] \"H1\"[1]\n\nCa 1 \"H1\"\n[1] \"S1\"[2]\n",
        "which at line 5 leads elsewhere",
    );
    refused("Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H1\"[1]\n", "has this cable and that of line");
    refused("SW 1 1 0x1 4x EDR - XX\n", "line 1: no far end");
    refused("SW 1 1 0x1 4x EDR - CA 2 1 0x1 ( 'a' - 'b' )\n", "is a ");
    refused("SwitchName=a Nodes=n[1-\n", "line 1: 'n[1-': a bracket is not closed");
    refused(
        "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n",
        "line 2: switch 'a' is also at line 1",
    );
    refused("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "is below itself");
    refused("SwitchName=a Switches=a\n", "is below itself");
    refused("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", "line 2: host 'n1' is in block 'a'");
    refused("BlockName=a Nodes=n1\nBlockSizes=0\n", "line 2: BlockSizes");
    refused("SwitchName=a BlockName=b\n", "two names");
    refused("SwitchName=a Nodes=n1\nNodes=n2\n", "line 2: nodes or switches of nothing");
    refused(
        &"BlockName=b Nodes=n[0-999999]\n".repeat(9),
        "line 5: lists of more than 4194304 names",
    );
    let deep: String = (0..100).map(|n| format!("SwitchName=s{} Switches=s{n}\n", n + 1)).collect();
    refused(&deep, "tiers; at most 64");
}

#[test]
fn names_of_switches_differ() {
    let text = "Switch 8 \"S-1\" # \"MF0;core:CS8500/L01/U1\" base\n\nSwitch 8 \"S-2\" # \"MF0;core:CS8500/L02/U1\" base\n\n\
                Switch 8 \"S-3\" # \"Infiniscale-IV Mellanox Technologies\"\n\nSwitch 8 \"S-4\" # \"Infiniscale-IV Mellanox Technologies\"\n";
    let fabric = parse(text);
    let names: BTreeSet<&str> = fabric.switches.iter().map(|switch| &*switch.name).collect();
    let expect = [
        "Infiniscale-IV Mellanox Technologies S-3",
        "Infiniscale-IV Mellanox Technologies S-4",
        "core/L01/U1",
        "core/L02/U1",
    ];
    assert!(names.into_iter().eq(expect));
}

mod any {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::fuzz::fabric(&bytes);
        }

        /// Words of the forms, in any order.
        #[test]
        fn text_like(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "Switch 8 \"S1\"\n", "Switch 8 \"S2\" # \"MF0;a:b/c/d\"\n", "Ca 1 \"H1\" # \"n1 mlx5_0\"\n", "Hca 2 \"H2\"\n", "[1]", "[2]",
            " \"S1\"", " \"S2\"", " \"H1\"", "[1] \"S1\"[2]\n", "[2] \"S2\"[1]\n", "[3] \"H2\"[1] # \"n2 m\" 4xHDR\n", "\n",
            "CA 1 1 0x1 4x EDR - SW 2 1 0x2 ( 'a b' - 'c' )\n", "SW 2 1 0x2 4x EDR - SW 3 1 0x3 ( 'c' - 'd' )\n", "SW 2 9 0x2 4x ??? 'c'\n",
            "SwitchName=a ", "SwitchName=b ", "Switches=b", "Switches=a", " Nodes=n[1-3]", " Nodes=n2", "BlockName=x ", "BlockSizes=1,2\n", "\\\n",
            "{\"instances\":[", "{\"id\":\"a\",\"network_layers\":[\"b\",\"c\"]}", "{\"id\":\"d\",\"network_layers\":[\"c\",\"b\"]}", ",", "]}",
            "{\"lldp\":{\"interface\":{\"e\":{\"chassis\":{\"s\":{}}}}}}",
        ]), 0..30)) {
            super::fuzz::fabric(pieces.concat().as_bytes());
        }
    }
}
