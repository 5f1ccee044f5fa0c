//! Documents about metrics, compared with the served families: the tables of `docs/METRICS.md`, the
//! alert rules and the dashboard of `deploy`. A name that is not served makes an alert that never
//! fires and a panel that stays empty, and no other check would detect that.

use std::collections::{BTreeMap, BTreeSet};

use pintle_agent_core::probe::plan::ProbeOutcome;
use pintle_agent_core::testing::snapshot_of;
use pintle_agent_core::worker::ProbeKind;
use serde_json::Value;

use super::{families, full, view};
use crate::ProbeCounts;

const METRICS: &str = include_str!("../../../../docs/METRICS.md");
const ALERTS: &str = include_str!("../../../../deploy/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../../deploy/dashboard.json");

/// Labels that the scraper gives to everything.
const OF_THE_SCRAPER: [&str; 2] = ["instance", "job"];
/// Operators that join many series to few; the bracket may stand apart.
const AGGREGATIONS: [&str; 7] = ["sum", "avg", "min", "max", "count", "topk", "bottomk"];
/// Words between expressions.
const OPERATORS: [&str; 4] = ["and", "or", "unless", "bool"];

/// Names of families as a table gives them.
#[derive(Debug)]
pub(super) struct Pattern {
    begin: String,
    is_open: bool,
    labels: Option<BTreeSet<String>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let (name, labels) = text.split_once('{').map_or((text, None), |(n, l)| (n, Some(l)));
        let labels = labels.map(|l| l.trim_end_matches('}').split(',').map(str::to_owned));
        let begin = name.strip_suffix('*');
        Self {
            begin: begin.unwrap_or(name).to_owned(),
            is_open: begin.is_some(),
            labels: labels.map(Iterator::collect),
        }
    }

    pub(super) fn covers(&self, family: &str) -> bool {
        if self.is_open { family.starts_with(&self.begin) } else { family == self.begin }
    }
}

/// The table below a heading: its rows, a row the cells.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = METRICS.split_once(&format!("## {heading}\n")).expect("the heading");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
    let rows: Vec<_> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "{heading}");
    rows
}

/// The names of a cell. `.._x` is the name before it with another end.
fn names(cell: &str) -> Vec<Pattern> {
    let mut before = "";
    let texts = cell.split('`').skip(1).step_by(2);
    let texts = texts.map(|text| match text.strip_prefix("..") {
        None => {
            before = text;
            text.to_owned()
        }
        Some(end) => {
            // The longest beginning with which there is such a family.
            let cuts = before.char_indices().rev().filter(|(_, c)| *c == '_').map(|(at, _)| at);
            let mut all = cuts.map(|at| format!("{}{end}", &before[..at]));
            let served = served();
            all.find(|name| served.contains_key(name)).unwrap_or_else(|| text.to_owned())
        }
    });
    texts.map(|text| Pattern::new(&text)).collect()
}

/// Families of the kubelet that are documented as absent.
pub(super) fn absent() -> Vec<Pattern> {
    table("Absent").iter().flat_map(|row| names(row[0])).collect()
}

/// Every family of the agent's own expositions, with type and labels.
fn served() -> BTreeMap<String, Value> {
    let probes = ProbeCounts::default();
    let took = std::time::Duration::from_secs(1);
    for result in [ProbeOutcome::Success, ProbeOutcome::Failure] {
        probes.ended(&"u".into(), "c", ProbeKind::Liveness, result, took);
    }
    let pod = view(serde_json::json!({"metadata": {"name": "p", "uid": "u"}}));
    let mut all = families(&full());
    all.extend(families(&probes.render(&snapshot_of(vec![pod]), 1.0)));
    all
}

/// Every registered family, served or not, counters without `_total`. The library shows them in its
/// debug output only.
fn registered() -> BTreeSet<String> {
    let text = format!("{:?}", super::touched().registry);
    let names = text.split("Descriptor { name: \"").skip(1).filter_map(|rest| rest.split_once('"'));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn labels(family: &Value) -> BTreeSet<String> {
    let labels = family["labels"].as_array().into_iter().flatten();
    labels.filter_map(|label| label.as_str().map(str::to_owned)).collect()
}

#[test]
fn the_agents_own_families_are_those_of_the_table() {
    let served = served();
    let mut told = BTreeSet::new();
    for row in table("Of the agent alone") {
        let pattern = names(row[0]).pop().expect("a name");
        let family = served.get(&pattern.begin);
        let family = family.unwrap_or_else(|| panic!("{} is not served", pattern.begin));
        assert_eq!(pattern.labels.unwrap_or_default(), labels(family), "{}", pattern.begin);
        let kind = row[1].split(',').next().unwrap_or_default();
        assert_eq!(family["type"], kind, "{}", pattern.begin);
        told.insert(pattern.begin);
    }
    let own = served.keys().filter(|name| name.starts_with("pintle_")).cloned();
    assert_eq!(own.collect::<BTreeSet<_>>(), told);
}

#[test]
fn metrics_worth_watching_are_served_and_absent_families_are_not() {
    let served = served();
    for row in table("Worth watching") {
        for pattern in names(row[0]) {
            let found: Vec<_> = served.iter().filter(|(name, _)| pattern.covers(name)).collect();
            assert!(!found.is_empty(), "{pattern:?} is not served");
            for (_, family) in found {
                assert!(pattern.labels.iter().all(|l| l.is_subset(&labels(family))), "{pattern:?}");
            }
        }
    }
    // A family without an event yet is served after the first one.
    let registered = registered();
    assert!(registered.contains("kubelet_evictions") && !served.contains_key("kubelet_evictions"));
    let all: Vec<_> = served.keys().cloned().chain(registered).collect();
    for pattern in absent() {
        let is_it =
            |name: &&String| pattern.covers(name) || pattern.covers(&format!("{name}_total"));
        let found = all.iter().find(is_it);
        assert!(found.is_none(), "{found:?} is there after all");
    }
}

/// The families of an expression of PromQL, with the labels that it selects by, and the labels that
/// are left of an aggregation.
#[derive(Debug, Default, PartialEq, Eq)]
struct PromqlFamily {
    families: Vec<(String, Vec<String>)>,
    left: Vec<String>,
    is_aggregated: bool,
}

fn asked(expression: &str) -> PromqlFamily {
    let mut asked = PromqlFamily::default();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        let until = |end: char| rest[1..].find(end).map_or(rest.len(), |at| at + 2);
        let word_len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_len);
        let next = after.trim_start();
        let inside = |end: char| next[1..].split(end).next().unwrap_or_default();
        rest = match first {
            '"' => &rest[until('"')..],
            '[' => &rest[until(']')..],
            _ if word_len == 0 => &rest[first.len_utf8()..],
            _ if first.is_ascii_digit() => after,
            _ if word == "by" => {
                asked.is_aggregated = true;
                asked.left.extend(inside(')').split(',').map(|label| label.trim().to_owned()));
                next.split_once(')').map_or("", |(_, rest)| rest)
            }
            _ if AGGREGATIONS.contains(&word) => {
                asked.is_aggregated = true;
                after
            }
            _ if OPERATORS.contains(&word) || next.starts_with('(') => after,
            _ if next.starts_with('{') => {
                let (selector, rest) = selector(&next[1..]);
                asked.families.push((word.to_owned(), selector));
                rest
            }
            _ => {
                asked.families.push((word.to_owned(), Vec::new()));
                after
            }
        };
    }
    asked
}

/// The labels of a selector, and the text behind its bracket.
fn selector(text: &str) -> (Vec<String>, &str) {
    let (mut labels, mut rest) = (Vec::new(), text);
    while let Some((label, value)) = rest.split_once(['=', '!']) {
        labels.push(label.trim_matches([',', ' ']).to_owned());
        rest = value.splitn(3, '"').nth(2).expect("a value in quotes");
        if let Some(after) = rest.trim_start().strip_prefix('}') {
            return (labels, after);
        }
    }
    panic!("a selector without an end: {text}");
}

/// Every expression with the texts that show its labels.
fn expressions(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        Value::Object(fields) => {
            if let Some(expression) = fields.get("expr").and_then(Value::as_str) {
                let shown = ["legendFormat", "annotations"].map(|key| value[key].to_string());
                found.push((expression.to_owned(), shown.join(" ")));
            }
            let query = fields.get("query").and_then(Value::as_str).unwrap_or_default();
            if let Some(values) = query.strip_prefix("label_values(") {
                let (family, label) = values.split_once(", ").expect("a family and a label");
                let shown = format!("{{{{{}}}}}", label.trim_end_matches(')'));
                found.push((family.to_owned(), shown));
            }
            fields.values().for_each(|field| expressions(field, found));
        }
        _ => {}
    }
}

/// The labels that a text shows: `{{ $labels.x }}` of a rule, `{{x}}` of a legend.
fn shown(text: &str) -> impl Iterator<Item = &str> {
    let inside = text.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
    inside.map(|(label, _)| label.trim()).map(|label| label.trim_start_matches("$labels."))
}

#[test]
fn alerts_and_dashboard_query_only_served_metrics_and_labels() {
    let served = served();
    let alerts: Value = serde_saphyr::from_str(ALERTS).expect("rules are YAML");
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("a dashboard is JSON");
    for (file, document) in [("alerts", alerts), ("dashboard", dashboard)] {
        let mut found = Vec::new();
        expressions(&document, &mut found);
        assert!(!found.is_empty(), "{file} asks for nothing");
        for (expression, texts) in found {
            let asked = asked(&expression);
            assert!(!asked.families.is_empty(), "{file}: {expression}");
            let mut known: BTreeSet<String> = OF_THE_SCRAPER.map(str::to_owned).into();
            for (name, by) in &asked.families {
                let ends = ["_bucket", "_sum", "_count"].into_iter();
                let mut ends = ends.filter_map(|end| name.strip_suffix(end));
                let histogram =
                    ends.find(|n| served.get(*n).is_some_and(|f| f["type"] == "histogram"));
                let family = served.get(histogram.unwrap_or(name));
                let family = family.unwrap_or_else(|| panic!("{file}: {name} is not served"));
                let mut own = labels(family);
                own.extend(OF_THE_SCRAPER.map(str::to_owned));
                own.extend(histogram.map(|_| "le".to_owned()));
                let strange: Vec<_> = by.iter().filter(|label| !own.contains(*label)).collect();
                assert!(strange.is_empty(), "{file}: {name} has no {strange:?}");
                known.extend(own);
            }
            let left: BTreeSet<String> = asked.left.iter().cloned().collect();
            assert!(left.is_subset(&known), "{file}: {left:?} of {expression}");
            let visible = if asked.is_aggregated { &left } else { &known };
            for label in shown(&texts) {
                assert!(visible.contains(label), "{file}: {label} is not left of {expression}");
            }
        }
    }
}

#[test]
fn expressions_are_taken_apart() {
    let text = |all: &[&str]| all.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    let plain = |name: &str| (name.to_owned(), Vec::new());
    let join = "sum by (instance, le) (rate(a_bucket{b=~\"x, }\"}[10m])) / c > 0.1 and d";
    for (expression, families, left) in [
        ("up == 1", vec![plain("up")], text(&[])),
        ("rate(a{b=\"c\",d!~\"e\"}[5m]) > 200e6", vec![("a".into(), text(&["b", "d"]))], text(&[])),
        (
            join,
            vec![("a_bucket".into(), text(&["b"])), plain("c"), plain("d")],
            text(&["instance", "le"]),
        ),
    ] {
        let asked = asked(expression);
        assert_eq!((asked.families, asked.left), (families, left), "{expression}");
    }
    assert_eq!(shown("a {{ $labels.x }} b {{y}}").collect::<Vec<_>>(), ["x", "y"]);
}
