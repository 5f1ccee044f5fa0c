//! Benchmark results as JSON, with the circumstances that the numbers depend on.
//!
//! Input: the table's rows. Output: `target/bench/NAME.json`, replaced by the next run. A number
//! without its machine, commit and load means nothing, so they are in the same file.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::table::{self, Goal, Row};
use crate::{repository, shell, upstream};

/// Form of the file: fields are only added within one version.
const FORMAT_VERSION: u32 = 1;

/// Prints the rows of the benchmark `name`, compared with `bound`, keeps them, and returns the
/// file.
pub fn show(name: &str, bound: &str, rows: &[Row]) -> Result<PathBuf> {
    table::print(bound, rows);
    keep(name, bound, rows)
}

fn keep(name: &str, bound: &str, rows: &[Row]) -> Result<PathBuf> {
    let dir = repository().join("target/bench");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let path = dir.join(format!("{name}.json"));
    let text = serde_json::to_vec_pretty(&report(name, bound, rows, circumstances()))?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn report(name: &str, bound: &str, rows: &[Row], circumstances: Value) -> Value {
    json!({
        "formatVersion": FORMAT_VERSION,
        "benchmark": name,
        "comparedWith": bound,
        "circumstances": circumstances,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let goal = match row.goal {
        Goal::Ratio(most) => json!({"ratioMax": most}),
        Goal::Limit(most) => json!({"max": most}),
        Goal::None => Value::Null,
    };
    json!({
        "measure": row.measure,
        "unit": row.unit,
        "goal": goal,
        "ours": row.ours,
        "other": row.bound,
        "ratio": row.ratio(),
        "met": row.met(),
    })
}

/// Machine, commit, load and versions; what cannot be found out is null.
fn circumstances() -> Value {
    let file = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let said = |program: &str, args: &[&str]| {
        let mut cmd = Command::new(program);
        cmd.args(args).current_dir(repository());
        shell::capture(&mut cmd).ok().map(|text| text.trim().to_owned())
    };
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    json!({
        "commit": said("git", &["rev-parse", "HEAD"]),
        "uncommittedChanges": changed.map(|text| !text.is_empty()),
        "cpu": file("/proc/cpuinfo").as_deref().and_then(|text| field(text, "model name")),
        "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory": file("/proc/meminfo").as_deref().and_then(|text| field(text, "MemTotal")),
        "kernel": file("/proc/sys/kernel/osrelease"),
        "loadAverage": file("/proc/loadavg"),
        "rustc": said("rustc", &["--version"]),
        "kubernetes": upstream::VERSION,
        "unixSeconds": std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs()),
    })
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_row_has_its_goal_and_whether_the_goal_is_met() {
        let rows = [Row {
            measure: "idle".into(),
            unit: "%",
            goal: Goal::Ratio(0.5),
            ours: 1.0,
            bound: Some(4.0),
        }];
        let report = report("b", "kubelet", &rows, json!({"cores": 2}));
        assert_eq!(
            report["rows"][0],
            json!({"measure": "idle", "unit": "%", "goal": {"ratioMax": 0.5}, "ours": 1.0,
                "other": 4.0, "ratio": 0.25, "met": true})
        );
        assert_eq!(report["circumstances"]["cores"], 2);
    }

    #[test]
    fn the_circumstances_of_this_machine_are_found() {
        let found = circumstances();
        for name in ["cores", "memory", "kernel", "loadAverage", "unixSeconds"] {
            assert!(!found[name].is_null(), "{name}: {found}");
        }
        assert_eq!(field("a\t: 1\nmodel name\t: X 2\n", "model name").as_deref(), Some("X 2"));
    }
}
