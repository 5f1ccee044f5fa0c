//! Containers that fail, wait, have not started or are not ready. Pure.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodCondition};

use super::{ExplainSubject, Explanation, calls, container_statuses, remedies, span, words};
use crate::observed::{ObservedContainer, OomKill, RunState};
use crate::sync::plan::Action;
use crate::timeline::TimelineEntry;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::ids::{ContainerKind, UnixNanos};

/// Waiting reasons of a container that only waits for its turn.
const IN_ORDER: [&str; 3] = ["", "PodInitializing", "ContainerCreating"];

/// The timeline's word for where the time of a probe without an answer went.
pub const PROBE_TIMED_OUT: &str = "ProbeTimedOut";

/// The first container that fails.
pub(crate) fn failing(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    container_statuses(subject.view).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        match reason {
            reason if IN_ORDER.contains(&reason) => None,
            "CrashLoopBackOff" => Some(crash_loop(subject, status, message)),
            _ => Some(refused(subject, &status.name, reason, message)),
        }
    })
}

fn crash_loop(
    subject: &ExplainSubject<'_>,
    status: &ContainerStatus,
    message: &str,
) -> Explanation {
    let name = &status.name;
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let how = match last {
        Some(end) => end_text(subject, name, end),
        None => format!("container {name} ended again and again"),
    };
    let until = crash_until(subject, name, message).or(subject.view.wake_at);
    let again = words::in_time(subject.now, until).unwrap_or_else(|| "soon".to_owned());
    let count = status.restart_count;
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
    let sentence = format!("{}; it restarts {again} (restarted {times})", capital(&how));
    let pod = &subject.view.pod;
    let of = (pintle_api_types::pod::namespace(pod), pintle_api_types::pod::name(pod));
    let retry = format!("`pintle-agent retry {}/{}` once its cause is mended", of.0, of.1);
    let remedy = last.and_then(|end| end_remedy(subject, name, end));
    let remedy = remedy.map_or(retry.clone(), |remedy| format!("{remedy}, or {retry}"));
    Explanation::trouble("CrashLoopBackOff", sentence).with_remedy(remedy)
}

/// When a crash-looping container may start, from its end and the wait that its message names.
fn crash_until(subject: &ExplainSubject<'_>, name: &str, message: &str) -> Option<UnixNanos> {
    let wait = message.strip_prefix("back-off ")?.split(' ').next()?;
    let wait: GoDuration = wait.parse().ok()?;
    let ended = subject.view.observed.latest(name)?.finished_at;
    ended.is_set().then(|| ended.plus(wait.to_std()))
}

/// The container could not be started.
fn refused(subject: &ExplainSubject<'_>, name: &str, reason: &str, message: &str) -> Explanation {
    let (whole, message) = (message, words::one_line(message));
    let again = words::in_time(subject.now, subject.view.wake_at);
    let again = again.map(|at| format!("; tried again {at}")).unwrap_or_default();
    let image = image_of(subject, name);
    let (what, remedy) = match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => (
            format!("Image {image} of container {name} cannot be pulled"),
            remedies::of_registry(whole),
        ),
        "ErrImageNeverPull" => (
            format!("Image {image} of container {name} is not on this node"),
            "load the image into the runtime, or set imagePullPolicy to IfNotPresent",
        ),
        "InvalidImageName" => {
            (format!("Container {name} names no valid image"), "correct the name of the image")
        }
        "ImageInspectError" => (
            format!("The runtime cannot tell whether it has image {image} of container {name}"),
            "look at the runtime's log; it is tried again by itself",
        ),
        "CreateContainerConfigError" => (
            format!("The configuration of container {name} cannot be used"),
            "correct what the message names",
        ),
        "CreateContainerError" | "RunContainerError" => (
            format!("The runtime could not start container {name}"),
            "correct command, working directory, mounts or security context of the container",
        ),
        "PostStartHookError" => (
            format!("The postStart hook of container {name} failed"),
            "correct the hook; the container is restarted with it",
        ),
        other => (format!("Container {name} waits ({other})"), "correct what the message names"),
    };
    let colon = if message.is_empty() { "" } else { ": " };
    let sentence = format!("{what}{colon}{message}{again}");
    let namespace = pintle_api_types::pod::namespace(&subject.view.pod);
    let missing = remedies::of_missing(whole, namespace);
    let remedy = missing.unwrap_or_else(|| remedy.to_owned());
    Explanation::trouble(reason, sentence).with_remedy(remedy)
}

/// A container that is on its way, or not ready.
pub(super) fn unready(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    container_statuses(subject.view).find_map(|status| {
        let kind = kind_of(subject, &status.name);
        let state = status.state.clone().unwrap_or_default();
        if let Some(running) = &state.running {
            let since = running.started_at.as_ref().map(|time| nanos(time.0));
            let for_time = since.map(|at| span(subject.now.since(at))).unwrap_or_default();
            return match kind {
                ContainerKind::Init => Some(Explanation::trouble(
                    "PodInitializing",
                    format!(
                        "Init container {} has run for {for_time}; the others wait for it",
                        status.name
                    ),
                )),
                _ if status.started == Some(false) => Some(probe_fails(
                    subject,
                    &status.name,
                    "Startup",
                    format!(
                        "Container {} has run for {for_time} and has not started up",
                        status.name
                    ),
                )),
                _ if !status.ready => Some(probe_fails(
                    subject,
                    &status.name,
                    "Readiness",
                    format!("Container {} runs and is not ready", status.name),
                )),
                _ => None,
            };
        }
        if let Some(end) = &state.terminated {
            let done = end.exit_code == 0 && kind == ContainerKind::Init;
            if done || !is_started_again(subject, &status.name) {
                return None;
            }
            let how = capital(&end_text(subject, &status.name, end));
            let sentence = format!("{how}; it is being started again");
            return Some(Explanation {
                remedy: end_remedy(subject, &status.name, end),
                ..Explanation::trouble("Restarting", sentence)
            });
        }
        Some(on_its_way(subject, &status.name))
    })
}

fn is_started_again(subject: &ExplainSubject<'_>, name: &str) -> bool {
    let spec = pintle_api_types::pod::spec(&subject.view.pod);
    let code = subject.view.observed.latest(name).map_or(0, |c| c.exit_code);
    let container = pintle_api_types::pod::containers::find(spec, name);
    container.is_some_and(|(_, c)| pintle_api_types::pod::restart::may_restart(c, spec, code))
}

fn probe_fails(subject: &ExplainSubject<'_>, name: &str, probe: &str, what: String) -> Explanation {
    let prefix = format!("{probe} probe ");
    let event = subject.timeline.iter().rev().find(|entry| {
        entry.what == "Unhealthy"
            && entry.container.as_deref() == Some(name)
            && entry.text.starts_with(&prefix)
    });
    let reason = if probe == "Startup" { "StartupProbe" } else { "ReadinessProbe" };
    match event {
        Some(entry) => {
            let text = words::one_line(&entry.text);
            let spent = time_spent(subject, name, &prefix, entry);
            let times =
                if entry.count > 1 { format!(" ({} times)", entry.count) } else { String::new() };
            let text = format!("{what}: {text}{spent}{times}");
            Explanation::trouble(&format!("{reason}Failed"), text).with_remedy(
                "see why the container does not answer its probe, or correct the probe",
            )
        }
        None => Explanation::trouble(
            &format!("{reason}Pending"),
            format!("{what}: its {} probe has not succeeded yet", probe.to_lowercase()),
        ),
    }
}

/// The phase in which the probe attempt behind this event spent its time, if it timed out.
fn time_spent(
    subject: &ExplainSubject<'_>,
    name: &str,
    probe: &str,
    event: &TimelineEntry,
) -> String {
    let mut noted = subject.timeline.iter().rev().filter(|entry| {
        entry.what == PROBE_TIMED_OUT
            && entry.container.as_deref() == Some(name)
            && entry.last_since_seen_us >= event.last_since_seen_us
    });
    let of_probe = |entry: &TimelineEntry| {
        let spent = entry.text.strip_prefix(probe.trim_end())?.strip_prefix(": ")?;
        Some(format!(", {spent}"))
    };
    noted.find_map(of_probe).unwrap_or_default()
}

/// Its turn has not come, or has just come.
fn on_its_way(subject: &ExplainSubject<'_>, name: &str) -> Explanation {
    if let Some(silent) = calls::silent_runtime(subject) {
        return silent;
    }
    let now = subject.view.doing.iter().find_map(|action| match action {
        Action::Prepare => Some("its volumes are being made ready".to_owned()),
        Action::CreateSandbox { .. } => Some("its sandbox is being made".to_owned()),
        Action::StartContainer { name, .. } => Some(format!("container {name} is being started")),
        Action::KillContainer { name, .. } => Some(format!("container {name} is being stopped")),
        _ => None,
    });
    let what = now.unwrap_or_else(|| format!("container {name} is to be started"));
    Explanation::trouble("Starting", format!("Is starting: {what}"))
}

/// The explanation of a healthy pod, with a summary of past events.
pub(crate) fn healthy(subject: &ExplainSubject<'_>) -> Explanation {
    let view = subject.view;
    if view.status.phase.is_none() {
        return Explanation::trouble("Starting", "Was just seen; nothing is known of it yet");
    }
    let ready = view.status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    if let Some(condition) = ready.filter(|c| c.status != "True") {
        let reason = condition.reason.as_deref().unwrap_or("NotReady");
        let message = words::one_line(condition.message.as_deref().unwrap_or_default());
        return Explanation::trouble(reason, format!("Runs and is not ready: {message}"));
    }
    let mut sentence = "Runs and is ready".to_owned();
    let victims = view.observed.containers.iter().filter(|c| c.state == RunState::Running);
    let victims = victims.filter_map(|c| Some((c, c.evidence.oom.as_ref()?)));
    if let Some((container, oom)) = victims.max_by_key(|(_, oom)| oom.at) {
        sentence = format!("{sentence}, but {}", victim_text(subject, container, oom));
    }
    let resize = resize(view.status.conditions.as_deref().unwrap_or_default());
    resize.unwrap_or_else(|| Explanation::fine("Running", sentence))
}

/// A resize that is not done although the pod is well.
fn resize(conditions: &[PodCondition]) -> Option<Explanation> {
    let of = |kind: &str| conditions.iter().find(|c| c.type_ == kind && c.status == "True");
    let reason = |condition: &PodCondition| condition.reason.clone().unwrap_or_default();
    let (condition, what, remedy) = match (of("PodResizePending"), of("PodResizeInProgress")) {
        (Some(pending), _) if reason(pending) == "Infeasible" => (
            pending,
            "its resize cannot be done on this node",
            "ask for less, or make the pod anew on another node",
        ),
        (Some(pending), _) => (
            pending,
            "its resize waits",
            "end other pods of this node or ask for less; it is tried again when room is free",
        ),
        (None, Some(progress)) if reason(progress) == "Error" => (
            progress,
            "its resize fails",
            "correct what the message names; it is tried again by itself",
        ),
        _ => return None,
    };
    let name = match reason(condition).as_str() {
        "" => "Resize".to_owned(),
        reason => format!("Resize{reason}"),
    };
    let message = words::one_line(condition.message.as_deref().unwrap_or_default());
    let sentence = format!("Runs and is ready, but {what}: {message}");
    Some(Explanation::trouble(&name, sentence).with_remedy(remedy))
}

fn victim_text(
    subject: &ExplainSubject<'_>,
    container: &ObservedContainer,
    oom: &OomKill,
) -> String {
    let ago = span(subject.now.since(oom.at));
    let more = if oom.count > 1 { format!(", {} in all", oom.count) } else { String::new() };
    let who = words::victim(oom);
    format!("the OOM killer took {who} of container {} {ago} ago{more}", container.name)
}

/// How a container ended: `container c ended with exit code 1: "no such file"`.
pub(super) fn end_text(
    subject: &ExplainSubject<'_>,
    name: &str,
    end: &ContainerStateTerminated,
) -> String {
    let message = end.message.as_deref().and_then(words::termination_message);
    let message =
        message.map(|message| format!(", termination message: {message}")).unwrap_or_default();
    let oom = instance(subject, end).and_then(|c| c.evidence.oom.as_ref());
    match (end.reason.as_deref(), oom) {
        (Some("OOMKilled"), oom) => {
            let who = oom.map(|oom| format!(", {}", words::victim(oom))).unwrap_or_default();
            let limit = memory_limit(subject, name).map(|limit| format!(" (limit {limit})"));
            let limit = limit.unwrap_or_default();
            format!("container {name} was killed because its memory ran out{limit}{who}{message}")
        }
        (_, Some(oom)) if !oom.init => {
            let (who, code) = (words::victim(oom), words::exit_code(end.exit_code));
            format!(
                "container {name} ended with {code} after the OOM killer took its {who}{message}"
            )
        }
        (Some("StartError" | "ContainerCannotRun"), _) => {
            format!("container {name} could not be run{message}")
        }
        (Some("ContainerStatusUnknown"), _) => format!("container {name} ended in an unknown way"),
        _ => format!("container {name} ended with {}{message}", words::exit_code(end.exit_code)),
    }
}

/// The remedy for the way in which a container ended.
pub(super) fn end_remedy(
    subject: &ExplainSubject<'_>,
    name: &str,
    end: &ContainerStateTerminated,
) -> Option<String> {
    let instance = instance(subject, end);
    let out_of_memory = end.reason.as_deref() == Some("OOMKilled")
        || instance.is_some_and(|c| c.evidence.oom.is_some());
    if out_of_memory {
        return Some(format!(
            "raise resources.limits.memory of container {name}, or make it need less"
        ));
    }
    let log = instance.map(|c| c.log_path.as_str()).filter(|path| !path.is_empty())?;
    Some(format!("read what it said: {log}"))
}

fn instance<'a>(
    subject: &ExplainSubject<'a>,
    end: &ContainerStateTerminated,
) -> Option<&'a ObservedContainer> {
    let id = end.container_id.as_deref()?;
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    subject.view.observed.containers.iter().find(|c| c.id.as_str() == id)
}

fn memory_limit(subject: &ExplainSubject<'_>, name: &str) -> Option<String> {
    let spec = pintle_api_types::pod::spec(&subject.view.pod);
    let (_, container) = pintle_api_types::pod::containers::find(spec, name)?;
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    limits.get("memory").map(|quantity| quantity.0.clone())
}

/// One line about a container, for the details.
pub(crate) fn line(subject: &ExplainSubject<'_>, status: &ContainerStatus) -> String {
    let state = status.state.clone().unwrap_or_default();
    let what = if let Some(running) = &state.running {
        let since = running.started_at.as_ref().map(|time| nanos(time.0));
        let age = since.map(|at| format!(" for {}", span(subject.now.since(at))));
        let age = age.unwrap_or_default();
        format!("runs{age}, {}", if status.ready { "ready" } else { "not ready" })
    } else if let Some(end) = &state.terminated {
        let reason = end.reason.as_deref().unwrap_or("ended");
        format!("{reason}, {}", words::exit_code(end.exit_code))
    } else {
        let waiting = state.waiting.unwrap_or_default();
        format!("waits, {}", waiting.reason.as_deref().unwrap_or("no reason known"))
    };
    let restarts = match status.restart_count {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        count => format!(", restarted {count} times"),
    };
    format!("container {}: {what}{restarts}", status.name)
}

fn kind_of(subject: &ExplainSubject<'_>, name: &str) -> ContainerKind {
    let spec = pintle_api_types::pod::spec(&subject.view.pod);
    pintle_api_types::pod::containers::find(spec, name)
        .map_or(ContainerKind::Main, |(kind, _)| kind)
}

fn image_of<'a>(subject: &'a ExplainSubject<'_>, name: &str) -> &'a str {
    let spec = pintle_api_types::pod::spec(&subject.view.pod);
    let container =
        pintle_api_types::pod::containers::find(spec, name).map(|(_, container)| container);
    container.and_then(|c| c.image.as_deref()).unwrap_or_default()
}

fn nanos(time: jiff::Timestamp) -> UnixNanos {
    UnixNanos(i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX))
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
