//! Health of the connection to the API server for users: the failing task, since when, and the
//! error text; and the pending write of each pod.
//!
//! Input: clients of the API server report the result of each request. Output: sentences for `pods`
//! and `explain`, read by the server's thread. Clones share one board. Bounds: one entry for each
//! `Task`, one for each pod with something unwritten; `WORDS_BYTES_MAX` of text from the API
//! server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pintle_api_types::ids::{PodUid, UnixNanos};

/// Longest words of the API server that are kept.
const WORDS_BYTES_MAX: usize = 512;

/// A kind of request to the API server on behalf of the whole node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// The Node object is created or found.
    Registration,
    /// Pods are listed and watched.
    Pods,
    /// The node's lease is renewed and its status written.
    Heartbeat,
}

/// A persistent failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since: UnixNanos,
    /// How often it was tried.
    pub tries: u32,
    /// The last error: the API server's message, or the reason for no answer.
    pub words: String,
}

impl Trouble {
    /// Adds a failed try to the failure before.
    pub fn again(before: Option<Self>, words: &str, now: UnixNanos) -> Self {
        let (since, tries) = before.map_or((now, 0), |trouble| (trouble.since, trouble.tries));
        let words = words[..words.floor_char_boundary(WORDS_BYTES_MAX)].to_owned();
        Self { since, tries: tries.saturating_add(1), words }
    }
}

/// A write for a pod that the API server has not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// `its status`, `its deletion`, `its mirror pod`.
    pub what: &'static str,
    /// Why not.
    pub trouble: Trouble,
}

#[derive(Debug, Default)]
struct Board {
    tasks: BTreeMap<Task, Trouble>,
    pods: BTreeMap<PodUid, Unwritten>,
}

/// The board; clones share it.
#[derive(Clone, Debug, Default)]
pub struct ApiHealth(Arc<Mutex<Board>>);

impl ApiHealth {
    /// A try failed.
    pub fn fails(&self, task: Task, words: &str, now: UnixNanos) {
        let mut board = self.board();
        let before = board.tasks.remove(&task);
        board.tasks.insert(task, Trouble::again(before, words, now));
    }

    /// It works.
    pub fn works(&self, task: Task) {
        self.board().tasks.remove(&task);
    }

    /// Records the pending write of each of these pods; other pods keep theirs.
    pub fn unwritten(&self, news: BTreeMap<PodUid, Option<Unwritten>>) {
        if news.is_empty() {
            return;
        }
        let mut board = self.board();
        for (uid, unwritten) in news {
            match unwritten {
                Some(unwritten) => drop(board.pods.insert(uid, unwritten)),
                None => drop(board.pods.remove(&uid)),
            }
        }
    }

    /// The pending write of this pod.
    pub fn of_pod(&self, uid: &PodUid) -> Option<Unwritten> {
        self.board().pods.get(uid).cloned()
    }

    /// The failing tasks of the whole node.
    pub fn troubles(&self) -> Vec<(Task, Trouble)> {
        let board = self.board();
        board.tasks.iter().map(|(task, trouble)| (*task, trouble.clone())).collect()
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_failure_keeps_its_start_and_last_error_until_the_next_success() {
        let api_health = ApiHealth::default();
        api_health.fails(Task::Pods, "first", UnixNanos(5));
        api_health.fails(Task::Pods, &"ä".repeat(600), UnixNanos(9));
        let troubles = api_health.troubles();
        let [(Task::Pods, trouble)] = &troubles[..] else { panic!("{troubles:?}") };
        assert_eq!((trouble.since, trouble.tries), (UnixNanos(5), 2));
        assert_eq!(trouble.words.chars().count(), WORDS_BYTES_MAX / 2);
        api_health.works(Task::Pods);
        assert!(api_health.troubles().is_empty());
    }

    #[test]
    fn failed_write_of_a_pod_is_reported_until_a_newer_result_for_that_pod() {
        let api_health = ApiHealth::default();
        let trouble = || Trouble::again(None, "no", UnixNanos(1));
        let unwritten = || Some(Unwritten { what: "its status", trouble: trouble() });
        api_health.unwritten([of("a", unwritten()), of("b", unwritten())].into());
        api_health.unwritten([of("a", None)].into());
        assert_eq!(api_health.of_pod(&"a".into()), None);
        assert_eq!(api_health.of_pod(&"b".into()), unwritten());
    }

    fn of(uid: &str, news: Option<Unwritten>) -> (PodUid, Option<Unwritten>) {
        (PodUid::from(uid), news)
    }
}
