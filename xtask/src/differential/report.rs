//! Output of a run: a line for each case that ends, and at the end the table and every difference.

use std::collections::BTreeMap;

use super::Compared;
use super::expected::Expected;
use super::flat::Difference;

/// Values are cut to this for a reader; the kept files have them whole.
const VALUE_CHARS_MAX: usize = 240;
/// Differences of one case that are printed.
const LINES_MAX: usize = 60;

/// One line about a case that ended.
pub(super) fn progress(case: &Compared) -> String {
    let Compared { case, seconds, aspects, differences, .. } = case;
    let count = differences.len();
    let word = if count == 0 { "equal".to_owned() } else { format!("{count} lines differ") };
    format!("{:<28} {aspects} aspects, {word}, {seconds:.1} s", case.name)
}

/// Prints everything; returns the number of differences that `expected.txt` does not list.
pub(super) fn print(cases: &[Compared], expected: &Expected) -> usize {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut unexplained, mut equal) = (0, 0);
    println!("{:<28} {:>7} {:>9} {:>11}  covers", "case", "aspects", "expected", "unexplained");
    let mut details = String::new();
    for case in cases {
        let name = &case.case.name;
        let (meant, open) = expected.sort(case);
        for reason in &meant {
            *reasons.entry(reason).or_default() += 1;
        }
        let (meant, count) = (meant.len(), open.len());
        println!("{name:<28} {:>7} {meant:>9} {count:>11}  {}", case.aspects, case.case.covers);
        unexplained += count;
        equal += usize::from(count == 0);
        if count > 0 {
            details += &format!("\n{name}\n{}", lines(&open));
        }
    }
    print!("{details}");
    for case in cases.iter().filter(|c| !c.earlier.is_empty()) {
        let earlier: Vec<&Difference> = case.earlier.iter().collect();
        println!("\n{}, the first of two runs\n{}", case.case.name, lines(&earlier));
    }
    if !reasons.is_empty() {
        println!("\nexpected:");
        for (reason, count) in &reasons {
            println!("{count:>5}  {reason}");
        }
    }
    println!("\n{equal} of {} cases equal, {unexplained} unexplained differences", cases.len());
    unexplained
}

fn lines(differences: &[&Difference]) -> String {
    let mut text = String::new();
    for Difference { aspect, path, theirs, ours } in differences.iter().take(LINES_MAX) {
        let value = |v: &Option<String>| v.as_deref().map_or_else(|| "-".to_owned(), cut);
        text += &format!(
            "  {aspect}  {path}\n      kubelet  {}\n      pintle   {}\n",
            value(theirs),
            value(ours)
        );
    }
    if differences.len() > LINES_MAX {
        text += &format!("  and {} more\n", differences.len() - LINES_MAX);
    }
    text
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(cut("ä"), "ä");
        assert_eq!(cut(&"ä".repeat(500)).chars().count(), VALUE_CHARS_MAX + 1);
    }
}
