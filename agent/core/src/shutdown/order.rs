//! One shutdown: its current group, until when, and the meaning for a pod.
//!
//! Pure. A pod of a group that is under way ends within the rest of the group's time. A pod that is
//! found later than its group, by an agent that came in the middle, ends at once. Owner: `Pods`. It
//! only advances; each group's time is on the monotonic clock.

use serde::{Deserialize, Serialize};

use super::record::ShutdownRecord;
use super::windows::{Window, group_of};
use pintle_api_types::ids::{Mono, Now, UnixNanos};

/// Grace period of a pod of a group that is over, in seconds.
const LATE_GRACE_SECONDS: i64 = 1;

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    windows: Vec<Window>,
    started_at: UnixNanos,
    /// The group under way; as many as there are once all are over.
    group: usize,
    /// The group at which it began: pods of earlier groups end with it.
    first: usize,
    /// When the group's time is up.
    until: Mono,
    ended_at: Option<UnixNanos>,
}

impl Shutdown {
    /// It begins, or continues where an earlier agent was.
    pub fn begin(windows: Vec<Window>, resumed: Option<&ShutdownRecord>, now: Now) -> Self {
        let mut this = Self {
            windows,
            started_at: now.wall,
            group: 0,
            first: 0,
            until: now.mono,
            ended_at: None,
        };
        let Some(record) = resumed else {
            this.enter(0, now);
            return this;
        };
        this.started_at = record.started_at;
        match (record.ended_at, record.group) {
            (Some(_), _) => {
                this.group = this.windows.len();
                this.ended_at = record.ended_at;
            }
            (None, Some((priority, until))) => {
                this.enter(group_of(&this.windows, priority), now);
                // A clock that was set meanwhile gives no pod more time than the group has.
                this.until = this.until.min(now.mono.plus(until.since(now.wall)));
            }
            (None, None) => this.enter(0, now),
        }
        this.first = this.group;
        this
    }

    fn enter(&mut self, group: usize, now: Now) {
        self.group = group;
        match self.windows.get(group) {
            Some(window) => self.until = now.mono.plus(window.period()),
            None => self.ended_at = Some(now.wall),
        }
    }

    /// When it began, also if an earlier agent received the notice.
    pub fn began_at(&self) -> UnixNanos {
        self.started_at
    }

    /// True once every group is over.
    pub fn is_over(&self) -> bool {
        self.ended_at.is_some()
    }

    /// When the group's time is up; `None` when there is nothing to wait for any more.
    pub fn until(&self) -> Option<Mono> {
        (!self.is_over()).then_some(self.until)
    }

    fn index(&self, priority: i32) -> usize {
        group_of(&self.windows, priority).max(self.first)
    }

    /// True when a pod of this priority has to have ended before the next group's turn.
    pub fn is_waited_for(&self, priority: i32) -> bool {
        !self.is_over() && self.index(priority) == self.group
    }

    /// If a pod of this priority is to end by now: its group, and the longest grace that it may
    /// have, in seconds.
    // k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go killPods
    pub fn ends(&self, priority: i32, now: Mono) -> Option<(Window, i64)> {
        let own = group_of(&self.windows, priority);
        let window = *self.windows.get(own)?;
        if own < self.group {
            return Some((window, LATE_GRACE_SECONDS));
        }
        let left = self.until.since(now).as_nanos().div_ceil(1_000_000_000);
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        (own == self.group).then_some((window, left.min(window.seconds)))
    }

    /// The next group's turn, if this one is over: all of its pods have ended, or its time is up.
    /// True when it is.
    pub fn advance(&mut self, all_ended: bool, now: Now) -> bool {
        let is_over = !self.is_over() && (all_ended || now.mono >= self.until);
        if is_over {
            self.enter(self.group + 1, now);
        }
        is_over
    }

    /// Its record, for the owner of the file and for users.
    pub fn record(&self, now: Now) -> ShutdownRecord {
        let window = self.windows.get(self.group);
        ShutdownRecord {
            started_at: self.started_at,
            ended_at: self.ended_at,
            group: window.map(|window| (window.priority, now.wall_at(self.until))),
            cancelled: false,
        }
    }

    /// The same, once the machine stays up.
    pub fn cancelled(&self, now: Now) -> ShutdownRecord {
        let ended_at = self.ended_at.or(Some(now.wall));
        ShutdownRecord { started_at: self.started_at, ended_at, group: None, cancelled: true }
    }
}
