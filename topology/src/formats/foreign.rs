//! Inputs that describe no host: recognised by content, so that the refusal says what they are and what they are for.
//!
//! The marks are words that one tool alone prints, looked for line by line; the first line with one decides.

use alloc::string::String;

use super::ReadError;
use crate::fabric::{self, FabricForm};

/// A kind of text that is no topology.
struct Kind {
    what: &'static str,
    /// What it tells, and what to give instead.
    reason: &'static str,
    marks: fn(&str) -> bool,
}

const P2P_STATES: [&str; 8] = ["OK", "CNS", "GNS", "TNS", "NS", "U", "DR", "NODRV"];

const KINDS: [Kind; 24] = [
    Kind {
        what: "NCCL log",
        reason: "it tells what NCCL chose on a machine, not what the machine is; run the job with NCCL_TOPO_DUMP_FILE \
                 set and read that file",
        marks: |line| {
            ["NCCL INFO ", "NCCL WARN ", "NCCL TRACE ", "NCCL version "]
                .iter()
                .any(|m| line.contains(m))
        },
    },
    Kind {
        what: "NCCL graph XML",
        reason: "it holds the channels NCCL uses, no machine; NCCL_TOPO_DUMP_FILE writes the topology beside it",
        marks: |line| line.starts_with("<graph id=") || line.starts_with("<graphs "),
    },
    Kind {
        what: "nvidia-smi topo -p2p matrix",
        reason: "it tells which pairs may access each other's memory, not what joins them; record `nvidia-smi topo -m`",
        marks: |line| {
            let mut words = line.split_whitespace();
            let is_row = words.next().is_some_and(|word| numbered(word, "GPU"));
            let mut states = 0;
            is_row
                && words.all(|word| {
                    let state = P2P_STATES.contains(&word);
                    states += usize::from(state);
                    state || word == "X"
                })
                && states > 0
        },
    },
    Kind {
        what: "nvidia-smi nvlink status",
        reason: "it tells how many links each GPU has, not where they lead; record `nvidia-smi topo -m`, or the links with \
                 `topoctl snapshot`",
        marks: |line| {
            let Some(rest) = line.strip_prefix("Link ") else { return false };
            let Some((number, state)) = rest.split_once(':') else { return false };
            digits(number) && (state.trim_end().ends_with(" GB/s") || state.contains("<inactive>"))
        },
    },
    Kind {
        what: "nvidia-smi error message",
        reason: "nvidia-smi refused its command line and printed no facts",
        marks: |line| {
            line.starts_with("Option \"-")
                || line.starts_with("Invalid combination of input arguments")
        },
    },
    Kind {
        what: "nvidia-smi error message",
        reason: "the driver did not answer, so there are no facts in it",
        marks: |line| {
            line.starts_with("NVIDIA-SMI has failed")
                || line.starts_with("Failed to initialize NVML")
                || line == "No devices were found"
        },
    },
    Kind {
        what: "nvidia-smi summary table",
        reason: "it lists GPUs without what joins them; record `nvidia-smi topo -m`, `nvidia-smi -q -x` or `topoctl snapshot`",
        marks: |line| line.starts_with("| NVIDIA-SMI "),
    },
    Kind {
        what: "nvidia-smi -q text",
        reason: "its XML form holds the same and is read: record `nvidia-smi -q -x`",
        marks: |line| line.starts_with("====") && line.contains("NVSMI LOG"),
    },
    Kind {
        what: "fabric manager log",
        reason: "it tells what happened to the NVSwitch fabric, not what it is; record `topoctl snapshot` on that host",
        marks: |line| {
            line.starts_with('[')
                && line.contains("] [tid ")
                && ["] [INFO]", "] [WARNING]", "] [ERROR]", "] [DEBUG]"]
                    .iter()
                    .any(|m| line.contains(m))
        },
    },
    Kind {
        what: "ibnetdiscover output",
        reason: "it is the InfiniBand fabric between hosts, with no GPU and no host's inside; `topoctl fabric` reads it, beside a \
                 topology of each host",
        marks: |line| fabric::form_of_line(line) == Some(FabricForm::Infiniband),
    },
    Kind {
        what: "ibnetdiscover -p output",
        reason: "it is the list of ports of the InfiniBand fabric between hosts, with no GPU; `topoctl fabric` reads it, beside a \
                 topology of each host",
        marks: |line| fabric::form_of_line(line) == Some(FabricForm::PortList),
    },
    Kind {
        what: "Slurm topology.conf",
        reason: "it is the network between hosts, with no host's inside; `topoctl fabric` reads it, beside a topology of each host",
        marks: |line| fabric::form_of_line(line) == Some(FabricForm::SlurmConf),
    },
    Kind {
        what: "Slurm topology.yaml",
        reason: "it is the network between hosts, with no host's inside; `topoctl fabric` reads it, beside a topology of each host",
        marks: |line| {
            fabric::form_of_line(line) == Some(FabricForm::SlurmYaml)
                || line.starts_with("cluster_default:")
        },
    },
    Kind {
        what: "model of a network",
        reason: "it is the tree of switches between hosts, with no host's inside; `topoctl fabric` reads it, beside a topology of \
                 each host",
        marks: |line| fabric::form_of_line(line) == Some(FabricForm::ModelYaml),
    },
    Kind {
        what: "ibstat output",
        reason: "it is the state of the InfiniBand ports of a host, without their PCI place and without GPUs; record `topoctl \
                 snapshot` or the host's /sys",
        marks: |line| {
            line.strip_prefix("CA '").is_some_and(|rest| rest.trim_end().ends_with('\''))
                || line.starts_with("CA type: ")
        },
    },
    Kind {
        what: "ibv_devinfo output",
        reason: "it is the state of the RDMA ports of a host, without their PCI place and without GPUs; record `topoctl snapshot` \
                 or the host's /sys",
        marks: |line| line.strip_prefix("hca_id:").is_some_and(|name| !name.trim().is_empty()),
    },
    Kind {
        what: "ibdev2netdev output",
        reason: "it pairs RDMA devices with network interfaces and holds no GPU; record `topoctl snapshot` or the host's /sys",
        marks: |line| line.contains(" port ") && line.contains("==>"),
    },
    Kind {
        what: "lldpctl output",
        reason: "it names the switch ports of a host's network interfaces and holds no GPU; record `lldpctl -f json`, which \
                 `topoctl fabric` reads, beside a topology of the host",
        marks: |line| line == "LLDP neighbors:",
    },
    Kind {
        what: "matrix of another vendor's tool",
        reason: "its devices are no GPUs of a vendor known here (NVIDIA, AMD); a link graph can describe such a machine",
        marks: |line| {
            let words = || line.split(['|', ' ', '\t']).filter(|word| !word.is_empty());
            let matrix = [
                "MTHREADS",
                "ASCEND",
                "CAMBRICON",
                "METAX",
                "ILUVATAR",
                "HYGON",
                "ENFLAME",
                "HABANA",
            ];
            (line.starts_with('|') && words().next().is_some_and(|word| matrix.contains(&word)))
                || (words().count() > 2 && words().all(|word| numbered(word, "NPU")))
                || [
                    "mthreads-gmi topo",
                    "npu-smi info -t topo",
                    "cnmon topo",
                    "mx-smi topo",
                    "ixsmi topo",
                    "hl-smi topo",
                ]
                .iter()
                .any(|command| line.contains(command))
        },
    },
    Kind {
        what: "lscpu output",
        reason: "it describes processors and holds no GPU; record `topoctl snapshot` or the host's /sys",
        marks: |line| {
            line.starts_with("CPU op-mode(s):") || line.starts_with("Thread(s) per core:")
        },
    },
    Kind {
        what: "numactl output",
        reason: "it describes NUMA nodes and holds no GPU; record `topoctl snapshot` or the host's /sys",
        marks: |line| line.starts_with("available: ") && line.contains(" nodes ("),
    },
    Kind {
        what: "lstopo drawing in text",
        reason: "hwloc's XML form holds more and is read: `lstopo --whole-io machine.xml`",
        marks: |line| {
            line.strip_prefix("Machine (")
                .is_some_and(|rest| rest.contains(" total)") || rest.ends_with("B)"))
        },
    },
    Kind {
        what: "lspci output without the tree",
        reason: "it does not tell which bridge a device is below; record `lspci -vv` or `lspci -tv` of all devices, better the \
                 host's /sys or `topoctl snapshot`",
        marks: |line| {
            super::lspci::is_device_line(line)
                || ["LnkCap:", "LnkSta:", "ACSCtl:"].iter().any(|word| line.starts_with(word))
        },
    },
    Kind {
        what: "lspci tree without names",
        reason: "it does not tell which devices are GPUs and NICs; record `lspci -tv`, better the host's /sys or `topoctl snapshot`",
        marks: super::lspci::is_tree_line,
    },
];

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn numbered(word: &str, name: &str) -> bool {
    word.strip_prefix(name).is_some_and(digits)
}

/// The refusal of a text that is of a known kind and no topology.
pub(super) fn recognise(text: &str) -> Option<ReadError> {
    (1..).zip(text.lines()).find_map(|(line, words)| {
        let words = words.trim();
        let kind = KINDS.iter().find(|kind| !words.is_empty() && (kind.marks)(words))?;
        Some(ReadError { format: kind.what, line, reason: String::from(kind.reason) })
    })
}

/// What bytes are that hold no text: containers, which whoever opened the file may unpack.
pub(super) fn container(bytes: &[u8]) -> Option<&'static str> {
    let magics: [(&[u8], &str); 9] = [
        (&[0x1F, 0x8B], "gzip data"),
        (b"BZh", "bzip2 data"),
        (&[0xFD, b'7', b'z', b'X', b'Z'], "xz data"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "zstd data"),
        (b"PK\x03\x04", "a zip archive"),
        (b"7z\xBC\xAF", "a 7z archive"),
        (b"\x7FELF", "a program"),
        (b"\x89PNG", "a picture"),
        (b"%PDF", "a PDF"),
    ];
    let known = magics.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, what)| *what);
    known.or_else(|| (bytes.get(257..262) == Some(b"ustar")).then_some("a tar archive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, what: &str) {
        let error = recognise(text).unwrap_or_else(|| panic!("not recognised: {text}"));
        assert_eq!(error.format, what, "{text}");
        assert!(error.line > 0 && error.reason.len() > 20, "{error}");
    }

    #[test]
    fn kinds_by_their_marks() {
        check("\nn1:1:2 [0] NCCL INFO Bootstrap : Using eth0", "NCCL log");
        check("[5] NCCL INFO Trees [0] 6/-1/-1->5->4", "NCCL log");
        check("  <graph id=\"0\" pattern=\"4\">", "NCCL graph XML");
        check(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\n", "nvidia-smi topo -p2p matrix");
        check("GPU 0: A (UUID: GPU-0)\n  Link 0: 25 GB/s\n", "nvidia-smi nvlink status");
        check("GPU 0: A (UUID: GPU-0)\n  Link 0: <inactive>\n", "nvidia-smi nvlink status");
        check("Option \"-p2p\" is missing its value.", "nvidia-smi error message");
        check(
            "NVIDIA-SMI has failed because it couldn't communicate with the driver",
            "nvidia-smi error message",
        );
        check("+----+\n| NVIDIA-SMI 550.54  Driver Version: 550.54 |", "nvidia-smi summary table");
        check("==============NVSMI LOG==============", "nvidia-smi -q text");
        check("[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received", "fabric manager log");
        check("Switch\t65 \"S-2c\"\t# \"MF0;a/U1\"", "ibnetdiscover output");
        check("CA   134  1 0x7cfe 4x EDR - SW  1719", "ibnetdiscover -p output");
        check("# c\nSwitchName=a Nodes=n[1-2]", "Slurm topology.conf");
        check("BlockName=a Nodes=n[1-2]", "Slurm topology.conf");
        check("---\n- topology: t1\n  tree:\n", "Slurm topology.yaml");
        check("switches:\n  S1:\n", "model of a network");
        check("CA 'mlx5_0'\n\tCA type: MT4129\n", "ibstat output");
        check("hca_id: mlx5_0\n", "ibv_devinfo output");
        check("mlx5_0 port 1 ==> ib0 (Up)", "ibdev2netdev output");
        check("| MTHREADS | Device 0 |", "matrix of another vendor's tool");
        check("  NPU0 NPU1 NPU2\nNPU0 X HCCS HCCS", "matrix of another vendor's tool");
        check("available: 2 nodes (0-1)", "numactl output");
        check("Thread(s) per core:  2", "lscpu output");
        check("Machine (1008GB total)\n  Package L#0", "lstopo drawing in text");
        check(
            "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation [10de:2684]",
            "lspci output without the tree",
        );
        check(
            "  LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)",
            "lspci output without the tree",
        );
        check("-+-[0000:00]-+-00.0\n |  +-01.0", "lspci tree without names");
    }

    #[test]
    fn ordinary_text_is_none() {
        for text in [
            "",
            "hello",
            "GPU0 is slow",
            "GPU0 X",
            "Link to nowhere",
            "a port 1 of b",
            "12:30 lunch",
        ] {
            assert_eq!(recognise(text), None, "{text}");
        }
    }

    #[test]
    fn containers() {
        assert_eq!(container(b"BZh91AY"), Some("bzip2 data"));
        assert_eq!(container(&[0x1F, 0x8B, 8]), Some("gzip data"));
        let mut tar = [0_u8; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(container(&tar), Some("a tar archive"));
        assert_eq!(container(b"<system"), None);
    }
}
