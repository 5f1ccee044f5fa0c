//! Sweeps regularly for remains of unwanted pods after a crash: directories, mounts, log folders,
//! links to logs, cgroups, shims.
//!
//! One sweep at a time, however long it takes: a volume of a dead NFS server holds up the removal
//! of directories and nothing else, and never a second thread. A sweep that is still under way when
//! the next one is due is counted, and logged once. Failed removals are logged through `log_once`.
//! Right before each removal the live snapshot is checked for the pod.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pintle_agent_core::node::conditions::NodeEvent;
use pintle_agent_core::observed::RunState;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::Pods;
use pintle_agent_host::volume;
use pintle_agent_metrics::Metrics;
use pintle_agent_runtime::execute::Executor;
use pintle_agent_server::Views;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::log_once::{self, RepeatLine, RepeatSuppressor};
use pintle_daemon::tasks;
use tokio::time::Instant;

/// The period of sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// A place for one holder at a time.
#[derive(Clone, Debug, Default)]
struct Single(Rc<Cell<bool>>);

impl Single {
    /// The place, unless it is taken. It is free again when `HeldSweep` is dropped.
    fn take(&self) -> Option<HeldSweep> {
        (!self.0.replace(true)).then(|| HeldSweep(self.clone()))
    }
}

struct HeldSweep(Single);

impl Drop for HeldSweep {
    fn drop(&mut self) {
        self.0.0.set(false);
    }
}

/// The failed removals that were logged.
#[derive(Debug, Default)]
struct Leftovers {
    dirs: RepeatSuppressor,
    logs: RepeatSuppressor,
}

/// Begins the sweeps.
pub(super) struct Sweeper {
    executor: Rc<Executor>,
    views: Views,
    root: PathBuf,
    metrics: Arc<Metrics>,
    due_at: Instant,
    groups: Single,
    folders: Single,
    leftovers: Rc<RefCell<Leftovers>>,
    is_slow_logged: bool,
}

impl Sweeper {
    pub(super) fn new(
        executor: Rc<Executor>,
        views: Views,
        root: PathBuf,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (groups, folders) = (Single::default(), Single::default());
        Self {
            executor,
            views,
            root,
            metrics,
            due_at: Instant::now(),
            groups,
            folders,
            leftovers: Rc::default(),
            is_slow_logged: false,
        }
    }

    /// Begins a sweep when it is due; not before every pod that is wanted or runs is known.
    pub(super) fn look(&mut self, pods: &Pods) {
        let now = Instant::now();
        if !pods.knows_all() || now < self.due_at {
            return;
        }
        self.due_at = now + SWEEP_EVERY;
        match self.groups.take() {
            Some(turn) => self.sweep_groups(turn),
            None => self.under_way("cgroups"),
        }
        match self.folders.take() {
            Some(turn) => self.sweep_folders(turn, pods),
            None => self.under_way("directories"),
        }
    }

    fn under_way(&mut self, what: &'static str) {
        self.metrics.limit_hit("orphan sweeps");
        if !std::mem::replace(&mut self.is_slow_logged, true) {
            tracing::warn!(
                "looking for {what} that are left over takes longer than {SWEEP_EVERY:?}; does a \
                 file system hang?"
            );
        }
    }

    fn sweep_groups(&self, turn: HeldSweep) {
        let (executor, views) = (Rc::clone(&self.executor), self.views.clone());
        tasks::spawn("sweep", async move {
            let _turn = turn;
            let snapshot = views.load();
            executor.count_all(&snapshot).await;
            executor.sweep_cgroups(|uid| views.load().knows(uid)).await;
            executor.look_for_shims(&snapshot).await;
        });
    }

    fn sweep_folders(&self, turn: HeldSweep, pods: &Pods) {
        let keep: BTreeSet<PodUid> = pods.workers().map(|worker| worker.uid().clone()).collect();
        // Their folders are removed by one of the next sweeps.
        self.executor
            .volumes
            .release_unless(|uid| keep.contains(uid) || self.views.load().knows(uid));
        let (root, views, since) = (self.root.clone(), self.views.clone(), SystemTime::now());
        let (executor, known) = (Rc::clone(&self.executor), views.clone());
        let logs = PathBuf::from(&self.executor.node.pod_logs_dir);
        let live = live_logs(pods);
        let emit = Rc::clone(&self.executor.node_events);
        let metrics = Arc::clone(&self.metrics);
        let work = move || {
            let is_kept = |uid: &PodUid| keep.contains(uid) || views.load().knows(uid);
            let (removed, dirs) = match volume::orphan::sweep_unless(&root, is_kept) {
                Ok(swept) => {
                    metrics.orphan_dirs(swept.removed.len(), swept.kept.len());
                    let warning = swept.warning();
                    (swept.removed, warning)
                }
                Err(error) => {
                    (Vec::new(), Some(format!("orphaned pod directories: cannot look: {error}")))
                }
            };
            let swept = Executor::sweep_logs(&logs, is_kept, since);
            Executor::sweep_log_links(&logs, &live, since);
            let text = |error| format!("failed to read podLogsDirectory {logs:?}: {error}");
            let logs = swept.map(|kept| log_once::stays("orphaned log folders", &kept));
            (removed, dirs, logs.map_err(text))
        };
        let leftovers = Rc::clone(&self.leftovers);
        tasks::spawn("sweep", async move {
            let _turn = turn;
            let (removed, dirs, logs) = match blocking::run(JobPlace::bulk("orphans"), work).await {
                Ok(ended) => ended,
                Err(error) => {
                    return tracing::error!(%error, "orphaned pod directories: the sweep ended early");
                }
            };
            executor.users.swept(&removed, |uid| known.load().knows(uid));
            let mut logged = leftovers.borrow_mut();
            let now = std::time::Instant::now();
            let dirs = logged.dirs.take(dirs, now);
            let logs = match logs {
                Ok(kept) => logged.logs.take(kept, now),
                // k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go evictPodLogsDirectories
                Err(message) => {
                    emit(NodeEvent { warning: true, reason: "ContainerGCFailed", message });
                    None
                }
            };
            dirs.iter().chain(&logs).for_each(RepeatLine::log);
        });
    }
}

/// Logs that are written: of containers that have not ended.
fn live_logs(pods: &Pods) -> BTreeSet<PathBuf> {
    let containers = pods.workers().flat_map(|worker| &worker.observed().containers);
    let alive = containers.filter(|container| container.state != RunState::Exited);
    alive.map(|container| PathBuf::from(&container.log_path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_sweep_starts_only_after_the_previous_sweep_ended() {
        let single = Single::default();
        let held = single.take();
        assert!(held.is_some());
        assert!(single.take().is_none(), "one that hangs");
        drop(held);
        assert!(single.take().is_some());
    }
}
