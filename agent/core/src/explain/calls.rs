//! Runtime calls that hang, or that a pod rightly waits for. Pure.
//!
//! A call hangs when it has taken longer than its kind ever should, or when a process that it waits
//! for is known to be stopped or to sleep in the kernel. A stop has the pod's grace period first; a
//! command (hook, probe) has as long as it needs; a pull is reported as a pull, also one that waits
//! for other pulls.

use std::time::Duration;

use super::{ExplainSubject, Explanation, grace, span, words};
use crate::sync::plan::Action;
use crate::view::PodView;

/// Age from which a call is called hanging.
const HANGING_AFTER: Duration = Duration::from_secs(5);
/// Age from which a process that cannot run explains a call. containerd 2.3 gives up on a shim after
/// 2 s.
const BLOCKED_AFTER: Duration = Duration::from_secs(1);
/// Age from which a pull is slow.
const SLOW_PULL: Duration = Duration::from_secs(120);
/// Age from which a pull is worth telling.
const PULL_AFTER: Duration = Duration::from_secs(1);

/// Role of the process of a command that was run in a container.
pub const COMMAND: &str = "its command";

/// The method of a pull that waits for others: no request was sent to the runtime yet.
pub const PULL_TURN: &str = "PullTurn";

/// A runtime call under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCall {
    /// The protocol's name: `StopContainer`.
    pub method: &'static str,
    /// Id of container or sandbox, `namespace/pod`, `namespace/pod/container`, or an image.
    pub subject: String,
    /// How long it has been under way.
    pub age: Duration,
    /// Processes that it waits for, where they could be found.
    pub processes: Vec<CallProcess>,
}

/// A process behind a runtime call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallProcess {
    /// Its role for the pod: `the shim`, `the container's first process`.
    pub role: &'static str,
    /// Pid on the node.
    pub pid: u32,
    /// State letter of `/proc/PID/stat`: R, S, D, T, Z, …
    pub state: char,
    /// The kernel function in which it waits, when the kernel reports it.
    pub wait_channel: Option<String>,
}

impl CallProcess {
    fn is_blocked(&self) -> bool {
        matches!(self.state, 'T' | 't' | 'D' | 'Z')
    }

    fn described(&self) -> String {
        let state = match self.state {
            'T' => "is stopped by a signal",
            't' => "is held by a debugger",
            'D' => "sleeps in the kernel without end",
            'Z' => "has exited and is not reaped",
            'R' => "is running",
            _ => "is waiting",
        };
        let place = self.wait_channel.as_ref().map(|w| format!(" in {w}")).unwrap_or_default();
        format!("{}, pid {}, {state}{place} (state {})", self.role, self.pid, self.state)
    }

    fn remedy(&self) -> String {
        let pid = self.pid;
        match self.state {
            'T' => format!("continue it with kill -CONT {pid}, or end it with kill -9 {pid}"),
            't' => format!("detach the debugger from process {pid}"),
            'D' => format!(
                "see what process {pid} waits for (cat /proc/{pid}/stack): storage or network has \
                 to answer, no signal can end it"
            ),
            _ => format!("look at process {pid} and at the runtime's log; kill -9 {pid} ends it"),
        }
    }
}

/// The call that holds the pod up.
pub(crate) fn hanging(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let (call, what) = worst(subject)?;
    let sentence = format!("Waits for the runtime: {}", stuck_call_text(call, &what));
    Some(explained(call, sentence))
}

/// As `hanging`, for a pod that is being ended.
pub(super) fn hanging_end(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let (call, what) = worst(subject)?;
    let sentence =
        format!("Is being ended, but the runtime hangs: {}", stuck_call_text(call, &what));
    Some(explained(call, sentence))
}

fn worst<'a>(subject: &ExplainSubject<'a>) -> Option<(&'a RuntimeCall, String)> {
    let of_pod = subject.calls.iter().filter_map(|call| Some((call, target(subject.view, call)?)));
    let hangs = of_pod.filter(|(call, _)| hangs(subject.view, call));
    hangs.max_by_key(|(call, _)| (call.processes.iter().any(CallProcess::is_blocked), call.age))
}

fn hangs(view: &PodView, call: &RuntimeCall) -> bool {
    let blocked = call.processes.iter().any(CallProcess::is_blocked);
    let limit = match call.method {
        "StopContainer" => grace(view) + HANGING_AFTER,
        "ExecSync" | "PullImage" => Duration::MAX,
        // Open for as long as a client reads it.
        method if method.ends_with("Stream") => Duration::MAX,
        _ => HANGING_AFTER,
    };
    call.age >= limit || (blocked && call.age >= BLOCKED_AFTER)
}

fn stuck_call_text(call: &RuntimeCall, what: &str) -> String {
    let culprit = call.processes.iter().find(|p| p.is_blocked()).or(call.processes.first());
    let because = culprit.map(|p| format!("; {}", p.described())).unwrap_or_default();
    format!("{} of {what} has not returned for {}{because}", call.method, span(call.age))
}

fn explained(call: &RuntimeCall, sentence: String) -> Explanation {
    let culprit = call.processes.iter().find(|p| p.is_blocked()).or(call.processes.first());
    let remedy = culprit.map_or_else(
        || "look at the runtime's log; restarting the runtime leaves containers running".to_owned(),
        CallProcess::remedy,
    );
    Explanation::trouble("RuntimeCallHangs", sentence).with_remedy(remedy)
}

/// An image that the pod waits for.
pub(crate) fn pulling(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let starting = subject.view.doing.iter().filter_map(|action| match action {
        Action::StartContainer { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let spec = pintle_api_types::pod::spec(&subject.view.pod);
    let wanted = starting.filter_map(|name| {
        let (_, container) = pintle_api_types::pod::containers::find(spec, name)?;
        Some((name, container.image.as_deref()?))
    });
    wanted.into_iter().find_map(|(name, image)| {
        let of = |method: &str| {
            let mut calls = subject.calls.iter().filter(|call| call.method == method);
            calls.find(|call| same_image(&call.subject, image) && call.age >= PULL_AFTER)
        };
        let pull = of("PullImage").map(|pull| pulled(name, pull));
        pull.or_else(|| of(PULL_TURN).map(|turn| queued(subject, name, turn)))
    })
}

fn pulled(container: &str, pull: &RuntimeCall) -> Explanation {
    let (image, age) = (&pull.subject, span(pull.age));
    let sentence =
        format!("Image {image} of container {container} is being pulled, for {age} so far");
    let slow = "see whether the registry answers and how fast, and the runtime's log";
    let explanation = Explanation::trouble("Pulling", sentence);
    if pull.age >= SLOW_PULL { explanation.with_remedy(slow) } else { explanation }
}

/// A pull that has not begun, because the maximum number of pulls is under way.
fn queued(subject: &ExplainSubject<'_>, container: &str, turn: &RuntimeCall) -> Explanation {
    let of = |method: &'static str| subject.calls.iter().filter(move |call| call.method == method);
    let longest = of("PullImage").max_by_key(|pull| pull.age);
    let because = longest.map(|pull| {
        let (image, age) = (&pull.subject, span(pull.age));
        match of("PullImage").count() {
            1 => format!(": image {image} is being pulled, for {age}"),
            count => format!(": {count} images are being pulled, {image} for {age}"),
        }
    });
    let others = match of(PULL_TURN).count() - 1 {
        0 => String::new(),
        1 => ", and one more waits".to_owned(),
        count => format!(", and {count} more wait"),
    };
    let (image, age, because) = (&turn.subject, span(turn.age), because.unwrap_or_default());
    let sentence = format!(
        "Image {image} of container {container} waits for its turn, for {age}{because}{others}"
    );
    let remedy = "serializeImagePulls: false, or a higher maxParallelImagePulls, has more images \
                  pulled at a time";
    Explanation::trouble("PullQueued", sentence).with_remedy(remedy)
}

/// The runtime receives `a:latest` where the pod has `a`.
fn same_image(asked: &str, named: &str) -> bool {
    asked == named || asked.strip_prefix(named).is_some_and(|rest| rest == ":latest")
}

/// The runtime does not answer at all.
pub(super) fn silent_runtime(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let node_wide = |call: &&RuntimeCall| {
        call.subject.is_empty() && !call.method.starts_with("GetContainerEvents")
    };
    let oldest = subject.calls.iter().filter(node_wide).max_by_key(|call| call.age)?;
    (oldest.age >= HANGING_AFTER).then(|| {
        let age = span(oldest.age);
        let sentence =
            format!("The runtime does not answer: {} has waited for {age}", oldest.method);
        let remedy = "see whether the container runtime runs and what its log says";
        Explanation::trouble("RuntimeNotResponding", sentence).with_remedy(remedy)
    })
}

/// A command that runs in one of the pod's containers: a hook or a probe.
pub(crate) fn command<'a>(subject: &ExplainSubject<'a>) -> Option<(&'a RuntimeCall, String)> {
    let commands = subject.calls.iter().filter(|call| call.method == "ExecSync");
    let of_pod = commands.filter_map(|call| Some((call, target(subject.view, call)?)));
    of_pod.max_by_key(|(call, _)| call.age)
}

/// `, pid 12`: the process of a command.
pub(super) fn command_process(call: &RuntimeCall) -> String {
    let process = call.processes.iter().find(|process| process.role == COMMAND);
    process.map(|process| format!(" (pid {})", process.pid)).unwrap_or_default()
}

/// A container that is started only when its postStart hook has ended.
pub(super) fn starting_hook(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let view = subject.view;
    let Some(Action::StartContainer { name: started, .. }) = view.doing.first() else {
        return None;
    };
    let containers = view.observed.containers.iter().filter(|c| c.name == *started);
    let (container, call) = containers
        .filter_map(|container| {
            let mut commands = subject.calls.iter().filter(|call| call.method == "ExecSync");
            Some((container, commands.find(|call| call.subject == container.id.as_str())?))
        })
        .find(|(_, call)| call.age >= HANGING_AFTER)?;
    let (name, age) = (&container.name, span(call.age));
    let pid = command_process(call);
    let sentence = format!(
        "The postStart hook of container {name} has run for {age}{pid}; the container counts as \
         started, and the next one begins, when it has ended"
    );
    let remedy = "see what the hook waits for; it has no time limit of its own";
    Some(Explanation::trouble("PostStartHookRuns", sentence).with_remedy(remedy))
}

/// One line for each call of the pod.
pub(crate) fn lines(subject: &ExplainSubject<'_>) -> impl Iterator<Item = String> {
    subject.calls.iter().filter_map(|call| {
        let what = target(subject.view, call)?;
        let mut line = format!("runtime call {} of {what} for {}", call.method, span(call.age));
        for process in &call.processes {
            line.push_str(&format!("; {}", process.described()));
        }
        Some(line)
    })
}

/// The part of the pod that a call is about; `None` for a call of another pod.
pub(crate) fn target(view: &PodView, call: &RuntimeCall) -> Option<String> {
    if call.subject.is_empty() {
        return None;
    }
    let observed = &view.observed;
    if let Some(container) = observed.containers.iter().find(|c| c.id.as_str() == call.subject) {
        return Some(format!("container {} ({})", container.name, words::short(&call.subject)));
    }
    if observed.sandboxes.iter().any(|s| s.id.as_str() == call.subject) {
        return Some(format!("sandbox {}", words::short(&call.subject)));
    }
    let full = format!(
        "{}/{}",
        pintle_api_types::pod::namespace(&view.pod),
        pintle_api_types::pod::name(&view.pod)
    );
    match call.subject.strip_prefix(&full)? {
        "" => Some("the pod".to_owned()),
        rest => rest.strip_prefix('/').map(|name| format!("container {name}")),
    }
}
