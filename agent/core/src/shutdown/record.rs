//! The record that an agent leaves for the next one: since when the node shuts down, and its
//! progress.
//!
//! The kubelet's file and its fields, with three more that the kubelet ignores: an agent that dies
//! in the middle continues there. Pure: text in, text out. Times are of the wall clock, because
//! only that outlasts a process and is common to other readers.
// k8s: pkg/kubelet/nodeshutdown/storage.go

use std::time::Duration;

use serde::{Deserialize, Serialize};

use pintle_api_types::ids::UnixNanos;

/// Name of the file below the root directory.
pub const STATE_FILE: &str = "graceful_node_shutdown_state";
/// A time that is not set, as Go writes it.
const ZERO: &str = "0001-01-01T00:00:00Z";

/// How far a shutdown has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownRecord {
    /// When it began.
    pub started_at: UnixNanos,
    /// When the last group was over, or it was given up.
    pub ended_at: Option<UnixNanos>,
    /// Priority of the group under way, and when its time is up.
    pub group: Option<(i32, UnixNanos)>,
    /// The machine stays up.
    pub cancelled: bool,
}

/// A file without a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No JSON of this form.
    #[error("it is not the state of a shutdown")]
    Json(#[from] serde_json::Error),
    /// A time is none.
    #[error("{field} is not a time: {text:?}")]
    Time {
        /// Which.
        field: &'static str,
        /// Its text.
        text: String,
    },
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RecordFile {
    start_time: String,
    end_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_priority: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    group_end_time: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancelled: bool,
}

impl ShutdownRecord {
    /// The text of the file.
    pub fn text(&self) -> String {
        let told = |at: UnixNanos| at.to_timestamp().to_string();
        let file = RecordFile {
            start_time: told(self.started_at),
            end_time: self.ended_at.map_or_else(|| ZERO.to_owned(), told),
            group_priority: self.group.map(|(priority, _)| priority),
            group_end_time: self.group.map(|(_, until)| told(until)).unwrap_or_default(),
            cancelled: self.cancelled,
        };
        serde_json::to_string(&file).expect("plain data serialises")
    }

    /// The record in a file; `None` when no shutdown has begun.
    pub fn of_text(text: &str) -> Result<Option<Self>, RecordError> {
        let file: RecordFile = serde_json::from_str(text)?;
        let Some(started_at) = time("startTime", &file.start_time)? else { return Ok(None) };
        let until = time("groupEndTime", &file.group_end_time)?;
        Ok(Some(Self {
            started_at,
            ended_at: time("endTime", &file.end_time)?,
            group: file.group_priority.zip(until),
            cancelled: file.cancelled,
        }))
    }

    /// True if the shutdown began in this boot, by the machine's uptime, and was not given up.
    pub fn is_of_this_boot(&self, now: UnixNanos, up_for: Duration) -> bool {
        !self.cancelled && now.since(self.started_at) <= up_for
    }
}

fn time(field: &'static str, text: &str) -> Result<Option<UnixNanos>, RecordError> {
    if text.is_empty() || text == ZERO {
        return Ok(None);
    }
    let wrong = || RecordError::Time { field, text: text.to_owned() };
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    i64::try_from(time.as_nanosecond()).map(|nanos| Some(UnixNanos(nanos))).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shutdown_record_uses_the_kubelets_file_format() {
        // Recorded from storage.go's Store.
        let theirs = r#"{"startTime":"2026-03-01T10:00:00.5Z","endTime":"0001-01-01T00:00:00Z"}"#;
        let record = ShutdownRecord::of_text(theirs).expect("a record").expect("a start");
        let at = UnixNanos(1_772_359_200_500_000_000);
        assert_eq!(record, ShutdownRecord { started_at: at, ..ShutdownRecord::default() });
        let ended = ShutdownRecord { ended_at: Some(at), ..record.clone() };
        let text = ended.text();
        assert!(text.contains(r#""endTime":"2026-03-01T10:00:00.5Z""#), "{text}");
        assert!(record.text().starts_with(&theirs[..theirs.len() - 1]), "{}", record.text());
        let none = ShutdownRecord::of_text(r#"{"startTime":"0001-01-01T00:00:00Z"}"#);
        assert_eq!(none.expect("a file"), None);
        for broken in ["", "7", r#"{"startTime":"yesterday"}"#, r#"{"startTime":7}"#] {
            assert!(ShutdownRecord::of_text(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn shutdown_record_counts_only_in_its_own_boot() {
        let second = |at: i64| UnixNanos(at * 1_000_000_000);
        let record = ShutdownRecord { started_at: second(100), ..ShutdownRecord::default() };
        let up_for = Duration::from_secs(50);
        assert!(record.is_of_this_boot(second(130), up_for));
        assert!(!record.is_of_this_boot(second(151), up_for));
        assert!(!ShutdownRecord { cancelled: true, ..record }.is_of_this_boot(second(130), up_for));
    }

    proptest! {
        #[test]
        fn shutdown_record_round_trips(
            times in prop::collection::vec(1..i64::MAX / 2, 3), priority in any::<i32>(),
            ended in any::<bool>(), grouped in any::<bool>(), cancelled in any::<bool>(),
        ) {
            let record = ShutdownRecord {
                started_at: UnixNanos(times[0]),
                ended_at: ended.then_some(UnixNanos(times[1])),
                group: grouped.then_some((priority, UnixNanos(times[2]))),
                cancelled,
            };
            prop_assert_eq!(ShutdownRecord::of_text(&record.text()).expect("a record"), Some(record));
        }
    }
}
