//! The table of what was measured, and what of it misses the best peer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A run: link, collective, placement, heat.
type Kind<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Figures by kind, ranks, bytes and who: microseconds, and whether every element was right.
type Figures<'a> = BTreeMap<Kind<'a>, BTreeMap<(u32, u64), BTreeMap<&'a str, (f64, bool)>>>;

/// All-reduce from these sizes up is to be so many times faster than the best peer with registered buffers.
const REGISTERED: (u64, f64) = (1 << 20, 2.5);

fn figures(results: &str) -> Figures<'_> {
    let mut all = Figures::new();
    for line in results.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [who, link, collective, placement, heat, ranks, bytes, median, _, tenth, wrong] =
            words[..]
        else {
            continue;
        };
        // Cold operations are few and each alone: the tenth percentile is what a busy machine leaves of them.
        let us = if heat == "cold" { tenth } else { median };
        if let (Ok(ranks), Ok(bytes), Ok(us)) = (ranks.parse(), bytes.parse(), us.parse()) {
            let kind = all.entry((link, collective, placement, heat)).or_default();
            let found = kind.entry((ranks, bytes)).or_default();
            let best: &mut (f64, bool) = found.entry(who).or_insert((us, true));
            *best = (best.0.min(us), best.1 && wrong == "0");
        }
    }
    all
}

/// Tables in Markdown: ours over the best peer's time, by size and ranks; then the cells that miss, a line for each table.
pub(super) fn render(results: &str) -> String {
    let (mut text, mut misses, mut missing, mut cells) = (String::new(), String::new(), 0, 0);
    for ((link, collective, placement, heat), cases) in &figures(results) {
        let mut missed: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let _ = writeln!(text, "\n### {collective}, {placement} place, {heat}, {link}\n");
        let ranks: BTreeSet<u32> = cases.keys().map(|(ranks, _)| *ranks).collect();
        let sizes: BTreeSet<u64> = cases.keys().map(|(_, bytes)| *bytes).collect();
        let heads: String =
            ranks.iter().map(|n| format!(" {n} ranks: ours | registered | best peer |")).collect();
        let _ = writeln!(text, "| bytes |{heads}");
        let _ = writeln!(text, "|---|{}", "---|---|---|".repeat(ranks.len()));
        for bytes in sizes {
            let _ = write!(text, "| {bytes} |");
            for ranks in &ranks {
                let empty = BTreeMap::new();
                let case = cases.get(&(*ranks, bytes)).unwrap_or(&empty);
                let get = |who: &str| case.get(who).map(|(us, _)| *us);
                let peers = case.iter().filter(|(who, (_, right))| {
                    !["ours", "registered", "limit"].contains(who) && *right
                });
                let best =
                    peers.min_by(|a, b| a.1.0.total_cmp(&b.1.0)).map(|(who, (us, _))| (*who, *us));
                let show =
                    |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
                let peer =
                    best.map_or_else(|| "-".to_owned(), |(who, us)| format!("{us:.2} {who}"));
                let _ =
                    write!(text, " {} | {} | {peer} |", show(get("ours")), show(get("registered")));
                let mut miss = |what: String| {
                    missing += 1;
                    missed.entry(*ranks).or_default().push(format!("{bytes} B {what}"));
                };
                if let Some((who, (_, false))) =
                    case.iter().find(|(who, (_, right))| !right && **who != "limit")
                {
                    miss(format!("wrong elements of {who}"));
                }
                let Some((who, peer)) = best else { continue };
                if let Some(ours) = get("ours") {
                    cells += 1;
                    if ours > peer {
                        miss(format!("{:.2} of {who}", peer / ours));
                    }
                }
                let large =
                    *collective == "all-reduce" && *placement == "in" && bytes >= REGISTERED.0;
                if let Some(ours) = get("registered").filter(|_| large) {
                    cells += 1;
                    let over = get("limit").map_or(f64::NAN, |limit| ours / limit);
                    if peer / ours < REGISTERED.1 || over > 1.15 {
                        let ratio = peer / ours;
                        miss(format!(
                            "registered {ratio:.2} of {who}, {over:.2} times the memory limit"
                        ));
                    }
                }
            }
            text.push('\n');
        }
        let of_ranks = missed.iter().map(|(ranks, of)| format!("{ranks} ranks {}", of.join(", ")));
        let line = of_ranks.collect::<Vec<_>>().join("; ");
        if !line.is_empty() {
            let _ = writeln!(misses, "- {collective}, {placement} place, {heat}, {link}: {line}");
        }
    }
    let _ = writeln!(
        text,
        "\nMicroseconds an operation. {missing} of {cells} cells miss, with ours as a share of the best peer's speed:\n\n{misses}"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_compared_with() {
        let row = |who: &str, us: f64, wrong: u8| {
            format!("{who}\tshm\tall-reduce\tin\thot\t2\t1048576\t{us}\t{us}\t{us}\t{wrong}\n")
        };
        let results =
            [row("ours", 2.0, 0), row("a", 1.0, 1), row("b", 3.0, 0), row("registered", 1.0, 0)]
                .concat();
        let text = render(&results);
        assert!(text.contains("| 1048576 | 2.00 | 1.00 | 3.00 b |"), "{text}");
        assert!(text.contains("1048576 B wrong elements of a") && !text.contains("of b"), "{text}");
        let again = results.clone() + &row("ours", 1.5, 0) + &row("b", 2.5, 0);
        assert!(
            render(&again).contains("| 1048576 | 1.50 | 1.00 | 2.50 b |"),
            "{}",
            render(&again)
        );
        let slow = results.replace("registered", "limit").replace("ours\t", "other\t")
            + &row("ours", 4.0, 0);
        assert!(
            render(&slow)
                .contains("shm: 2 ranks 1048576 B wrong elements of a, 1048576 B 0.50 of other"),
            "{}",
            render(&slow)
        );
    }
}
