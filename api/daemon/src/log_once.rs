//! Logs a persistent problem once: when it is new, when it changes, once an hour while it lasts,
//! and when it is over.
//!
//! Input: the result of a check, in one sentence, or nothing. Output: a line for the log, mostly
//! none. Pure but for `RepeatLine::log`. Bound: one sentence.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// A problem that lasts is logged again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// Remembers the last logged problem, and the time.
#[derive(Debug, Default)]
pub struct RepeatSuppressor(Option<(String, Instant)>);

/// A line to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatLine {
    /// The problem is there.
    So(String),
    /// The problem is over.
    Over(String),
}

impl RepeatSuppressor {
    /// Takes the result of a check.
    pub fn take(&mut self, found: Option<String>, now: Instant) -> Option<RepeatLine> {
        let Some(found) = found else {
            return self.0.take().map(|(logged, _)| RepeatLine::Over(logged));
        };
        let is_known = |(logged, at): &&(String, Instant)| {
            *logged == found && now.saturating_duration_since(*at) < AGAIN_AFTER
        };
        if self.0.as_ref().filter(is_known).is_some() {
            return None;
        }
        self.0 = Some((found.clone(), now));
        Some(RepeatLine::So(found))
    }
}

impl RepeatLine {
    /// Writes it.
    pub fn log(&self) {
        match self {
            Self::So(text) => tracing::warn!("{text}"),
            Self::Over(text) => tracing::info!("no longer so: {text}"),
        }
    }
}

/// One sentence about objects of one kind that could not be removed, each with its reason.
pub fn stays<N: Display + Ord>(kind: &str, kept: &[(N, String)]) -> Option<String> {
    // The choice must be the same the next time, or it looks like another sentence.
    let (name, reason) = kept.iter().min()?;
    let more = match kept.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    Some(format!("{kind} cannot be removed yet: {name}: {reason}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_problem_is_logged_when_new_changed_or_over_and_hourly() {
        let (begun, mut told) = (Instant::now(), RepeatSuppressor::default());
        let so = |text: &str| Some(RepeatLine::So(text.to_owned()));
        let over = |text: &str| Some(RepeatLine::Over(text.to_owned()));
        let looks = [
            (0, None, None),
            (30, Some("a"), so("a")),
            (60, Some("a"), None),
            (3629, Some("a"), None),
            (3630, Some("a"), so("a")),
            (3660, Some("a"), None),
            (3690, Some("b"), so("b")),
            (3720, None, over("b")),
            (3750, None, None),
            (3780, Some("b"), so("b")),
        ];
        for (second, found, line) in looks {
            let now = begun + Duration::from_secs(second);
            assert_eq!(told.take(found.map(str::to_owned), now), line, "at {second}");
        }
    }

    #[test]
    fn remaining_items_are_reported_by_the_same_item_in_any_order() {
        let found = |names: &[&str]| {
            let kept: Vec<_> = names.iter().map(|n| (n.to_owned(), "busy".to_owned())).collect();
            stays("folders", &kept)
        };
        assert_eq!(found(&[]), None);
        let one = "folders cannot be removed yet: a: busy";
        assert_eq!(found(&["a"]).as_deref(), Some(one));
        let two = Some(format!("{one} (and 1 more)"));
        assert_eq!([found(&["a", "b"]), found(&["b", "a"])], [two.clone(), two]);
    }
}
