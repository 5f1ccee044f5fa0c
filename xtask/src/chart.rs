//! A bar chart of ratios as SVG. Pure.
//!
//! Input: a benchmark's rows. Output: one bar for each row that has a ratio. A bar's length is our
//! value divided by the value it is compared with; a line marks 1, a mark the goal. Colours are
//! readable on white and on black, because pages show it on both.

use std::fmt::Write as _;

use crate::table::{Goal, Row};

/// Pixels of a row, of the labels, of one whole ratio, and to the right of it.
const ROW: f64 = 26.0;
const LABELS: f64 = 260.0;
const WHOLE: f64 = 380.0;
const MARGIN: f64 = 130.0;
/// Longest bar that is drawn, in ratios; longer ones end there.
const RATIO_MAX: f64 = 1.2;
/// Pixels that a number takes.
const NUMBER: f64 = 40.0;
const TEXT: &str = "#808890";
const GOOD: &str = "#2f9e6e";
const BAD: &str = "#d9683c";

/// The chart of the rows with a ratio; `other` names the side compared with.
pub fn bars(other: &str, rows: &[Row]) -> String {
    let shown: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, row.ratio()?))).collect();
    let (width, height) = (LABELS + WHOLE + MARGIN, ROW * (shown.len() as f64 + 1.5));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"{TEXT}\">\n\
         <title>pintle as a share of the {}</title>\n",
        escaped(other)
    );
    let line = LABELS + WHOLE;
    let _ = writeln!(
        out,
        "<line x1=\"{line}\" y1=\"{ROW}\" x2=\"{line}\" y2=\"{height}\" stroke=\"{TEXT}\"/>\n\
         <text x=\"{line}\" y=\"16\" text-anchor=\"middle\">{} = 1</text>",
        escaped(other)
    );
    for (index, (row, ratio)) in shown.iter().enumerate() {
        bar(&mut out, row, *ratio, ROW * (index as f64 + 1.0));
    }
    out + "</svg>\n"
}

fn bar(out: &mut String, row: &Row, ratio: f64, top: f64) {
    let color = if row.met() == Some(false) { BAD } else { GOOD };
    let length = ratio.clamp(0.0, RATIO_MAX) * WHOLE;
    let (text, middle) = (top + ROW * 0.68, top + ROW * 0.18);
    let thick = ROW * 0.64;
    let goal = match row.goal {
        Goal::Ratio(goal) => Some(LABELS + goal.min(RATIO_MAX) * WHOLE),
        _ => None,
    };
    let end = LABELS + length;
    // The number stands behind the goal's mark, not on it.
    let number = goal.filter(|at| (end..end + NUMBER).contains(at)).unwrap_or(end) + 6.0;
    let _ = writeln!(
        out,
        "<text x=\"{:.0}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\n\
         <rect x=\"{LABELS}\" y=\"{middle:.1}\" width=\"{:.1}\" height=\"{thick:.1}\" \
         fill=\"{color}\"/>\n\
         <text x=\"{number:.1}\" y=\"{text:.1}\">{ratio:.2}</text>",
        LABELS - 8.0,
        escaped(&row.measure),
        length.max(1.5),
    );
    if let Some(at) = goal {
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{top:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"{TEXT}\" \
             stroke-dasharray=\"2 2\"/>",
            top + ROW
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: &str, ours: f64, bound: Option<f64>) -> Row {
        Row { measure: measure.into(), unit: "s", goal: Goal::Ratio(0.5), ours, bound }
    }

    #[test]
    fn each_row_with_a_ratio_is_a_bar_of_its_length() {
        let rows = [
            row("a < b", 1.0, Some(4.0)),
            row("no other", 1.0, None),
            row("far more", 9.0, Some(1.0)),
        ];
        let chart = bars("kubelet", &rows);
        assert_eq!(chart.matches("<rect").count(), 2, "{chart}");
        assert!(chart.contains("a &lt; b") && !chart.contains("no other"), "{chart}");
        assert!(chart.contains(&format!("width=\"{:.1}\"", 0.25 * WHOLE)), "{chart}");
        assert!(chart.contains(&format!("width=\"{:.1}\"", RATIO_MAX * WHOLE)), "{chart}");
        assert!(chart.contains(">9.00<") && chart.contains(GOOD) && chart.contains(BAD), "{chart}");
    }
}
