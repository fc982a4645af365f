//! Devices, ports and GIDs.

use crate::abi::{DeviceAttr, GidEntry, PortAttr, gid_type};
use crate::raw::{Verbs, at, entry, errno, int, text};

#[test]
fn devices_and_ports_are_as_configured() {
    let verbs = Verbs::load("DEVICES=3\nPORTS=2\nNAMES=ib0,ib1\nMAX_QP_WR=128\nMTU=2048\n");
    let name = |number| text(verbs.call("ibv_get_device_name", &[verbs.device(number)]));
    assert_eq!((name(0), name(1), name(2)), ("ib0".into(), "ib1".into(), "mlx5_2".into()));
    let context = verbs.open(2);
    let mut attr = std::mem::MaybeUninit::<DeviceAttr>::zeroed();
    assert_eq!(int(verbs.call("ibv_query_device", &[at(context), at(attr.as_mut_ptr())])), 0);
    // SAFETY: the call succeeded.
    let attr = unsafe { attr.assume_init() };
    assert_eq!((attr.phys_port_cnt, attr.max_qp_wr), (2, 128));
    let guid = verbs.call("ibv_get_device_guid", &[verbs.device(2)]);
    assert_eq!(attr.node_guid, guid);
    let mut lids = Vec::new();
    for port in [1, 2] {
        let mut told = PortAttr { port_cap_flags2: 9, ..PortAttr::default() };
        assert_eq!(int(verbs.call("ibv_query_port", &[at(context), port, at(&raw mut told)])), 0);
        assert_eq!((told.state, told.active_mtu, told.link_layer), (4, 4, 1));
        // The symbol is of a structure that ends before.
        assert_eq!(told.port_cap_flags2, 9);
        lids.push(told.lid);
    }
    assert_eq!(lids, [5, 6]);
    let mut told = PortAttr::default();
    assert_eq!(
        int(verbs.call("ibv_query_port", &[at(context), 3, at(&raw mut told)])),
        libc::EINVAL
    );
    let mut pkey = 0_u16;
    assert_eq!(int(verbs.call("ibv_query_pkey", &[at(context), 1, 0, at(&raw mut pkey)])), 0);
    assert_eq!(pkey, 0xffff);
    verbs.call("ibv_close_device", &[at(context)]);
    assert_eq!(verbs.report()["left"]["contexts"], 0);
}

#[test]
fn extended_contexts_are_found_as_the_header_looks_for_them() {
    for (config, extended) in [("", true), ("PLAIN=1", false)] {
        let verbs = Verbs::load(config);
        let context = verbs.open(0);
        // SAFETY: a context that is open.
        let compat = unsafe { (*context).abi_compat }.expose_provenance();
        assert_eq!(compat == usize::MAX, extended);
        if extended {
            let offset = std::mem::offset_of!(crate::abi::VerbsContext, context);
            let around =
                context.cast::<u8>().wrapping_sub(offset).cast::<crate::abi::VerbsContext>();
            // SAFETY: the context lies at the end of an extended one, as its mark says.
            let around = unsafe { &*around };
            let (size, query_port) = (around.size, around.query_port);
            assert_eq!(size, size_of::<crate::abi::VerbsContext>());
            let mut told = PortAttr { port_cap_flags2: 9, ..PortAttr::default() };
            let room = size_of::<PortAttr>() as u64;
            assert_eq!(entry(query_port, &[at(context), 1, at(&raw mut told), room]), 0);
            assert_eq!((told.state, told.port_cap_flags2), (4, 0));
        }
    }
}

/// Table entries of port 1: kind and bytes, or what the call answered.
fn gids(verbs: &Verbs, indices: std::ops::Range<u64>) -> Vec<Result<(u32, u128), i32>> {
    let context = verbs.open(0);
    let get = |index| {
        let mut found = GidEntry::default();
        let words = [at(context), 1, index, at(&raw mut found), 0, size_of::<GidEntry>() as u64];
        match int(verbs.call("_ibv_query_gid_ex", &words)) {
            0 => {
                let half = |half: u64| u128::from(u64::from_be(half));
                Ok((found.gid_type, half(found.gid[0]) << 64 | half(found.gid[1])))
            }
            errno => Err(errno),
        }
    };
    indices.map(get).collect()
}

#[test]
fn roce_tables_have_both_versions_and_holes() {
    let verbs = Verbs::load("LINK_LAYER=roce\nGIDS=ll-v1,empty,ip4-v2\n");
    let table = gids(&verbs, 0..4);
    let link_local = table[0].unwrap();
    assert_eq!((link_local.0, link_local.1 >> 112), (gid_type::ROCE_V1, 0xfe80));
    assert_eq!(table[1], Err(libc::ENODATA));
    // 10.0.1.1
    assert_eq!(table[2], Ok((gid_type::ROCE_V2, 0xffff_0a00_0101)));
    assert_eq!(table[3], Err(libc::ENODATA));
    assert_eq!(gids(&verbs, 16..17), [Err(libc::EINVAL)]);
    // The older call reads zeros from what is empty.
    let context = verbs.open(0);
    let mut bytes = [1_u8; 16];
    assert_eq!(int(verbs.call("ibv_query_gid", &[at(context), 1, 1, at(&raw mut bytes)])), 0);
    assert_eq!(bytes, [0; 16]);
    assert_eq!(int(verbs.call("ibv_query_gid", &[at(context), 1, 99, at(&raw mut bytes)])), -1);
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn what_the_kernel_shows_is_shown_elsewhere_and_follows() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let verbs = Verbs::load(&format!("LINK_LAYER=roce\nGIDS=empty,ip4-v2\nSYSFS={place}\n"));
    let _open = verbs.open(0);
    let read = |file: &str| {
        let text = std::fs::read_to_string(folder.path().join("mlx5_0").join(file));
        text.map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    assert_eq!(read("node_type"), "1: CA");
    assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000");
    assert_eq!(read("ports/1/gid_attrs/types/0"), "");
    assert_eq!(read("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0101");
    assert_eq!(read("ports/1/gid_attrs/types/1"), "RoCE v2");
    verbs.set_faults("gid-change:device=0");
    assert_eq!(read("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0181");
}

#[test]
fn infiniband_ports_have_one_gid_by_their_subnet() {
    let verbs = Verbs::load("SUBNETS=3\n");
    let (kind, gid) = gids(&verbs, 0..1)[0].unwrap();
    assert_eq!((kind, gid >> 64), (gid_type::IB, 0xfe80_0000_0000_0003));
}
