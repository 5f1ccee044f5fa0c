//! The result of a comparison: counts by controller and reason, and the last differences.
//!
//! Input: verdicts. Output: a text, JSON, and one line in the log for each difference. Bounds:
//! `KEPT_MAX` differences are kept.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use serde::Serialize;

/// Differences that are kept.
const KEPT_MAX: usize = 256;

/// The one side that would write, or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteSide {
    /// The shadow would write, and the acting manager did not.
    Ours,
    /// The acting manager wrote, and the shadow would not have.
    Theirs,
    /// The shadow would have deleted an object, and then would not have any more.
    Withdrawn,
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteDifference {
    /// The controller.
    pub controller: &'static str,
    /// The kind of write, such as `create pods`.
    pub reason: String,
    /// The one side that would write.
    pub side: WriteSide,
    /// The object.
    pub object: String,
    /// The content of the write.
    pub content: String,
}

/// Counts of one controller and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonCounts {
    /// Both wrote the same.
    pub same: u64,
    /// The shadow would write, and before the other wrote something changed.
    pub overtaken: u64,
    /// The shadow alone would write.
    pub ours_only: u64,
    /// The other alone wrote.
    pub theirs_only: u64,
    /// The API server refuses the other's write.
    pub refused: u64,
    /// The shadow would have deleted, and then not any more.
    pub withdrawn: u64,
}

/// The result of a comparison so far.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowReport {
    /// By controller, then by reason.
    pub counts: BTreeMap<&'static str, BTreeMap<String, ReasonCounts>>,
    /// Deletions that may be a user's as well as a controller's.
    pub unattributed_deletions: u64,
    /// Syncs of the shadow that failed, by controller.
    pub failed_syncs: BTreeMap<&'static str, u64>,
    /// The last differences, the newest at the end.
    pub differences: VecDeque<WriteDifference>,
    /// Those that were not taken yet.
    #[serde(skip)]
    fresh: Vec<WriteDifference>,
}

impl ShadowReport {
    pub(super) fn of(&mut self, controller: &'static str, reason: &str) -> &mut ReasonCounts {
        let reasons = self.counts.entry(controller).or_default();
        if !reasons.contains_key(reason) {
            reasons.insert(reason.to_owned(), ReasonCounts::default());
        }
        reasons.get_mut(reason).expect("it was inserted")
    }

    pub(super) fn add(&mut self, found: WriteDifference) {
        let counts = self.of(found.controller, &found.reason);
        match found.side {
            WriteSide::Ours => counts.ours_only += 1,
            WriteSide::Theirs => counts.theirs_only += 1,
            WriteSide::Withdrawn => counts.withdrawn += 1,
        }
        if self.differences.len() >= KEPT_MAX {
            self.differences.pop_front();
        }
        self.fresh.push(found.clone());
        self.differences.push_back(found);
    }

    /// The differences since the last call, to be logged.
    pub fn take_fresh(&mut self) -> Vec<WriteDifference> {
        std::mem::take(&mut self.fresh)
    }

    /// Differences so far.
    pub fn different(&self) -> u64 {
        let all = self.counts.values().flat_map(BTreeMap::values);
        all.map(|counts| counts.ours_only + counts.theirs_only + counts.withdrawn).sum()
    }
}

impl fmt::Display for WriteDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { controller, reason, object, content, .. } = self;
        let who = match self.side {
            WriteSide::Ours => "the shadow alone would",
            WriteSide::Theirs => "the acting manager alone did",
            WriteSide::Withdrawn => "the shadow would have, and later not,",
        };
        write!(f, "{controller}: {who} {reason} {object}")?;
        if content.is_empty() { Ok(()) } else { write!(f, ": {content}") }
    }
}

impl fmt::Display for ShadowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (controller, reasons) in &self.counts {
            for (reason, counts) in reasons {
                let ReasonCounts { same, overtaken, ours_only, theirs_only, refused, withdrawn } =
                    counts;
                writeln!(
                    f,
                    "{controller}: {reason}: same {same}, ours only {ours_only}, theirs only \
                     {theirs_only}, overtaken {overtaken}, refused {refused}, withdrawn {withdrawn}"
                )?;
            }
        }
        for (controller, failed) in &self.failed_syncs {
            writeln!(f, "{controller}: {failed} syncs failed")?;
        }
        writeln!(
            f,
            "deletions that may be a user's: {}; differences: {}",
            self.unattributed_deletions,
            self.different()
        )?;
        self.differences.iter().try_for_each(|found| writeln!(f, "{found}"))
    }
}
