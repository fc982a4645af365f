use super::*;

fn join(rank: u32, digest: &str) -> Join {
    let reach = Reach {
        host: Host {
            name: format!("host{rank}"),
            boot: "b".into(),
            network: "n".into(),
            cores: vec![0],
            quota: None,
        },
        port: 1000 + u16::try_from(rank).unwrap(),
        unix: format!("u{rank}"),
        address: None,
        rdma: Err("none".into()),
    };
    Join::new(Rank(rank), vec![("plan digest".into(), digest.into())], reach)
}

/// Lets ranks with these digests meet at `rendezvous`, each in a thread.
fn run(
    rendezvous: &Rendezvous,
    ranks: usize,
    joins: Vec<Join>,
    limit: Duration,
) -> Vec<Result<Group, ConnectError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = joins
            .into_iter()
            .map(|own| scope.spawn(move || meet(rendezvous, ranks, &own, limit)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn file() -> (tempfile::TempDir, Rendezvous) {
    let folder = tempfile::tempdir().unwrap();
    let rendezvous = format!("file://{}/meet", folder.path().display()).parse().unwrap();
    (folder, rendezvous)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn all_meet_and_know_each_other() {
    let (folder, rendezvous) = file();
    let joins = (0..5).map(|r| join(r, "d")).collect();
    let groups: Vec<_> = run(&rendezvous, 5, joins, LONG).into_iter().map(Result::unwrap).collect();
    for group in &groups {
        assert_eq!(group.session, groups[0].session);
        let ports: Vec<_> = group.members.iter().map(|m| m.reach.port).collect();
        assert_eq!(ports, [1000, 1001, 1002, 1003, 1004]);
        assert!(group.members.iter().all(|m| m.address.is_loopback()));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left");
}

#[test]
fn over_a_port() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rendezvous = format!("tcp://127.0.0.1:{free}").parse().unwrap();
    let joins = (0..3).map(|r| join(r, "d")).collect();
    assert!(run(&rendezvous, 3, joins, LONG).iter().all(Result::is_ok));
}

/// Hosts that hold plans of different topologies run none (a generation that only some have): who holds which is said on every rank.
#[test]
fn field_case_k2_another_digest_is_refused_on_every_rank() {
    let (_folder, rendezvous) = file();
    let joins = vec![join(0, "aaa"), join(1, "aaa"), join(2, "bbb"), join(3, "aaa")];
    for result in run(&rendezvous, 4, joins, LONG) {
        assert_eq!(
            result.unwrap_err().to_string(),
            "rank 0 on host0 has plan digest aaa, rank 2 on host2 has bbb"
        );
    }
}

/// Two thousand GPUs were replaced one by one to find the rank that hung (NVIDIA/nccl#1324, #1260): who never came is said. Nor do
/// those who came go on as a smaller world (pith-train#91).
#[test]
fn field_case_k1_who_never_came_is_named_on_every_rank() {
    let (_folder, rendezvous) = file();
    let joins = vec![join(0, "d"), join(1, "d"), join(4, "d")];
    for result in run(&rendezvous, 5, joins, Duration::from_millis(700)) {
        assert_eq!(result.unwrap_err().to_string(), "ranks 2, 3 never came within 700ms");
    }
}

#[test]
fn without_rank_zero() {
    let (_folder, rendezvous) = file();
    let result = run(&rendezvous, 2, vec![join(1, "d")], Duration::from_millis(50));
    let error = result.into_iter().next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("rank 0 never came within 50ms: file://"), "{error}");
}

#[test]
fn two_of_one_rank() {
    let (_folder, rendezvous) = file();
    let joins = vec![join(0, "d"), join(1, "d"), join(1, "d"), join(2, "d")];
    let limit = Duration::from_secs(2);
    let results = run(&rendezvous, 4, joins, limit);
    let error = results[0].as_ref().unwrap_err().to_string();
    assert_eq!(error, "rank 1 came twice, from host1 and from host1");
}

#[test]
fn strangers_are_ignored() {
    let (folder, rendezvous) = file();
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| meet(&rendezvous, 2, &join(0, "d"), LONG));
        let port = loop {
            if let Ok(bytes) = std::fs::read(folder.path().join("meet")) {
                let notice: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                break u16::try_from(notice["port"].as_u64().unwrap()).unwrap();
            }
            std::thread::yield_now();
        };
        let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").unwrap();
        assert!(meet(&rendezvous, 2, &join(1, "d"), LONG).is_ok());
        assert!(zero.join().unwrap().is_ok());
    });
}

#[track_caller]
fn check(text: &str, expect: Result<&str, &str>) {
    match (text.parse::<Rendezvous>(), expect) {
        (Ok(found), Ok(expect)) => assert_eq!(found.to_string(), expect),
        (Err(found), Err(word)) => assert!(found.to_string().contains(word), "{found}"),
        (found, _) => panic!("{text}: {found:?}"),
    }
}

#[test]
fn places() {
    check("tcp://host:1234", Ok("tcp://host:1234"));
    check("tcp://[::1]:1234", Ok("tcp://[::1]:1234"));
    check("file:///a/b", Ok("file:///a/b"));
    check("tcp://host", Err("no port"));
    check("tcp://:12", Err("no host"));
    check("tcp://host:0", Err("1 to 65535"));
    check("tcp://host:70000", Err("1 to 65535"));
    check("file://", Err("no path"));
    check("http://x", Err("known are"));
}

#[test]
fn the_environment() {
    let with = |changes: &'static [(&'static str, &'static str)]| {
        let set = [
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
        ];
        Rendezvous::from_variables(move |name| {
            let found = changes.iter().chain(&set).find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned()).filter(|value| !value.is_empty())
        })
    };
    let found = with(&[]).unwrap();
    assert_eq!(found.to_string(), "tcp://node1:29500");
    assert_eq!(found.own_place(), Some(OwnPlace { rank: Rank(3), ranks: 8 }));
    let error = |changes| with(changes).unwrap_err().to_string();
    assert!(error(&[("RANK", "8")]).contains("RANK=8 is not below WORLD_SIZE=8"));
    assert!(error(&[("MASTER_PORT", "0")]).contains("no port"));
    assert!(error(&[("WORLD_SIZE", "many")]).contains("no number"));
    assert!(error(&[("MASTER_ADDR", "")]).contains("MASTER_ADDR is not set"));
    assert!(error(&[("WORLD_SIZE", "")]).contains("WORLD_SIZE is not set"));
    assert!(error(&[("RANK", ""), ("WORLD_SIZE", "")]).contains("no launcher says which rank"));
    for (rank, ranks) in [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ] {
        let launched = |torchrun: &'static str| {
            Rendezvous::from_variables(move |name| match name {
                "MASTER_ADDR" => Some("node1".to_owned()),
                "MASTER_PORT" => Some("29500".to_owned()),
                _ if name == rank => Some("1".to_owned()),
                _ if name == ranks => Some("2".to_owned()),
                "RANK" | "WORLD_SIZE" if !torchrun.is_empty() => Some(torchrun.to_owned()),
                _ => None,
            })
        };
        assert_eq!(launched("").unwrap().own_place(), Some(OwnPlace { rank: Rank(1), ranks: 2 }));
        // torchrun's go before: it may itself have been started by any of the others.
        assert!(launched("4").unwrap_err().to_string().contains("RANK=4 is not below"));
    }
}
