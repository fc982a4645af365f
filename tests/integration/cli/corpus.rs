//! topoctl over the corpus: what real machines printed comes out as it went in.

use topology::{RateModel, lower, nccl_graph};

use super::{check, check_json, corpus, loaded};

#[test]
fn show_prints_the_matrix_that_nvidia_smi_printed() {
    let Some(files) = corpus("real/nvidia-smi-topo") else { return };
    let (mut shown, mut cells) = (0, 0);
    for path in files {
        let Some([snapshot]) = loaded(&path)
            .as_deref()
            .map(|hosts| hosts.to_vec())
            .and_then(|hosts| <[_; 1]>::try_from(hosts).ok())
        else {
            continue;
        };
        let matrix = snapshot.matrix.expect("a matrix");
        let name = path.display().to_string();
        let document = check_json(&["show", "--from", &name, "-o", "json"], "", 0);
        for (row, line) in matrix.devices.iter().zip(&matrix.cells) {
            for (column, cell) in matrix.devices.iter().zip(line) {
                let expected = cell.map(|cell| cell.to_string());
                assert_eq!(
                    document["paths"][row][column].as_str(),
                    expected.as_deref(),
                    "{name}: {row} to {column}"
                );
                cells += 1;
            }
        }
        shown += 1;
    }
    eprintln!("{shown} matrices, {cells} cells as printed");
    assert!(shown >= 40, "only {shown} matrices load");
}

#[test]
fn every_model_board_shows_and_its_graph_file_reads_back() {
    let Some(files) = corpus("nccl-model") else { return };
    let (mut written, mut refused) = (0, Vec::new());
    for path in files {
        let hosts = loaded(&path).expect("a model board loads");
        let topology = lower(&hosts, RateModel::Effective).expect("and lowers");
        assert!(!topology.gpus().is_empty(), "{}", path.display());
        let request = topology::PlanRequest {
            collectives: vec![topology::Collective::AllGather],
            ..Default::default()
        };
        let Ok(plan) = planner::plan(&topology, &request) else { continue };
        match nccl_graph::from_plan(&topology, &plan) {
            Ok(file) => {
                let again =
                    nccl_graph::read(nccl_graph::write(&file).as_bytes()).expect("our own file");
                assert_eq!(again.graphs[0].channels, file.graphs[0].channels, "{}", path.display());
                written += 1;
            }
            Err(error) => refused.push(format!(
                "{}: {error}",
                path.file_name().unwrap_or_default().to_string_lossy()
            )),
        }
    }
    eprintln!("{written} graph files written and read back; not expressible: {refused:#?}");
    assert!(written >= 40, "only {written} boards have a graph file");
}

#[test]
fn two_copies_of_a_board_plan_over_the_fabric() {
    let Some(files) = corpus("nccl-model") else { return };
    let board = files.iter().find(|path| path.ends_with("dgx_a100_8nic.xml")).expect("a DGX A100");
    let plan = check_json(
        &[
            "plan",
            "--from",
            &board.display().to_string(),
            "--hosts",
            "2",
            "--collective",
            "all-gather",
            "-o",
            "json",
        ],
        "",
        0,
    );
    assert_eq!(plan["ranks"].as_array().map(Vec::len), Some(16));
    let text = check(&["show", "--from", &board.display().to_string(), "--hosts", "2"], "", 0);
    assert!(text.contains("Host 1"));
}
