//! An event for a process that the kernel killed for a memory limit while its container keeps
//! running.
//!
//! Input: kills from the kernel's log, snapshots of the pods. Output: the event `ProcessOOMKilled`
//! of the pod. A container that ends with the kill has it in its status, as with the kubelet, and
//! no event: hence the check after `SETTLE`, also of its cgroup, as a busy runtime reports the end
//! later. Owner: its task. Bounds: `KILLS_MAX` wait, one of a cgroup, so that a cgroup with constant
//! kills does not displace others; one event a container in `EVERY`, so that they never take the
//! room of the pod's other events.

use std::collections::HashMap;
use std::time::Duration;

use pintle_agent_core::observed::{ObservedContainer, RunState};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_agent_host::cgroup::Cgroups;
use pintle_agent_host::node::container_oom::ContainerKill;
use pintle_daemon::blocking::{self, JobPlace};
use pintle_daemon::tasks;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::StageInputs;

const REASON: &str = "ProcessOOMKilled";
/// Kills that may wait; further ones are not reported.
const KILLS_MAX: usize = 64;
/// The end of a container is known after this time.
const SETTLE: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_secs(60);

/// Starts the task; the returned function takes kills.
pub(super) fn start(parts: &StageInputs) -> impl FnMut(ContainerKill) + use<> {
    let (kills, mut queue) = mpsc::channel(KILLS_MAX);
    let (views, recorder) = (parts.views.clone(), parts.recorder.clone());
    tasks::singleton("container oom", async move {
        let mut pace = OomReportPace::of(EVERY);
        while let Some((seen, kill)) = queue.recv().await {
            sleep_until(seen + SETTLE).await;
            let snapshot = views.load();
            let Some((uid, container)) = survivor(&snapshot, &kill) else { continue };
            // The pace first: a container chooses how many cgroups there are to look at.
            let is_new = pace.passes(container.id.as_str(), Instant::now());
            if is_new && !has_ended(&kill.cgroup, container.id.as_str()).await {
                recorder.event(uid, true, REASON, &message(&kill), Some(&container.name));
            }
        }
    });
    let mut waits = OomReportPace::of(SETTLE);
    move |kill| {
        let now = Instant::now();
        if waits.passes(&kill.cgroup, now) {
            let _ = kills.try_send((now, kill));
        }
    }
}

/// The container that lost a process and runs all the same, found by the outermost cgroup that a
/// container has. Cgroups below have names chosen by the container's processes.
fn survivor<'a>(
    snapshot: &'a Snapshot,
    kill: &ContainerKill,
) -> Option<(&'a PodUid, &'a ObservedContainer)> {
    let lives = |c: &ObservedContainer| {
        let first = c.evidence.oom.as_ref().is_some_and(|o| o.init);
        c.state == RunState::Running && c.evidence.exit.is_none() && !first
    };
    let of = |cgroup: &str| {
        let is_its = |id: &str| !id.is_empty() && cgroup.contains(id);
        snapshot.pods.values().find_map(|view| {
            let mut containers = view.observed.containers.iter();
            let found = containers.find(|c| is_its(c.id.as_str()))?;
            Some((&view.observed.uid, found))
        })
    };
    kill.cgroup.split('/').find_map(of).filter(|(_, container)| lives(container))
}

/// True if no process is left in the cgroup of the container with this id.
async fn has_ended(cgroup: &str, id: &str) -> bool {
    let Some(own) = cgroup_of(cgroup, id).map(str::to_owned) else { return false };
    let look = move || Cgroups::open("/").is_ok_and(|all| all.has_no_process(&own));
    blocking::run(JobPlace::own("container oom"), look).await.unwrap_or(false)
}

/// The container's own cgroup, of one in it or below.
fn cgroup_of<'a>(cgroup: &'a str, id: &str) -> Option<&'a str> {
    let rest = &cgroup[cgroup.find(id)?..];
    let end = cgroup.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
    Some(&cgroup[..end])
}

fn message(kill: &ContainerKill) -> String {
    let ContainerKill { process, pid, resident, limit, .. } = kill;
    let limit = limit.map(|limit| format!(" of {}", mebi(limit))).unwrap_or_default();
    let resident = mebi(*resident);
    format!(
        "The OOM killer took process {process} (pid {pid}, {resident} resident) of the container for a \
         memory limit{limit}; the container runs on"
    )
}

fn mebi(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}

/// When each last passed, once in this period.
struct OomReportPace {
    every: Duration,
    passed: HashMap<String, Instant>,
}

impl OomReportPace {
    fn of(every: Duration) -> Self {
        Self { every, passed: HashMap::new() }
    }

    fn passes(&mut self, who: &str, now: Instant) -> bool {
        self.passed.retain(|_, passed| now.saturating_duration_since(*passed) < self.every);
        let is_new = !self.passed.contains_key(who);
        if is_new {
            self.passed.insert(who.to_owned(), now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::observed::{Evidence, KernelExit, OomKill};
    use pintle_agent_core::status::testing;
    use pintle_agent_core::testing::{snapshot_of, view};
    use pintle_agent_core::types::{ContainerId, UnixNanos};
    use std::sync::Arc;

    fn kill() -> ContainerKill {
        ContainerKill {
            cgroup: "/kubepods.slice/kubepods-podu.slice/cri-containerd-c1.scope/inner".into(),
            process: "hog".into(),
            pid: 7,
            resident: 45 << 20,
            limit: Some((48 << 20) + (1 << 19)),
        }
    }

    /// The name of the reported container.
    fn told(change: impl FnOnce(&mut ObservedContainer)) -> Option<String> {
        let mut pod = view(serde_json::json!({"metadata": {"uid": "u", "name": "p"}}));
        let mut observed = (*pod.observed).clone();
        let mut container = testing::container("c", "c1");
        change(&mut container);
        observed.containers = vec![testing::container("d", "d1"), container];
        pod.observed = Arc::new(observed);
        let snapshot = snapshot_of(vec![pod]);
        survivor(&snapshot, &kill()).map(|(_, container)| container.name.clone())
    }

    #[test]
    fn oom_kill_is_reported_only_for_a_container_that_still_runs() {
        let at = UnixNanos(1);
        assert_eq!(told(|_| ()).as_deref(), Some("c"));
        assert_eq!(told(|c| c.state = RunState::Exited), None);
        assert_eq!(told(|c| c.id = ContainerId::from("c2")), None);
        let exit = Some(KernelExit { code: 137, at });
        assert_eq!(told(|c| c.evidence = Evidence { exit, ..Evidence::default() }), None);
        let oom = |init| Some(OomKill { init, count: 1, pid: 7, comm: "hog".into(), at });
        for (init, want) in [(true, None), (false, Some("c"))] {
            let evidence = Evidence { oom: oom(init), ..Evidence::default() };
            assert_eq!(told(|c| c.evidence = evidence).as_deref(), want);
        }
    }

    #[test]
    fn nested_cgroup_name_does_not_attribute_an_oom_kill_to_another_container() {
        let mut pod = view(serde_json::json!({"metadata": {"uid": "u", "name": "p"}}));
        let mut observed = (*pod.observed).clone();
        observed.containers = vec![testing::container("d", "inner"), testing::container("c", "c1")];
        pod.observed = Arc::new(observed);
        let snapshot = snapshot_of(vec![pod]);
        assert_eq!(survivor(&snapshot, &kill()).map(|(_, c)| c.name.as_str()), Some("c"));
    }

    #[test]
    fn cgroup_of_the_container_is_found_below_its_pods() {
        let own = "/kubepods.slice/kubepods-podu.slice/cri-containerd-c1.scope";
        assert_eq!(cgroup_of(&kill().cgroup, "c1"), Some(own));
        assert_eq!(cgroup_of(own, "c1"), Some(own));
        assert_eq!(cgroup_of(own, "c2"), None);
    }

    #[test]
    fn the_event_names_process_size_and_limit() {
        assert_eq!(
            message(&kill()),
            "The OOM killer took process hog (pid 7, 45.0 MiB resident) of the container for a \
             memory limit of 48.5 MiB; the container runs on"
        );
        assert!(message(&ContainerKill { limit: None, ..kill() }).contains("memory limit; the"));
    }

    #[test]
    fn container_with_constant_oom_kills_is_reported_once_a_minute() {
        let (mut pace, now) = (OomReportPace::of(EVERY), Instant::now());
        let at = |pace: &mut OomReportPace, id, s| pace.passes(id, now + Duration::from_secs(s));
        assert!(at(&mut pace, "c", 0) && !at(&mut pace, "c", 59) && at(&mut pace, "d", 59));
        assert!(at(&mut pace, "c", 60) && !at(&mut pace, "d", 60));
    }
}
