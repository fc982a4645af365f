//! Time against size, both by powers: measured, the memory's limit, the plan's prediction for its hardware, a peer.

use std::fmt::Write;

use crate::size;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
/// Left, right, top, bottom of the plotted area.
const AREA: [f64; 4] = [70.0, 700.0, 40.0, 390.0];

/// A line of the plot.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) dashed: bool,
    /// Bytes and microseconds.
    pub(crate) points: Vec<(f64, f64)>,
}

/// An SVG document. Points without a place on logarithmic axes are left out.
pub(crate) fn render(title: &str, lines: &[Line]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>",
        AREA[0],
        escape(title)
    );
    let plotted = |line: &Line| -> Vec<(f64, f64)> {
        let fits = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite();
        line.points.iter().copied().filter(fits).collect()
    };
    let all: Vec<(f64, f64)> = lines.iter().flat_map(plotted).collect();
    let span = |of: fn(&(f64, f64)) -> f64| {
        let low = all.iter().map(of).fold(f64::INFINITY, f64::min).log2().floor();
        let high = all.iter().map(of).fold(0.0, f64::max).log2().ceil();
        (low, high.max(low + 1.0))
    };
    if all.is_empty() {
        text.push_str("</svg>\n");
        return text;
    }
    let (xs, ys) = (span(|p| p.0), span(|p| p.1));
    let x = |bytes: f64| AREA[0] + (bytes.log2() - xs.0) / (xs.1 - xs.0) * (AREA[1] - AREA[0]);
    let y = |us: f64| AREA[3] - (us.log2() - ys.0) / (ys.1 - ys.0) * (AREA[3] - AREA[2]);
    axis(&mut text, xs, |power| {
        let at = x(power.exp2());
        let label = bytes_label(power.exp2());
        format!(
            "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            AREA[2],
            AREA[3],
            AREA[3] + 18.0
        )
    });
    axis(&mut text, ys, |power| {
        let at = y(power.exp2());
        format!(
            "<line x1=\"{}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} us</text>",
            AREA[0],
            AREA[1],
            AREA[0] - 6.0,
            at + 4.0,
            power.exp2()
        )
    });
    for (at, line) in lines.iter().enumerate() {
        let points = plotted(line);
        let path: Vec<String> =
            points.iter().map(|(b, t)| format!("{:.1},{:.1}", x(*b), y(*t))).collect();
        let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let colour = line.colour;
        let _ = writeln!(
            text,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            path.join(" ")
        );
        for (bytes, us) in points {
            let _ = writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {us:.2} us</title></circle>",
                x(bytes),
                y(us),
                bytes_label(bytes)
            );
        }
        let top = AREA[2] + 16.0 * at as f64 + 8.0;
        let _ = writeln!(
            text,
            "<line x1=\"{}\" y1=\"{top}\" x2=\"{}\" y2=\"{top}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>",
            AREA[0] + 10.0,
            AREA[0] + 40.0,
            AREA[0] + 46.0,
            top + 4.0,
            escape(&line.name)
        );
    }
    text.push_str("</svg>\n");
    text
}

/// A grid line for every power of two, or every few where they would be too close.
fn axis(text: &mut String, (low, high): (f64, f64), line: impl Fn(f64) -> String) {
    let every = ((high - low) / 12.0).ceil().max(1.0);
    let mut power = low;
    while power <= high {
        let _ = writeln!(text, "{}", line(power));
        power += every;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are whole and positive, and were u64 before"
)]
fn bytes_label(bytes: f64) -> String {
    size::display(bytes as u64)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_points() {
        let line = |name: &str, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            colour: "black",
            dashed: false,
            points: points.to_vec(),
        };
        let lines = [line("a < b", &[(8.0, 0.5), (1024.0, 2.0)]), line("none", &[(0.0, 1.0)])];
        let text = render("title & more", &lines);
        assert_eq!(text.matches("<circle").count(), 2);
        assert!(text.contains("a &lt; b") && text.contains("title &amp; more"));
        assert!(render("empty", &[]).ends_with("</svg>\n"));
    }
}
