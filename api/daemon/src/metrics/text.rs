//! From OpenMetrics, which the library writes, to Prometheus' text format 0.0.4, which
//! Kubernetes components serve.
//!
//! They differ in the family name of counters (`x` against `x_total` in HELP and TYPE lines), in the
//! end marker, in unit lines and in whole bucket bounds. Everything else passes unchanged. Pure.

use std::borrow::Cow;

use pintle_api_types::float::go_float;

/// Converts a whole exposition; counters named in `plain` have no suffix.
pub(super) fn from_open_metrics(text: &str, plain: &[&str]) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            // Held back: only the TYPE line that follows shows whether it is a counter's.
            (Some("#"), Some("HELP"), Some(_), text) => help = Some(text.unwrap_or_default()),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let total = if kind == "counter" && !plain.contains(&name) { "_total" } else { "" };
                if let Some(help) = help.take() {
                    // The library's own full stop.
                    let help = help.strip_suffix('.').unwrap_or(help);
                    out.push_str(&format!("# HELP {name}{total} {help}\n"));
                }
                out.push_str(&format!("# TYPE {name}{total} {kind}\n"));
            }
            _ => {
                let line = whole_bound(&plain_name(line, plain)).replacen("{} ", " ", 1);
                match line.strip_suffix(" inf") {
                    Some(rest) => out.push_str(&format!("{rest} +Inf")),
                    None => out.push_str(line.strip_suffix(".0").unwrap_or(&line)),
                }
                out.push('\n');
            }
        }
    }
    out
}

/// A sample of one of those counters without the suffix that the library gives to all.
fn plain_name<'a>(line: &'a str, plain: &[&str]) -> Cow<'a, str> {
    match line.split_once("_total ") {
        Some((name, value)) if plain.contains(&name) => format!("{name} {value}").into(),
        _ => line.into(),
    }
}

/// `le="1.0"` as Go writes it: `le="1"`, and fractions by their shortest text. Dashboards select
/// buckets by that text.
fn whole_bound(line: &str) -> Cow<'_, str> {
    // Other labels may end alike: `profile="1.0"` is a name.
    let begin = line.find("{le=\"").or_else(|| line.find(",le=\""));
    let Some((before, bound)) = begin.map(|at| line.split_at(at + "{le=\"".len())) else {
        return line.into();
    };
    let Some((number, after)) = bound.split_once('"') else { return line.into() };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() => format!("{before}{}\"{after}", go_float(number)).into(),
        _ => line.into(),
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
            (
                r#"h_bucket{le="0.0019461950683593759"} 2"#,
                r#"h_bucket{le="0.0019461950683593758"} 2"#,
            ),
            (r#"h_bucket{le="0.0000225",x="y"} 2"#, r#"h_bucket{le="2.25e-05",x="y"} 2"#),
            (r#"h_bucket{le="+Inf"} 2"#, r#"h_bucket{le="+Inf"} 2"#),
            (r#"h_bucket{le="262144.0"} 2"#, r#"h_bucket{le="262144"} 2"#),
            (r#"h_bucket{le="16777216.0"} 2"#, r#"h_bucket{le="1.6777216e+07"} 2"#),
            (r#"h_bucket{x="y",le="2.0"} 2"#, r#"h_bucket{x="y",le="2"} 2"#),
            (r#"c{profile="1.0"} 2"#, r#"c{profile="1.0"} 2"#),
            ("g 1.0", "g 1.0"),
        ] {
            assert_eq!(whole_bound(open), text);
        }
    }

    #[test]
    fn counter_family_gets_its_suffix_and_unit_and_eof_markers_are_dropped() {
        let open = "# HELP a_b Some help..\n# TYPE a_b counter\n# UNIT a_b seconds\n\
                    a_b_total{x=\"1 2\"} 3\n# HELP g Help.\n# TYPE g gauge\ng 1\n# EOF\n";
        let text = "# HELP a_b_total Some help.\n# TYPE a_b_total counter\na_b_total{x=\"1 2\"} 3\n\
                    # HELP g Help\n# TYPE g gauge\ng 1\n";
        assert_eq!(from_open_metrics(open, &[]), text);
    }

    #[test]
    fn empty_braces_and_zero_fractions_are_dropped() {
        let open = "# TYPE h histogram\nh_sum{} 5.0\nh_count{} 2\ng 1.25\n";
        assert_eq!(
            from_open_metrics(open, &[]),
            "# TYPE h histogram\nh_sum 5\nh_count 2\ng 1.25\n"
        );
    }

    #[test]
    fn some_counters_have_no_suffix() {
        let open = "# HELP kubelet_pleg_discard_events H.\n# TYPE kubelet_pleg_discard_events counter\n\
                    kubelet_pleg_discard_events_total 3\n";
        let text = "# HELP kubelet_pleg_discard_events H\n# TYPE kubelet_pleg_discard_events counter\n\
                    kubelet_pleg_discard_events 3\n";
        let plain = ["kubelet_pleg_discard_events"];
        assert_eq!(from_open_metrics(open, &plain), text);
    }
}
