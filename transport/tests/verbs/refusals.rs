//! Groups that cannot be made, for a call is refused: every rank ends and says why, and nothing is left.

use crate::double::over;
use crate::group::Group;

/// What every rank said of a group that could not be made, or of an operation that could not be done.
fn refused(ranks: u32) -> Vec<String> {
    let settings = &[
        ("join_timeout_ms", "5000"),
        ("timeout_ms", "5000"),
        ("ib_timeout", "14"),
        ("ib_retry_cnt", "2"),
    ];
    let group = Group { ranks, nics: 1, settings };
    let results = group.each(|group| {
        let mut data = vec![1_i64; 3000];
        let done = group.all_reduce(&mut data, transport::ReduceOp::Sum);
        done.map(drop).map_err(|error| transport::with_causes(&error))
    });
    results.into_iter().map(|result| result.and_then(|done| done).expect_err("refused")).collect()
}

#[test]
fn any_call_may_be_refused() {
    over("refusals::any_call_may_be_refused", "", &[("DEVICES", "3")], |double| {
        for (call, words) in [
            ("ibv_get_device_list", "list RDMA devices"),
            ("ibv_open_device", "open mlx5_1"),
            ("ibv_query_port", "mlx5_1 port 1"),
            ("ibv_alloc_pd", "make a protection domain"),
            ("ibv_create_comp_channel", "make a completion channel"),
            ("ibv_create_cq", "make a completion queue"),
            ("ibv_reg_mr", "with mlx5_1"),
            ("ibv_create_qp", "make a queue pair"),
            ("post_recv", ""),
        ] {
            let device = if call == "ibv_get_device_list" { "" } else { ",device=1" };
            double.set_faults(&format!("call:{call},code=5{device}"));
            let said = refused(3);
            println!("{call}: {said:#?}");
            assert!(said.iter().any(|said| said.contains(words)), "{call}: {said:#?}");
            double.set_faults("");
            double.nothing_left();
        }
        // Each of a queue pair's changes of state, of several pairs.
        for after in 0..6 {
            double
                .set_faults(&format!("call:ibv_modify_qp,device=1,after={after},times=1,code=22"));
            let said = refused(3);
            assert!(said.iter().any(|said| said.contains("a queue pair")), "{after}: {said:#?}");
            double.set_faults("");
            double.nothing_left();
        }
    });
}

#[test]
fn a_limit_of_locked_memory_is_told_with_what_to_do() {
    let variables = [("FAULTS", "register:device=1,bytes=10000")];
    let test = "refusals::a_limit_of_locked_memory_is_told_with_what_to_do";
    over(test, "", &variables, |double| {
        let said = refused(2);
        println!("{said:#?}");
        for words in ["register ", "with mlx5_1", "ulimit -l"] {
            assert!(said.iter().any(|said| said.contains(words)), "{words} in {said:#?}");
        }
        double.nothing_left();
    });
}

#[test]
fn devices_that_give_too_little_are_refused_in_words() {
    let test = "refusals::devices_that_give_too_little_are_refused_in_words";
    for (key, value, words) in [
        ("MAX_QP", "1", "make a queue pair"),
        ("MAX_QP_WR", "4", "make a queue pair"),
        ("MAX_SGE", "1", "make a queue pair"),
        ("MAX_CQE", "4", "make a completion queue"),
        ("MAX_MR", "1", "register"),
        ("SUBNETS", "0,1", "transport retry counter exceeded"),
        ("LINK_LAYER", "ib,roce", "Ethernet"),
        ("FAULTS", "port-down:", "it is down"),
        ("GIDS", "empty", "it has no GID that can be read"),
        ("NAMES", "rxe0,rxe1", "rxe1 is not chosen"),
        ("DEVICES", "0", "no RDMA port can be used: there is none"),
    ] {
        let layer = if key == "GIDS" { "roce" } else { "ib" };
        over(test, key, &[("LINK_LAYER", layer), (key, value)], |double| {
            let said = refused(2);
            println!("{said:#?}");
            let have = said.iter().filter(|said| said.contains(words)).count();
            // What one end cannot make, both are told.
            let told = if key.starts_with("MAX") { 2 } else { 1 };
            assert!(have >= told, "{words} in {said:#?}");
            double.nothing_left();
        });
    }
}
