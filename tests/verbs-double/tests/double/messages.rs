//! What requests do: bytes, completions, and in which order.

use crate::abi::{SendWr, Wc, opcode, send_flag, status, wc_opcode};
use crate::raw::{End, Verbs, bytes, pair, request, write_to};

fn ids(wcs: &[Wc]) -> Vec<(u64, u32)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn every_kind_of_request_moves_its_bytes() {
    for config in ["", "SEED=7\n", "LINK_LAYER=ib\nPLAIN=1\n"] {
        let verbs = Verbs::load(config);
        let (mut left, mut right) = pair(&verbs, |_| {});
        left.memory[..2048].iter_mut().zip(1_u32..).for_each(|(byte, n)| *byte = (n % 251) as u8);
        right.memory[3000..3004].copy_from_slice(b"read");
        let expected = bytes(&left, 0, 2048);
        let pieces = [left.piece(100, 900), left.piece(0, 100)];

        assert_eq!(left.post(&write_to(&right, 8, &pieces)), 0);
        let wcs = left.await_polled(1);
        assert_eq!((wcs[0].status, wcs[0].opcode), (status::SUCCESS, wc_opcode::RDMA_WRITE));
        assert_eq!(bytes(&right, 8, 900), expected[100..1000]);
        assert_eq!(bytes(&right, 908, 100), expected[..100]);
        assert!(right.poll().is_empty());

        assert_eq!(right.receive(31, &[]), 0);
        let write = write_to(&right, 2000, &pieces[1..]);
        let write = SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, imm_data: 0x0102_0304, ..write };
        assert_eq!(left.post(&write), 0);
        let wc = right.await_polled(1)[0];
        assert_eq!((wc.wr_id, wc.opcode), (31, wc_opcode::RECV_RDMA_WITH_IMM));
        assert_eq!((wc.byte_len, wc.imm_data, wc.wc_flags), (100, 0x0102_0304, 2));
        assert_eq!((wc.qp_num, wc.src_qp), (right.number(), left.number()));
        assert_eq!(bytes(&right, 2000, 100), expected[..100]);

        let into = [right.piece(3500, 10), right.piece(3600, 100)];
        assert_eq!(right.receive(32, &into), 0);
        let send = SendWr { imm_data: 9, ..request(opcode::SEND_WITH_IMM, &pieces[1..]) };
        assert_eq!(left.post(&send), 0);
        let wc = right.await_polled(1)[0];
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data), (32, wc_opcode::RECV, 100, 9));
        assert_eq!(bytes(&right, 3500, 10), expected[..10]);
        assert_eq!(bytes(&right, 3600, 90), expected[10..100]);

        let into = [left.piece(4000, 4)];
        let read = SendWr { opcode: opcode::RDMA_READ, ..write_to(&right, 3000, &into) };
        assert_eq!(left.post(&read), 0);
        let wc = *left.await_polled(3).last().unwrap();
        assert_eq!((wc.opcode, wc.byte_len), (wc_opcode::RDMA_READ, 4));
        assert_eq!(bytes(&left, 4000, 4), b"read");
        left.destroy();
        right.destroy();
        assert_eq!(verbs.report()["misuse"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn inline_bytes_are_taken_at_once_and_need_no_key() {
    // The receiver is not ready, so the message waits while its memory changes.
    let verbs = Verbs::load("");
    let (mut left, right) = pair(&verbs, |_| {});
    left.memory[..4].copy_from_slice(b"then");
    let piece = [crate::abi::Sge { lkey: 0, ..left.piece(0, 4) }];
    let flags = send_flag::INLINE | send_flag::SIGNALED;
    assert_eq!(left.post(&SendWr { send_flags: flags, ..request(opcode::SEND, &piece) }), 0);
    left.memory[..4].copy_from_slice(b"now!");
    assert_eq!(right.receive(1, &[right.piece(0, 8)]), 0);
    assert_eq!(right.await_polled(1)[0].byte_len, 4);
    assert_eq!(bytes(&right, 0, 4), b"then");
    assert_ne!(verbs.report()["not_ready"], 0);
}

#[test]
fn a_completion_frees_the_places_of_those_before_it_when_it_is_polled() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    for round in 0..3 {
        for number in 0..4_u64 {
            let flags = if number == 3 { send_flag::SIGNALED } else { 0 };
            let piece = [left.piece(0, 1)];
            let write = SendWr { wr_id: number, send_flags: flags, ..write_to(&right, 0, &piece) };
            assert_eq!(left.post(&write), 0, "round {round}");
        }
        assert_eq!(left.post(&write_to(&right, 0, &[])), libc::ENOMEM);
        assert_eq!(ids(&left.poll()), [(3, status::SUCCESS)]);
    }
}

#[test]
fn seeds_delay_without_changing_the_order_within_a_queue_pair() {
    for seed in 1..20 {
        let verbs = Verbs::load(&format!("SEED={seed}\n"));
        let (left, right) = pair(&verbs, |_| {});
        for id in 0..4 {
            assert_eq!(right.receive(id, &[]), 0);
            let send = SendWr {
                wr_id: id,
                imm_data: u32::try_from(id).unwrap(),
                ..request(opcode::SEND_WITH_IMM, &[])
            };
            assert_eq!(left.post(&send), 0);
        }
        let sent: Vec<u64> = left.await_polled(4).iter().map(|wc| wc.wr_id).collect();
        let got: Vec<u32> = right.await_polled(4).iter().map(|wc| wc.imm_data).collect();
        assert_eq!((sent, got), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    }
}

#[test]
fn roce_reaches_by_an_address_of_the_version_it_sends_from() {
    let verbs = Verbs::load("LINK_LAYER=roce\nGIDS=ip4-v1,ip4-v2,ip6-v1\nHASTE=1000\n");
    // fd00::1:0:0:0:(number + 1) is there in version 1 alone.
    let v4 = |number: u64| [0, (0xffff_0a00_0101_u64 + number).to_be()];
    let v6 = |number: u64| [0xfd00_0000_0000_0001_u64.to_be(), (number + 1).to_be()];
    for (index, gid, expected) in [
        (1, v4(1), status::SUCCESS),
        (0, v4(1), status::SUCCESS),
        (2, v6(1), status::SUCCESS),
        (1, v6(1), status::RETRY_EXC_ERR),
        (1, v4(7), status::RETRY_EXC_ERR),
    ] {
        let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
        for (near, far, dgid) in [(&left, &right, gid), (&right, &left, v4(0))] {
            let mut attr = near.attr(far);
            attr.ah_attr.is_global = 1;
            (attr.ah_attr.grh.dgid, attr.ah_attr.grh.sgid_index) = (dgid, index);
            near.connect(&attr);
        }
        assert_eq!(left.post(&write_to(&right, 0, &[left.piece(0, 4)])), 0);
        assert_eq!(left.await_polled(1)[0].status, expected, "{index} {gid:x?}");
        left.destroy();
        right.destroy();
    }
}
