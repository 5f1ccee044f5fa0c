//! From OpenMetrics, which the library writes, to Prometheus' text format 0.0.4, which the kubelet
//! serves.
//!
//! They differ in the family name of counters (`x` against `x_total` in HELP and TYPE lines), in the
//! end marker, in unit lines and in whole bucket bounds. Everything else passes unchanged. Pure.

use std::borrow::Cow;

/// Converts a whole exposition.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            // Held back: only the TYPE line that follows tells whether it is a counter's.
            (Some("#"), Some("HELP"), Some(_), text) => help = Some(text.unwrap_or_default()),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let total = if kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    let help = help.trim_end_matches('.');
                    out.push_str(&format!("# HELP {name}{total} {help}\n"));
                }
                out.push_str(&format!("# TYPE {name}{total} {kind}\n"));
            }
            _ => {
                out.push_str(&whole_bound(line));
                out.push('\n');
            }
        }
    }
    out
}

/// `le="1.0"` as Go writes it: `le="1"`. Dashboards select buckets by that text.
fn whole_bound(line: &str) -> Cow<'_, str> {
    let Some((before, bound)) = line.split_once("le=\"") else { return line.into() };
    let Some((number, after)) = bound.split_once('"') else { return line.into() };
    match number.strip_suffix(".0") {
        Some(whole) => format!("{before}le=\"{whole}\"{after}").into(),
        None => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{from_open_metrics, whole_bound};

    #[test]
    fn whole_bucket_bounds_lose_their_fraction_and_others_keep_it() {
        for (open, text) in [
            (r#"h_bucket{le="1.0"} 2"#, r#"h_bucket{le="1"} 2"#),
            (r#"h_bucket{le="10.0",x="1.0"} 2.0"#, r#"h_bucket{le="10",x="1.0"} 2.0"#),
            (r#"h_bucket{le="0.5"} 2"#, r#"h_bucket{le="0.5"} 2"#),
            (r#"h_bucket{le="+Inf"} 2"#, r#"h_bucket{le="+Inf"} 2"#),
            ("g 1.0", "g 1.0"),
        ] {
            assert_eq!(whole_bound(open), text);
        }
    }

    #[test]
    fn a_counters_family_gets_its_suffix_and_markers_go() {
        let open = "# HELP a_b Some help.\n# TYPE a_b counter\n# UNIT a_b seconds\n\
                    a_b_total{x=\"1 2\"} 3\n# HELP g Help.\n# TYPE g gauge\ng 1\n# EOF\n";
        let text = "# HELP a_b_total Some help\n# TYPE a_b_total counter\na_b_total{x=\"1 2\"} 3\n\
                    # HELP g Help\n# TYPE g gauge\ng 1\n";
        assert_eq!(from_open_metrics(open), text);
    }
}
