//! Replaces a scheduler with a torn cache by one that reads the cluster again.
//!
//! ```text
//!   torn ──> bindings under way end ──> watches end ──> successor lists again, keeps setbacks
//! ```
//! Input: settings, watches. Output: a scheduler in the state of a standby that has just become the
//! leader. Owner: the deciding thread. Bounds: `DRAIN_MAX` for bindings, at most one rebuild each
//! `WAIT_MAX` when they follow each other. Why not an exit: the same pod or object would crash the
//! next process, and each standby too; only this process knows which one it was.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use pintle_api::Clients;
use pintle_daemon::tasks;
use pintle_scheduler_core::cycle::Scheduler;

use pintle_scheduler_core::groups::Groups;
use pintle_scheduler_core::watch_event::WatchEvent;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{RunningScheduler, start};
use crate::daemon::Settings;
use crate::watch::{self, WATCH_EVENTS_MAX};

/// Longest wait for bindings in flight. Later answers would count as the successor's.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The first wait before a rebuild that follows another one, and the longest: well below the time
/// after which a standby logs missing lists, and after which the thread counts as stuck.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(20);
/// After this time without a rebuild the waits restart at the first.
const APART: Duration = Duration::from_secs(300);

/// Waits between rebuilds.
#[derive(Debug, Default)]
pub(super) struct Rebuilds {
    last: Option<Duration>,
    wait: Duration,
}

impl Rebuilds {
    /// Returns the wait before the rebuild that is due now.
    fn wait(&mut self, now: Duration) -> Duration {
        let follows = self.last.is_some_and(|last| now.saturating_sub(last) < APART);
        let next = self.wait.saturating_mul(2).clamp(WAIT_FIRST, WAIT_MAX);
        self.wait = if follows { next } else { Duration::ZERO };
        self.last = Some(now.saturating_add(self.wait));
        self.wait
    }
}

/// Returns a factory of empty schedulers with these settings.
pub(super) fn maker(
    settings: &Settings,
    of_others: start::OfOthers,
    seed: u64,
) -> Box<dyn Fn() -> Scheduler> {
    let (profiles, queue) = (settings.profiles.clone(), settings.queue);
    let (devices, groups) = (settings.devices, settings.groups);
    let extenders = settings.extenders.clone();
    Box::new(move || {
        let scheduler = Scheduler::new(profiles.clone(), queue, seed);
        let scheduler = scheduler.with_device_gates(devices);
        let scheduler = scheduler.with_extenders(extenders.clone());
        let scheduler = match groups {
            Some(gates) => scheduler.with_groups(Groups::new(gates)),
            None => scheduler,
        };
        scheduler.with_plugins(of_others.plugins.clone(), of_others.handle.clone())
    })
}

/// The watches of one scheduler.
pub(super) struct SchedulerWatches {
    clients: Rc<Clients>,
    has_groups: bool,
    has_rules: bool,
    whole: bool,
    all: Vec<JoinHandle<()>>,
}

impl SchedulerWatches {
    /// Starts the watches, within a `LocalSet`.
    pub(super) fn begin(
        clients: Clients,
        settings: &Settings,
        whole: bool,
    ) -> (Self, mpsc::Receiver<WatchEvent>) {
        let (has_groups, has_rules) = (settings.groups.is_some(), settings.devices.taint_rules);
        let clients = Rc::new(clients);
        let mut watches = Self { clients, has_groups, has_rules, whole, all: Vec::new() };
        let watch_events = watches.again();
        (watches, watch_events)
    }

    /// Ends all watches and starts new ones, which deliver lists first.
    fn again(&mut self) -> mpsc::Receiver<WatchEvent> {
        self.all.drain(..).for_each(|watch| watch.abort());
        let (events, watch_events) = mpsc::channel(WATCH_EVENTS_MAX);
        let client = || self.clients.urgent();
        let mut all = watch::follow_all(client, &events, self.whole);
        all.extend(self.has_groups.then(|| watch::follow_groups(client(), &events)));
        all.extend(self.has_rules.then(|| watch::follow_rules(client(), &events)));
        self.all = all.into_iter().map(|(name, follows)| tasks::singleton(name, follows)).collect();
        watch_events
    }
}

impl RunningScheduler {
    /// Replaces a torn scheduler.
    ///
    /// # Errors
    /// Bindings of the old scheduler have no answer in time: another process may start with their
    /// results.
    pub(super) async fn rebuild(&mut self) -> Result<()> {
        // Commands from before the panic, and the pod's condition.
        self.carry_out(Duration::ZERO);
        let drains =
            async { while self.dispatcher.ahead() > 0 && self.ended.recv().await.is_some() {} };
        if tokio::time::timeout(DRAIN_MAX, drains).await.is_err() {
            let left = self.dispatcher.ahead();
            anyhow::bail!("the cache has to be read again, and {left} bindings have no answer");
        }
        while self.ended.try_recv().is_ok() {}
        self.state.turns.mark();
        let wait = self.rebuilds.wait(self.now());
        tokio::time::sleep(wait).await;
        self.state.turns.mark();
        let now = self.now();
        let mut successor = (self.make)();
        self.scheduler.succeed(&mut successor, now);
        self.watch_events = self.watches.again();
        self.scheduler = successor;
        self.state.metrics.net.rebuilt();
        tracing::warn!("the cluster is read again after a panic");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuilds_that_follow_each_other_wait_ever_longer() {
        let mut rebuilds = Rebuilds::default();
        let mut waits = |at: u64| rebuilds.wait(Duration::from_secs(at)).as_secs();
        assert_eq!([10, 11, 13, 20, 30, 60, 100].map(&mut waits), [0, 1, 2, 4, 8, 16, 20]);
        assert_eq!(waits(121), 20);
        assert_eq!(waits(1_000), 0, "long after the last one");
    }
}
