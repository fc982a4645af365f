//! The public header, by a C compiler: its offsets against this double's, and its inline functions at work.

use std::path::Path;
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Builds a program against the header and the double, and gives what it prints; none where either is missing.
fn run(source: &str) -> Option<String> {
    if !Path::new(HEADER).exists() || Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: needs a C compiler and libibverbs' header");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    machines::install_verbs_double(directory.path()).unwrap();
    let (file, program) = (directory.path().join("test.c"), directory.path().join("test"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-Wall").arg("-Werror").arg("-o").arg(&program).arg(&file);
    compiler.arg("-L").arg(directory.path()).arg("-l:libibverbs.so.1");
    let built = compiler.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new("timeout")
        .args(["-k", "5", "60"])
        .arg(&program)
        .env("LD_LIBRARY_PATH", directory.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    Some(String::from_utf8(ran.stdout).unwrap())
}

macro_rules! offsets {
    ($($type:ident as $c:literal { $($field:ident as $c_field:literal),* $(,)? })*) => {{
        let mut lines = Vec::new();
        let mut source = String::new();
        $(
            lines.push(format!("{} {}", $c, size_of::<crate::abi::$type>()));
            source += &format!("printf(\"{0} %zu\\n\", sizeof({0}));\n", $c);
            $(
                lines.push(format!("{} {} {}", $c, $c_field, std::mem::offset_of!(crate::abi::$type, $field)));
                source += &format!("printf(\"{0} {1} %zu\\n\", offsetof({0}, {1}));\n", $c, $c_field);
            )*
        )*
        (lines, source)
    }};
}

#[test]
fn structures_are_the_headers() {
    let (lines, body) = offsets! {
        Device as "struct ibv_device" { node_type as "node_type", name as "name", ibdev_path as "ibdev_path" }
        ContextOps as "struct ibv_context_ops" { poll_cq as "poll_cq", req_notify_cq as "req_notify_cq",
            post_srq_recv as "post_srq_recv", post_send as "post_send", post_recv as "post_recv" }
        Context as "struct ibv_context" { ops as "ops", async_fd as "async_fd", num_comp_vectors as "num_comp_vectors",
            abi_compat as "abi_compat" }
        VerbsContext as "struct verbs_context" { query_port as "query_port", private as "priv",
            query_device_ex as "query_device_ex", size as "sz", context as "context" }
        DeviceAttr as "struct ibv_device_attr" { node_guid as "node_guid", max_qp as "max_qp", max_qp_wr as "max_qp_wr",
            max_sge as "max_sge", max_cqe as "max_cqe", max_mr as "max_mr", max_pkeys as "max_pkeys", phys_port_cnt as "phys_port_cnt" }
        PortAttr as "struct ibv_port_attr" { gid_tbl_len as "gid_tbl_len", lid as "lid", active_speed as "active_speed",
            link_layer as "link_layer", flags as "flags", port_cap_flags2 as "port_cap_flags2" }
        GidEntry as "struct ibv_gid_entry" { gid_index as "gid_index", gid_type as "gid_type", ndev_ifindex as "ndev_ifindex" }
        AsyncEvent as "struct ibv_async_event" { event_type as "event_type" }
        Wc as "struct ibv_wc" { status as "status", opcode as "opcode", byte_len as "byte_len", imm_data as "imm_data",
            qp_num as "qp_num", wc_flags as "wc_flags", slid as "slid", dlid_path_bits as "dlid_path_bits" }
        Pd as "struct ibv_pd" { handle as "handle" }
        Mr as "struct ibv_mr" { length as "length", lkey as "lkey", rkey as "rkey" }
        AhAttr as "struct ibv_ah_attr" { dlid as "dlid", is_global as "is_global", port_num as "port_num" }
        GlobalRoute as "struct ibv_global_route" { sgid_index as "sgid_index", traffic_class as "traffic_class" }
        QpInitAttr as "struct ibv_qp_init_attr" { cap as "cap", qp_type as "qp_type", sq_sig_all as "sq_sig_all" }
        QpAttr as "struct ibv_qp_attr" { path_mtu as "path_mtu", rq_psn as "rq_psn", qp_access_flags as "qp_access_flags",
            ah_attr as "ah_attr", alt_ah_attr as "alt_ah_attr", pkey_index as "pkey_index", max_rd_atomic as "max_rd_atomic",
            port_num as "port_num", timeout as "timeout", rate_limit as "rate_limit" }
        Sge as "struct ibv_sge" { length as "length", lkey as "lkey" }
        SendWr as "struct ibv_send_wr" { sg_list as "sg_list", opcode as "opcode", send_flags as "send_flags",
            imm_data as "imm_data", remote_addr as "wr.rdma.remote_addr", rkey as "wr.rdma.rkey", xrc as "qp_type" }
        RecvWr as "struct ibv_recv_wr" { sg_list as "sg_list", num_sge as "num_sge" }
        Qp as "struct ibv_qp" { send_cq as "send_cq", qp_num as "qp_num", state as "state", mutex as "mutex",
            events_completed as "events_completed" }
        CompChannel as "struct ibv_comp_channel" { fd as "fd", refcnt as "refcnt" }
        Cq as "struct ibv_cq" { channel as "channel", cqe as "cqe", mutex as "mutex", async_events_completed as "async_events_completed" }
    };
    let source = format!(
        "#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{\n{body}return 0; }}\n"
    );
    let Some(printed) = run(&source) else { return };
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn numbers_are_the_headers() {
    use crate::abi::{access, event, mask, opcode, send_flag, state, status, wc_opcode};
    let numbers = [
        ("IBV_ACCESS_LOCAL_WRITE", i64::from(access::LOCAL_WRITE)),
        ("IBV_ACCESS_REMOTE_ATOMIC", access::REMOTE_ATOMIC.into()),
        ("IBV_ACCESS_OPTIONAL_RANGE", access::OPTIONAL.into()),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", opcode::RDMA_WRITE_WITH_IMM.into()),
        ("IBV_WR_RDMA_READ", opcode::RDMA_READ.into()),
        ("IBV_SEND_INLINE", send_flag::INLINE.into()),
        ("IBV_SEND_SOLICITED", send_flag::SOLICITED.into()),
        ("IBV_WC_RECV", wc_opcode::RECV.into()),
        ("IBV_WC_RECV_RDMA_WITH_IMM", wc_opcode::RECV_RDMA_WITH_IMM.into()),
        ("IBV_WC_WITH_IMM", crate::abi::WC_WITH_IMM.into()),
        ("IBV_WC_LOC_PROT_ERR", status::LOC_PROT_ERR.into()),
        ("IBV_WC_REM_INV_REQ_ERR", status::REM_INV_REQ_ERR.into()),
        ("IBV_WC_RNR_RETRY_EXC_ERR", status::RNR_RETRY_EXC_ERR.into()),
        ("IBV_WC_TM_RNDV_INCOMPLETE + 1", status::COUNT.into()),
        ("IBV_EVENT_QP_ACCESS_ERR", event::QP_ACCESS_ERR.into()),
        ("IBV_EVENT_DEVICE_FATAL", event::DEVICE_FATAL.into()),
        ("IBV_EVENT_LID_CHANGE", event::LID_CHANGE.into()),
        ("IBV_EVENT_GID_CHANGE", event::GID_CHANGE.into()),
        ("IBV_EVENT_CLIENT_REREGISTER", event::CLIENT_REREGISTER.into()),
        ("IBV_QPS_ERR", state::ERR.into()),
        ("IBV_QP_DEST_QPN", mask::DEST_QPN.into()),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC.into()),
    ];
    let body: String = numbers
        .iter()
        .map(|(name, _)| format!("printf(\"%lld\\n\", (long long)({name}));\n"))
        .collect();
    let source = format!(
        "#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{\n{body}return 0; }}\n"
    );
    let Some(printed) = run(&source) else { return };
    for (line, (name, value)) in printed.lines().zip(numbers) {
        assert_eq!(line, value.to_string(), "{name}");
    }
}

#[test]
fn a_program_made_of_the_header_sends_and_receives() {
    let Some(printed) = run(PROGRAM) else { return };
    assert_eq!(
        printed,
        "2 devices, mlx5_0\nstate 4, flags2 0\nno td\nsent 16\ngot 128 5 deadbeef hello\n"
    );
}

/// Two queue pairs of two devices; everything through the header's own names.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <infiniband/verbs.h>
#define NEED(what) do { if (!(what)) { printf("failed: %s\n", #what); exit(1); } } while (0)

struct end { struct ibv_context *context; struct ibv_pd *pd; struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *mr;
             struct ibv_port_attr port; char memory[64]; };

static void make(struct end *e, struct ibv_device *device) {
    NEED(e->context = ibv_open_device(device));
    NEED(!ibv_query_port(e->context, 1, &e->port));
    NEED(e->pd = ibv_alloc_pd(e->context));
    NEED(e->cq = ibv_create_cq(e->context, 8, NULL, NULL, 0));
    NEED(e->mr = ibv_reg_mr(e->pd, e->memory, sizeof e->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
    struct ibv_qp_init_attr init = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    NEED(e->qp = ibv_create_qp(e->pd, &init));
}

static void join(struct end *e, struct end *far) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    NEED(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = far->qp->qp_num,
        .ah_attr = { .dlid = far->port.lid, .port_num = 1 }, .min_rnr_timer = 12 };
    NEED(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
    NEED(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC));
    NEED(e->qp->state == IBV_QPS_RTS);
}

int main(void) {
    static struct end a, b;
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    NEED(list);
    printf("%d devices, %s\n", count, ibv_get_device_name(list[0]));
    make(&a, list[0]);
    make(&b, list[1]);
    ibv_free_device_list(list);
    printf("state %d, flags2 %d\n", a.port.state, a.port.port_cap_flags2);
    struct ibv_td_init_attr td = { 0 };
    if (!ibv_alloc_td(a.context, &td) && errno == EOPNOTSUPP) printf("no td\n");
    join(&a, &b);
    join(&b, &a);
    struct ibv_sge into = { (uintptr_t)b.memory, sizeof b.memory, b.mr->lkey };
    struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &into, .num_sge = 1 }, *bad_recv;
    NEED(!ibv_post_recv(b.qp, &recv, &bad_recv));
    strcpy(a.memory, "hello");
    struct ibv_sge from = { (uintptr_t)a.memory, 16, a.mr->lkey };
    struct ibv_send_wr send = { .wr_id = 16, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED, .imm_data = 0xdeadbeef }, *bad_send;
    NEED(!ibv_post_send(a.qp, &send, &bad_send));
    struct ibv_wc wc;
    NEED(ibv_poll_cq(a.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    printf("sent %llu\n", (unsigned long long)wc.wr_id);
    NEED(ibv_poll_cq(b.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 16);
    printf("got %d %llu %x %s\n", wc.opcode, (unsigned long long)wc.wr_id, wc.imm_data, b.memory);
    for (struct end *e = &a; e; e = e == &a ? &b : NULL) {
        NEED(!ibv_destroy_qp(e->qp) && !ibv_dereg_mr(e->mr) && !ibv_destroy_cq(e->cq));
        NEED(!ibv_dealloc_pd(e->pd) && !ibv_close_device(e->context));
    }
    return 0;
}
"#;
