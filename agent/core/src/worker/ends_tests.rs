//! A worker's handling of an end that the runtime reports before it lists it, and of events while a
//! pod is being stopped, through the whole core.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodStatus};
use serde_json::json;

use crate::observed::{ObservedContainer, ObservedPod, RunState, TaskExit};
use crate::status::testing;
use crate::sync::plan::Action;
use crate::worker::{Command, Hint, Pods, PodsInput, testing as core};
use pintle_api_types::ids::{PodUid, UnixNanos};

/// A pod that runs, and the commands of the core since the last check.
struct EndsNode {
    pods: Pods,
    record: ObservedPod,
    reads: Vec<(u64, Duration)>,
    syncs: Vec<(u64, Vec<Action>)>,
    statuses: Vec<Arc<PodStatus>>,
}

fn uid() -> PodUid {
    PodUid::from("u")
}

fn pod(policy: &str) -> Pod {
    core::pod(&json!({}), "restartPolicy", json!(policy))
}

impl EndsNode {
    fn running(policy: &str) -> Self {
        Self::of(pod(policy))
    }

    fn of(pod: Pod) -> Self {
        let settings = core::settings(Duration::from_secs(600));
        let mut record = ObservedPod::empty(uid(), "ns", "u");
        record.sandboxes = vec![testing::sandbox()];
        record.containers = vec![testing::container("c", "id")];
        let (reads, syncs, statuses) = (Vec::new(), Vec::new(), Vec::new());
        let mut node = Self { pods: Pods::new(settings), record, reads, syncs, statuses };
        node.send(PodsInput::Tick);
        node.send(PodsInput::Listed { stamp: 1, result: Ok(Vec::new()) });
        node.send(PodsInput::SourcesReady);
        node.send(PodsInput::Desired { uid: uid(), pod: Arc::new(pod) });
        node.read();
        // Its containers were made by an earlier agent: only its volumes are prepared again.
        node.end_sync();
        node.read();
        node.statuses.clear();
        assert_eq!((&*node.syncs, &*node.reads), (&[][..], &[][..]));
        node
    }

    fn send(&mut self, input: PodsInput) {
        for command in self.pods.handle(core::now(), input) {
            match command {
                Command::Read { stamp, after, .. } => self.reads.push((stamp, after)),
                Command::Run { ticket, actions, .. } => self.syncs.push((ticket, actions)),
                Command::Publish { status, .. } => self.statuses.push(status),
                _ => {}
            }
        }
    }

    fn hint(&mut self, hint: Hint) {
        self.send(PodsInput::Hint { uid: uid(), hint });
    }

    /// Answers the newest request.
    fn read(&mut self) {
        let (stamp, _) = std::mem::take(&mut self.reads).pop().expect("a question");
        let result = Ok(self.record.clone());
        self.send(PodsInput::Observed { uid: uid(), stamp, result });
    }

    fn end_sync(&mut self) {
        let (ticket, actions) = self.syncs.pop().expect("a sync");
        for index in 0..actions.len() {
            self.send(PodsInput::Progress { uid: uid(), ticket, index, outcome: Ok(()) });
        }
        self.send(PodsInput::SyncDone { uid: uid(), ticket });
    }

    /// The end that the last status shows.
    fn shown(&self) -> Option<ContainerStateTerminated> {
        let status = self.statuses.last()?;
        status.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.clone()
    }

    fn seen_by_kernel(&mut self) {
        let at = UnixNanos(998 * testing::SECOND);
        self.hint(Hint::Exited { container: Some("id".into()), code: Some(3), at });
    }

    fn told_by_runtime(&mut self, no_oom_kill: bool) {
        let at = UnixNanos(999 * testing::SECOND);
        let end = TaskExit { code: 3, at, words: Some("bye".into()), no_oom_kill };
        self.hint(Hint::TaskExit { container: "id".into(), end });
    }

    /// The end is in the status, and once the runtime lists it something is done.
    fn assert_shown_then_synced(&mut self, then: &str) {
        let shown = self.shown().expect("the end");
        assert_eq!((shown.exit_code, shown.reason.as_deref()), (3, Some("Error")));
        assert_eq!(shown.message.as_deref(), Some("bye"));
        // The runtime still lists it as running.
        self.read();
        assert_eq!(self.syncs, [], "nothing is done for it yet");
        assert_eq!(self.statuses.len(), 1, "and nothing else is said");
        self.listed_by_runtime();
        assert_eq!(self.shown(), Some(shown), "it never changes");
        let (_, actions) = self.syncs.last().expect("a sync");
        assert!(actions.iter().any(|a| a.verb() == then), "{then}: {actions:?}");
    }

    fn listed_by_runtime(&mut self) {
        self.record.containers = vec![ObservedContainer {
            finished_at: UnixNanos(999 * testing::SECOND),
            message: "bye".into(),
            ..testing::exited("c", "id", 3)
        }];
        self.read();
    }
}

#[test]
fn exit_reported_by_kernel_and_runtime_is_shown_at_once_and_synced_when_listed() {
    for (policy, then) in [("Always", "StartContainer"), ("Never", "KillPod")] {
        for kernel_first in [true, false] {
            let mut node = EndsNode::running(policy);
            match kernel_first {
                true => node.seen_by_kernel(),
                false => node.told_by_runtime(false),
            }
            assert_eq!(node.shown(), None, "one of them alone is not enough");
            // The runtime needs as long for its clean-up, and reports when that is done.
            assert_eq!(node.reads.last().map(|(_, after)| after.as_millis()), Some(20));
            match kernel_first {
                true => node.told_by_runtime(false),
                false => node.seen_by_kernel(),
            }
            node.assert_shown_then_synced(then);
        }
    }
}

#[test]
fn exit_reported_by_the_runtime_alone_is_shown_at_once_if_the_pod_has_no_oom_victim() {
    for (policy, then) in [("Always", "StartContainer"), ("Never", "KillPod")] {
        let mut node = EndsNode::running(policy);
        node.told_by_runtime(true);
        node.assert_shown_then_synced(then);
    }
}

#[test]
fn a_container_whose_end_restarts_all_is_not_killed_before_its_end_is_listed() {
    let mut all = pod("Never");
    let container = &mut all.spec.as_mut().expect("a spec").containers[0];
    let rule =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3]}}]);
    container.restart_policy = Some("Never".to_owned());
    container.restart_policy_rules = Some(serde_json::from_value(rule).expect("a rule"));
    let mut node = EndsNode::of(all);
    node.seen_by_kernel();
    node.told_by_runtime(false);
    assert_eq!(node.shown().map(|end| end.exit_code), Some(3));
    node.read();
    assert_eq!(node.syncs, [], "the runtime still says that it runs");
    node.listed_by_runtime();
    let (_, actions) = node.syncs.last().expect("a sync");
    let verbs: Vec<_> = actions.iter().map(Action::verb).collect();
    assert_eq!(verbs, ["RemoveContainer"], "nothing is left to kill");
}

#[test]
fn pod_being_stopped_is_reread_rarely_and_at_once_after_the_stop() {
    let mut node = EndsNode::running("Always");
    node.send(PodsInput::Removed { uid: uid() });
    let (_, actions) = node.syncs.last().expect("a sync");
    assert_eq!(actions[0].verb(), "KillPod");
    node.seen_by_kernel();
    let [(_, after)] = node.reads[..] else { panic!("{:?}", node.reads) };
    assert_eq!(after, Duration::from_secs(1));
    node.told_by_runtime(false);
    node.hint(Hint::Changed);
    assert_eq!(node.reads.len(), 1, "one look is enough");
    // The answer is behind the kernel: that is no reason to ask again before the sync is over.
    node.read();
    assert_eq!(node.reads, []);
    node.end_sync();
    assert_eq!(node.reads.last().map(|(_, after)| *after), Some(Duration::ZERO));
    node.listed_by_runtime();
}

#[test]
fn pod_readded_during_its_stop_starts_from_the_status_reported_meanwhile() {
    for (phase, starts) in [("Succeeded", vec![]), ("Running", vec!["c".to_owned()])] {
        let mut host = core::Host::new();
        host.want(core::plain("p", "100m"));
        host.take_starts();
        host.lingers = true;
        host.remove("p");
        host.want(core::plain("p", "100m"));
        let told = core::sized_pod("p", "100m", 1, json!({"status": {"phase": phase}}));
        host.send(PodsInput::Reconciled { uid: "p".into(), pod: Arc::new(told) });
        host.finish("p");
        assert_eq!(host.take_starts(), starts, "{phase}");
        assert_eq!(host.status("p")["phase"], phase);
    }
}

/// As when its manifest is put back into its folder at once.
#[test]
fn readded_static_pod_keeps_its_restart_count_unless_the_pod_would_be_finished() {
    for (policy, counts) in [("Always", &[1, 0][..]), ("OnFailure", &[0]), ("Never", &[0])] {
        let pod = || {
            let mut pod = core::of_folder(core::plain("p", "100m"), "p");
            let spec = pod.spec.as_mut().expect("a spec");
            spec.restart_policy = Some(policy.to_owned());
            pod
        };
        let mut host = core::Host::new();
        host.want(pod());
        host.take_starts();
        host.lingers = true;
        host.remove("p");
        host.want(pod());
        host.finish("p");
        assert_eq!(host.take_starts(), ["c"], "{policy}");
        let containers = &host.records["p"].containers;
        let have: Vec<u32> = containers.iter().map(|c| c.restart_count).collect();
        assert_eq!(have, counts, "{policy}");
    }
}

#[test]
fn exit_report_for_an_already_exited_container_is_ignored() {
    let mut node = EndsNode::running("Never");
    node.record.containers = vec![testing::exited("c", "id", 0)];
    assert_eq!(node.record.containers[0].state, RunState::Exited);
    node.hint(Hint::Changed);
    node.read();
    let shown = node.shown().expect("the end");
    node.seen_by_kernel();
    node.told_by_runtime(false);
    assert_eq!(node.shown(), Some(shown), "the runtime's list has the last word");
}
