//! What is taken for granted of the library's structures, as assertions a C compiler can check against its header.
#![cfg(test)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use super::*;

/// Rust's structure, the header's, and fields by the header's names. `whole`: the library reads or writes all of it, so sizes are
/// equal, too.
macro_rules! structures {
    ($list:expr; $($kind:ident $ours:ident = $theirs:literal { $($field:ident as $name:literal),* $(,)? })*) => {
        $(
            structures!(@size $kind, $list, $ours, $theirs);
            $($list.push((
                format!("offsetof(struct {}, {})", $theirs, $name),
                offset_of!($ours, $field) as u64,
            ));)*
        )*
    };
    (@size whole, $list:expr, $ours:ident, $theirs:literal) => {
        $list.push((format!("sizeof(struct {})", $theirs), size_of::<$ours>() as u64));
    };
    (@size begins, $list:expr, $ours:ident, $theirs:literal) => {
        $list.push((format!("sizeof(struct {}) >= {}", $theirs, size_of::<$ours>()), 1));
    };
}

/// C expressions with the values they must have.
fn facts() -> Vec<(String, u64)> {
    let mut list = Vec::new();
    structures! { list;
        begins RawContext = "ibv_context" {
            device as "device", ops as "ops", cmd_fd as "cmd_fd", async_fd as "async_fd",
        }
        whole RawEvent = "ibv_async_event" {
            element as "element.port_num", element as "element.qp", element as "element.cq",
            event_type as "event_type",
        }
        whole ContextOps = "ibv_context_ops" {
            poll_cq as "poll_cq", req_notify_cq as "req_notify_cq",
            post_send as "post_send", post_recv as "post_recv",
        }
        whole PortAttributes = "ibv_port_attr" {
            state as "state", active_mtu as "active_mtu", gid_tbl_len as "gid_tbl_len",
            max_msg_sz as "max_msg_sz", lid as "lid", link_layer as "link_layer",
        }
        whole Completion = "ibv_wc" {
            wr_id as "wr_id", status as "status", opcode as "opcode", byte_len as "byte_len",
            vendor_err as "vendor_err", imm_data as "imm_data", qp_num as "qp_num", wc_flags as "wc_flags",
        }
        whole RawRegion = "ibv_mr" { lkey as "lkey", rkey as "rkey" }
        whole RawChannel = "ibv_comp_channel" { fd as "fd" }
        begins RawPair = "ibv_qp" { qp_num as "qp_num" }
        whole PairLimits = "ibv_qp_cap" {
            max_send_wr as "max_send_wr", max_inline_data as "max_inline_data",
        }
        whole PairSetup = "ibv_qp_init_attr" {
            send_cq as "send_cq", recv_cq as "recv_cq", srq as "srq", cap as "cap",
            qp_type as "qp_type", sq_sig_all as "sq_sig_all",
        }
        whole GlobalRoute = "ibv_global_route" {
            dgid as "dgid", sgid_index as "sgid_index", hop_limit as "hop_limit",
            traffic_class as "traffic_class",
        }
        whole Address = "ibv_ah_attr" {
            grh as "grh", dlid as "dlid", sl as "sl", is_global as "is_global",
            port_num as "port_num",
        }
        whole PairAttributes = "ibv_qp_attr" {
            qp_state as "qp_state", path_mtu as "path_mtu", rq_psn as "rq_psn",
            sq_psn as "sq_psn", dest_qp_num as "dest_qp_num",
            qp_access_flags as "qp_access_flags", ah_attr as "ah_attr",
            pkey_index as "pkey_index", max_rd_atomic as "max_rd_atomic",
            max_dest_rd_atomic as "max_dest_rd_atomic", min_rnr_timer as "min_rnr_timer",
            port_num as "port_num", timeout as "timeout", retry_cnt as "retry_cnt",
            rnr_retry as "rnr_retry",
        }
        whole Piece = "ibv_sge" { addr as "addr", length as "length", lkey as "lkey" }
        whole SendWork = "ibv_send_wr" {
            wr_id as "wr_id", next as "next", sg_list as "sg_list", num_sge as "num_sge",
            opcode as "opcode", send_flags as "send_flags", imm_data as "imm_data",
            remote_addr as "wr.rdma.remote_addr", rkey as "wr.rdma.rkey",
        }
        whole ReceiveWork = "ibv_recv_wr" {
            wr_id as "wr_id", next as "next", sg_list as "sg_list", num_sge as "num_sge",
        }
    }
    let numbers = [
        ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM),
        ("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM),
        ("IBV_SEND_SIGNALED", SEND_SIGNALED.cast_signed()),
        ("IBV_SEND_INLINE", SEND_INLINE.cast_signed()),
        ("IBV_QPT_RC", QPT_RC),
        ("IBV_QPS_INIT", QPS_INIT),
        ("IBV_QPS_RTR", QPS_RTR),
        ("IBV_QPS_RTS", QPS_RTS),
        ("IBV_QPS_ERR", QPS_ERR),
        ("IBV_QP_STATE", QP_STATE),
        ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX),
        ("IBV_QP_PORT", QP_PORT),
        ("IBV_QP_AV", QP_AV),
        ("IBV_QP_PATH_MTU", QP_PATH_MTU),
        ("IBV_QP_TIMEOUT", QP_TIMEOUT),
        ("IBV_QP_RETRY_CNT", QP_RETRY_CNT),
        ("IBV_QP_RNR_RETRY", QP_RNR_RETRY),
        ("IBV_QP_RQ_PSN", QP_RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC),
        ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", QP_SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC),
        ("IBV_QP_DEST_QPN", QP_DEST_QPN),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE),
        ("IBV_EVENT_CQ_ERR", CQ_ERR),
        ("IBV_EVENT_QP_FATAL", QP_FIRST),
        ("IBV_EVENT_PATH_MIG_ERR", QP_LAST),
        ("IBV_EVENT_PORT_ACTIVE", PORT_FIRST),
        ("IBV_EVENT_SM_CHANGE", PORT_LAST),
        ("IBV_EVENT_QP_LAST_WQE_REACHED", QP_LAST_WQE_REACHED),
        ("IBV_EVENT_CLIENT_REREGISTER", CLIENT_REREGISTER),
        ("IBV_EVENT_GID_CHANGE", GID_CHANGE),
        ("IBV_PORT_ACTIVE", PORT_ACTIVE),
        ("IBV_LINK_LAYER_INFINIBAND", LINK_LAYER_INFINIBAND.into()),
        ("IBV_WC_RECV", WC_RECV),
        ("IBV_WC_WR_FLUSH_ERR", WC_WR_FLUSH_ERR),
        ("IBV_WC_RETRY_EXC_ERR", WC_RETRY_EXC_ERR),
    ];
    let numbers =
        numbers.into_iter().map(|(name, value)| (name.to_owned(), u64::from(value.unsigned_abs())));
    list.extend(numbers);
    for words in [&super::super::status::WORDS[..], &super::super::events::WORDS] {
        let named = words.iter().zip(0..);
        list.extend(named.map(|((name, _), number)| ((*name).to_owned(), number)));
    }
    list
}

/// What the compiler says of a program that asserts them; `None` without a compiler or the header.
fn compiled(facts: &[(String, u64)]) -> Option<Result<(), String>> {
    let mut program = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    for (expression, value) in facts {
        writeln!(program, "_Static_assert(({expression}) == {value}, \"{expression}\");").unwrap();
    }
    let run = |program: &str| {
        let mut child = Command::new("cc")
            .args(["-fsyntax-only", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        child.stdin.take()?.write_all(program.as_bytes()).ok()?;
        child.wait_with_output().ok()
    };
    let header = run("#include <infiniband/verbs.h>\n")?;
    if !header.status.success() {
        return None;
    }
    let output = run(&program)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(said) })
}

#[test]
fn structures_are_those_of_the_header() {
    let facts = facts();
    let Some(said) = compiled(&facts) else {
        let why = "skipped: no C compiler, or no infiniband/verbs.h (package libibverbs-dev)";
        return writeln!(io::stderr(), "{why}").unwrap();
    };
    said.unwrap();
    // Each is looked at: one that is wrong is found, whichever it is.
    let mut wrong = facts.clone();
    for (_, value) in &mut wrong {
        *value += 1;
    }
    let said = compiled(&wrong).unwrap().unwrap_err();
    for (expression, _) in &facts {
        assert!(said.contains(expression.as_str()), "{expression}: {said}");
    }
}
