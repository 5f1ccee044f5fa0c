//! When a recording began, from the times in it.
//!
//! Input: a recording. Output: the latest start that its times prove. The creation time of an
//! object has whole seconds and is not after its creation; a CronJob creates no Job before the
//! scheduled time. So the start is at most a second, and with a CronJob a few milliseconds, too
//! early.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::play::at_ms;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The start of a recording without any time.
const SOME_START: i64 = 1_800_000_000;

/// When the first step was done.
pub(super) fn start_of(recording: &Value) -> Timestamp {
    let found = bounds(recording).into_iter().max();
    found.unwrap_or_else(|| Timestamp::from_second(SOME_START).expect("a time"))
}

/// Times that the start is not before.
fn bounds(recording: &Value) -> Vec<Timestamp> {
    let list = |part: &str| recording[part].as_array().into_iter().flatten();
    let mut created: BTreeMap<String, u64> = BTreeMap::new();
    for step in list("steps") {
        if let Some(path) = step["what"].as_str().and_then(|what| what.strip_prefix("create ")) {
            created.entry(path.to_owned()).or_insert_with(|| at_ms(step));
        }
    }
    let mut bounds = Vec::new();
    let mut add = |text: &Value, at: u64| {
        let time = text.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        bounds.extend(time.map(|time| time - Duration::from_millis(at)));
    };
    for write in list("writes").filter(|write| write["code"].as_u64() < Some(400)) {
        let metadata = &write["body"]["metadata"];
        let text = |field: &str| write[field].as_str().unwrap_or_default();
        let path = format!("{}/{}", text("resource"), text("name"));
        if write["verb"] == "create" {
            created.insert(path.clone(), at_ms(write));
        }
        if let Some(at) = created.get(&path) {
            add(&metadata["creationTimestamp"], *at);
        }
        add(&metadata["annotations"][SCHEDULED], at_ms(write));
    }
    bounds
}
