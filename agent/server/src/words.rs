//! Inputs and outputs of the decisions in words: actions of a plan, inputs and commands of a
//! record.
//!
//! Pure. One line each, for people; the pod's name stands beside it.

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::eviction::observed::{Observation, Scope};
use pintle_agent_core::intake;
use pintle_agent_core::node::conditions::Pressure;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::shutdown::{Notice, ShutdownRecord};
use pintle_agent_core::source::SourceKind;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::{Command, DecisionCount, Failure, Hint, PodsInput, RETRY_TOLD};
use pintle_api_types::pod;

/// An action in words.
pub(crate) fn action(action: &Action) -> String {
    match action {
        Action::Prepare => "make cgroup, directories and volumes ready".to_owned(),
        Action::Refresh => "write files in volumes again whose content has changed".to_owned(),
        Action::KillPod { grace_seconds: Some(seconds) } => {
            format!("stop all containers within {seconds} s, then the sandbox")
        }
        Action::KillPod { grace_seconds: None } => {
            "stop all containers within their grace periods, then the sandbox".to_owned()
        }
        Action::KillContainer { name, message, .. } => format!("stop container {name}: {message}"),
        Action::RemoveContainer { name, keep_logs, .. } => {
            let logs = if *keep_logs { ", keeping its logs" } else { " and its logs" };
            format!("remove the dead container {name}{logs}")
        }
        Action::RemoveSandbox { id } => format!("remove the dead sandbox {id}"),
        Action::CreateSandbox { attempt, replaces: None } => {
            format!("create the sandbox, attempt {attempt}")
        }
        Action::CreateSandbox { attempt, replaces: Some(old) } => {
            format!("create the sandbox, attempt {attempt}, in place of {old}")
        }
        Action::StartContainer { name, restart_count: Some(count), .. } if *count > 0 => {
            format!("start container {name}, restart {count}")
        }
        Action::StartContainer { name, .. } => format!("start container {name}"),
        Action::ResizePod(resize) => {
            let names: Vec<&str> = resize.updates.iter().map(|u| u.name.as_str()).collect();
            match names.as_slice() {
                [] => "resize the pod's cgroup".to_owned(),
                names => format!("resize {} in place", names.join(", ")),
            }
        }
        Action::Teardown => "unmount volumes and remove the cgroup".to_owned(),
        Action::Cleanup => "remove containers, sandboxes, logs and directories".to_owned(),
    }
}

/// The name of an input and its content.
pub(crate) fn input(input: &PodsInput) -> (&'static str, String) {
    match input {
        PodsInput::Desired { pod, .. } => ("Desired", wanted(pod)),
        PodsInput::Reconciled { pod, .. } => ("Reconciled", wanted(pod)),
        PodsInput::Removed { .. } => ("Removed", "no source wants the pod any more".to_owned()),
        PodsInput::Unreadable(uids) => {
            ("Unreadable", format!("{} are wanted and cannot be read", counted(uids.len(), "pod")))
        }
        PodsInput::SourcesReady => ("SourcesReady", "every source has reported".to_owned()),
        PodsInput::Kill { verdict, grace_seconds, .. } => {
            let grace = grace_seconds.map(|s| format!(" within {s} s")).unwrap_or_default();
            ("Kill", format!("{}{grace}: {}", verdict.reason, verdict.message))
        }
        PodsInput::Observed { result: Ok(pod), .. } => ("Observed", observed(pod)),
        PodsInput::Observed { result: Err(why), .. } => {
            ("Observed", format!("cannot be read: {why}"))
        }
        PodsInput::Listed { result: Ok(pods), .. } => ("Listed", counted(pods.len(), "pod")),
        PodsInput::Listed { result: Err(why), .. } => ("Listed", format!("no list: {why}")),
        PodsInput::Hint { hint: of, .. } => ("Hint", hint(of)),
        PodsInput::ContainerHint { container, hint: of } => {
            ("ContainerHint", format!("{}, of container {container}", hint(of)))
        }
        PodsInput::Progress { ticket, index, outcome, .. } => {
            ("Progress", format!("sync {ticket}, action {}: {}", index + 1, ended(outcome)))
        }
        PodsInput::SyncDone { ticket, .. } => ("SyncDone", format!("sync {ticket}")),
        PodsInput::Probed { container, probe, healthy, .. } => {
            let became = if *healthy { "succeeds" } else { "fails" };
            ("Probed", format!("{probe:?} {became}, of container {container}"))
        }
        PodsInput::Content { files, .. } => {
            let files = if *files { "; its volumes show it" } else { "" };
            ("Content", format!("something that the pod refers to changed{files}"))
        }
        PodsInput::Retry { .. } => ("Retry", RETRY_TOLD.to_owned()),
        PodsInput::Node(_) => ("Node", "facts of the node changed".to_owned()),
        PodsInput::Admission(_) => ("Admission", "what the node offers changed".to_owned()),
        PodsInput::NodeFetched { node, .. } => {
            let read = if node.is_some() { "was read" } else { "could not be read" };
            ("NodeFetched", format!("the node's object {read}"))
        }
        PodsInput::Shutdown(Notice::Begins { resumed, .. }) => {
            let again = if resumed.is_some() { ", as an earlier agent was told" } else { "" };
            ("Shutdown", format!("the machine is about to shut down{again}"))
        }
        PodsInput::Shutdown(Notice::Cancelled) => ("Shutdown", "the machine stays up".to_owned()),
        PodsInput::Pressure { observation, .. } => ("Pressure", measured(observation)),
        PodsInput::Reclaiming { ticket } => ("Reclaiming", format!("ticket {ticket}: it goes on")),
        PodsInput::Reclaimed { freed, .. } => {
            let error = freed.error.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let (bytes, containers) =
                (freed.bytes, counted(freed.containers as usize, "container"));
            let images = counted(freed.images as usize, "image");
            ("Reclaimed", format!("{bytes} bytes of {containers} and {images}{error}"))
        }
        PodsInput::MemoryLow => ("MemoryLow", "memory gets short".to_owned()),
        PodsInput::Lost => ("Lost", "hints were lost".to_owned()),
        PodsInput::RelistEvery(period) => ("RelistEvery", format!("{} s", period.as_secs())),
        PodsInput::Tick => ("Tick", "time has passed".to_owned()),
    }
}

/// The name of a command and its content.
pub(crate) fn command(command: &Command) -> (&'static str, String) {
    match command {
        Command::Read { stamp, after, .. } if after.is_zero() => ("Read", format!("stamp {stamp}")),
        Command::Read { stamp, after, .. } => {
            ("Read", format!("stamp {stamp}, after {} ms", after.as_millis()))
        }
        Command::List { stamp } => ("List", format!("stamp {stamp}")),
        Command::FetchNode { ticket } => ("FetchNode", format!("ticket {ticket}")),
        Command::Run { ticket, actions, .. } => {
            let actions: Vec<_> = actions.iter().map(action).collect();
            ("Run", format!("sync {ticket}: {}", actions.join("; ")))
        }
        Command::Cancel { ticket, .. } => ("Cancel", format!("sync {ticket}")),
        Command::Probe { observed: pod, terminating, .. } => {
            let ends = if *terminating { ", readiness only, as the pod ends" } else { "" };
            ("Probe", format!("{}{ends}", observed(pod)))
        }
        Command::Publish { status, stage, .. } => {
            let phase = status.phase.as_deref().unwrap_or("no phase");
            let all = status.conditions.iter().flatten().filter(|c| c.status == "True");
            let all: Vec<_> = all.map(|c| format!(" {}", c.type_)).collect();
            ("Publish", format!("{phase}{}, stage {stage:?}", all.concat()))
        }
        Command::Event { reason, message, .. } => ("Event", format!("{reason}: {message}")),
        Command::Gone { .. } => ("Gone", "nothing is left of the pod".to_owned()),
        Command::Count(count) => ("Count", tallied(count)),
        Command::Measure { ticket, pods, disks } => {
            let of = match pods {
                Scope::Nobody => "the node".to_owned(),
                Scope::These(uids) => format!("the node and {}", counted(uids.len(), "pod")),
                Scope::All => "the node and all pods".to_owned(),
            };
            let disks = if *disks { ", with their disks" } else { "" };
            ("Measure", format!("ticket {ticket}: {of}{disks}"))
        }
        Command::Reclaim { ticket, signal, containers, images } => {
            let gone =
                counted(usize::try_from(*containers).unwrap_or(usize::MAX), "dead container");
            let images = if *images { "unused images go" } else { "no image goes" };
            ("Reclaim", format!("ticket {ticket}, for {signal}: {gone} removed, {images}"))
        }
        Command::Pressure(Pressure { memory, disk, pid }) => {
            let short = [(*memory, "memory"), (*disk, "disk"), (*pid, "process numbers")];
            let short: Vec<_> = short.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect();
            let short = if short.is_empty() { "nothing".to_owned() } else { short.join(", ") };
            ("Pressure", format!("the node is short of {short}"))
        }
        Command::Evicted { message, .. } => ("Evicted", message.clone()),
        Command::NodeEvent(event) => ("NodeEvent", format!("{}: {}", event.reason, event.message)),
        Command::Shutdown(ShutdownRecord { cancelled: true, .. }) => {
            ("Shutdown", "pods are let in again".to_owned())
        }
        Command::Shutdown(ShutdownRecord { group: Some((priority, _)), .. }) => {
            ("Shutdown", format!("pods end from priority {priority} on"))
        }
        Command::Shutdown(_) => ("Shutdown", "all groups are over".to_owned()),
    }
}

/// The pod that an input is about; `None` when it is about the node, or names a container only.
pub(crate) fn pod_of(input: &PodsInput) -> Option<&PodUid> {
    match input {
        PodsInput::Desired { uid, .. }
        | PodsInput::Reconciled { uid, .. }
        | PodsInput::Removed { uid }
        | PodsInput::Kill { uid, .. }
        | PodsInput::Observed { uid, .. }
        | PodsInput::Hint { uid, .. }
        | PodsInput::Progress { uid, .. }
        | PodsInput::SyncDone { uid, .. }
        | PodsInput::Probed { uid, .. }
        | PodsInput::Content { uid, .. }
        | PodsInput::Retry { uid } => Some(uid),
        PodsInput::Unreadable(_)
        | PodsInput::SourcesReady
        | PodsInput::Listed { .. }
        | PodsInput::ContainerHint { .. }
        | PodsInput::Node(_)
        | PodsInput::Admission(_)
        | PodsInput::NodeFetched { .. }
        | PodsInput::Shutdown(_)
        | PodsInput::Pressure { .. }
        | PodsInput::Reclaiming { .. }
        | PodsInput::Reclaimed { .. }
        | PodsInput::MemoryLow
        | PodsInput::Lost
        | PodsInput::RelistEvery(_)
        | PodsInput::Tick => None,
    }
}

/// The pod that a command is about.
pub(crate) fn pod_of_command(command: &Command) -> Option<&PodUid> {
    match command {
        Command::Read { uid, .. }
        | Command::Run { uid, .. }
        | Command::Cancel { uid, .. }
        | Command::Probe { uid, .. }
        | Command::Publish { uid, .. }
        | Command::Event { uid, .. }
        | Command::Evicted { uid, .. }
        | Command::Gone { uid } => Some(uid),
        Command::List { .. }
        | Command::FetchNode { .. }
        | Command::Count(_)
        | Command::Shutdown(_)
        | Command::Measure { .. }
        | Command::Reclaim { .. }
        | Command::Pressure(_)
        | Command::NodeEvent(_) => None,
    }
}

fn wanted(pod: &Pod) -> String {
    let deleted = if pod::is_deleted(pod) { ", deleted" } else { "" };
    format!("{}{deleted}", intake::shown(SourceKind::of(pod), pod))
}

fn observed(pod: &ObservedPod) -> String {
    let ready = pod.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let sandboxes = match (pod.sandboxes.len(), ready) {
        (0, _) => "no sandbox".to_owned(),
        (count, 0) => format!("{}, none ready", counted(count, "sandbox")),
        (1, _) => "its sandbox is ready".to_owned(),
        (count, _) => format!("{}, {ready} ready", counted(count, "sandbox")),
    };
    let containers = pod.containers.iter().map(|container| {
        let state = match container.state {
            RunState::Created => "created".to_owned(),
            RunState::Running => "running".to_owned(),
            RunState::Exited => format!("exited {}", container.exit_code),
            RunState::Unknown => "unknown".to_owned(),
        };
        format!(", {} {state}", container.name)
    });
    sandboxes + &containers.collect::<String>()
}

fn hint(hint: &Hint) -> String {
    match hint {
        Hint::Exited { code: Some(code), .. } => format!("the kernel saw exit code {code}"),
        Hint::Exited { code: None, .. } => "the kernel saw an end".to_owned(),
        Hint::TaskExit { end, .. } if end.no_oom_kill => {
            format!("the runtime told exit code {}, and the pod has no OOM victim", end.code)
        }
        Hint::TaskExit { end, .. } => format!("the runtime told exit code {}", end.code),
        Hint::Oom { comm, pid, .. } => format!("the OOM killer took {comm} (pid {pid})"),
        Hint::Changed => "something changed".to_owned(),
    }
}

fn ended(outcome: &Result<(), Failure>) -> String {
    match outcome {
        Ok(()) => "done".to_owned(),
        Err(failure) => format!("{}: {}", failure.reason, failure.message),
    }
}

fn tallied(count: &DecisionCount) -> String {
    match count {
        DecisionCount::Refused(why) => format!("a pod was refused: {why}"),
        DecisionCount::Preempted(what) => format!("a pod had to go, short of {what}"),
        DecisionCount::Infeasible(why) => format!("a resize is impossible: {why}"),
        DecisionCount::Accepted(why) => format!("a resize was granted: {why}"),
        DecisionCount::Asked(_) => "a pod asks for a resize".to_owned(),
        DecisionCount::Orphan => "an unknown pod".to_owned(),
        DecisionCount::Restarted(_) => "a pod is begun again under its uid".to_owned(),
        DecisionCount::Evicted(signal) => format!("a pod had to go for {signal}"),
        DecisionCount::EvictionAge(signal, age) => {
            format!("pods were weighed for {signal} by figures {} ms old", age.as_millis())
        }
    }
}

fn measured(observation: &Observation) -> String {
    let left = observation.readings.iter();
    let left: Vec<_> = left.map(|(signal, of)| format!("{signal} {}", of.available)).collect();
    let pods = observation.pods.as_ref().map(|pods| format!("; {}", counted(pods.len(), "pod")));
    format!("{}{}", left.join(", "), pods.unwrap_or_default())
}

fn counted(count: usize, what: &str) -> String {
    let ending = match (count, what) {
        (1, _) => "",
        (_, what) if what.ends_with('x') => "es",
        _ => "s",
    };
    format!("{count} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_described_in_words() {
        let create = Action::CreateSandbox { attempt: 2, replaces: Some("old".into()) };
        assert_eq!(action(&create), "create the sandbox, attempt 2, in place of old");
        let kill = Action::KillPod { grace_seconds: Some(5) };
        assert_eq!(action(&kill), "stop all containers within 5 s, then the sandbox");
    }
}
