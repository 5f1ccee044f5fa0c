//! Phase of a pod from the states of its containers.
//!
//! Pure counting: regular init containers decide whether the pod is initialized, main containers
//! and sidecars whether it runs, the restart rules whether stopped containers are the end.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};

use super::{DeriveInput, Statuses, first_by, restarting};
use crate::observed::RunState;
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod::{self, containers, restart};

/// Not started, or not all of it.
pub const PENDING: &str = "Pending";
/// A container runs or will run again.
pub const RUNNING: &str = "Running";
/// All ended well.
pub const SUCCEEDED: &str = "Succeeded";
/// Ended, and not all well.
pub const FAILED: &str = "Failed";

/// Reason of the status and event of a pod that makes room for a critical one.
pub const PREEMPTING: &str = "Preempting";

/// True for a phase that a pod never leaves.
pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some(SUCCEEDED | FAILED))
}

/// The state of a container, as far as the phase needs it.
enum Standing<'a> {
    Running {
        started: bool,
    },
    /// Ended; also while it waits for its next start.
    Ended(&'a ContainerStateTerminated),
    /// Waits for its first start.
    Waiting,
    Unknown,
}

#[derive(Default)]
struct PhaseCount {
    init_pending: usize,
    init_failed_for_good: usize,
    sidecars_pending: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// The phase that the container statuses add up to.
// k8s: pkg/kubelet/kubelet_pods.go getPhase
pub(super) fn of(input: &DeriveInput, statuses: &Statuses, over: bool) -> &'static str {
    let spec = pod::spec(input.pod);
    let mut count = PhaseCount::default();
    for (kind, container) in containers::all(spec) {
        let standing = standing(statuses.get(&*container.name).copied());
        let restarts = |end: &ContainerStateTerminated| {
            restarting::took_away(end) || restart::may_restart(container, spec, end.exit_code)
        };
        match kind {
            ContainerKind::Init => count.init(&standing, restarts),
            ContainerKind::Sidecar => count.sidecar(&standing),
            _ => count.main(&standing, restarts),
        }
    }
    if count.init_failed_for_good > 0 {
        return FAILED;
    }
    let uninitialized =
        count.init_pending > 0 || (count.sidecars_pending > 0 && !any_main_started(input));
    if uninitialized || count.waiting > 0 || count.unknown > 0 {
        return PENDING;
    }
    if count.running > 0 {
        return RUNNING;
    }
    if count.stopped == 0 {
        return PENDING;
    }
    let final_stop = over && !pod::is_static(input.pod);
    if !final_stop && count.stopped != count.stopped_for_good {
        return RUNNING;
    }
    if count.stopped == count.succeeded { SUCCEEDED } else { FAILED }
}

impl PhaseCount {
    fn init(&mut self, standing: &Standing, restarts: impl Fn(&ContainerStateTerminated) -> bool) {
        match standing {
            Standing::Ended(end) => {
                self.init_failed_for_good += usize::from(end.exit_code != 0 && !restarts(end));
            }
            _ => self.init_pending += 1,
        }
    }

    fn sidecar(&mut self, standing: &Standing) {
        match standing {
            Standing::Running { started } => {
                self.sidecars_pending += usize::from(!started);
                self.running += 1;
            }
            Standing::Ended(_) => {}
            Standing::Waiting => {
                self.sidecars_pending += 1;
                self.waiting += 1;
            }
            Standing::Unknown => {
                self.sidecars_pending += 1;
                self.unknown += 1;
            }
        }
    }

    fn main(&mut self, standing: &Standing, restarts: impl Fn(&ContainerStateTerminated) -> bool) {
        match standing {
            Standing::Running { .. } => self.running += 1,
            Standing::Ended(end) => {
                self.stopped += 1;
                self.stopped_for_good += usize::from(!restarts(end));
                self.succeeded += usize::from(end.exit_code == 0);
            }
            Standing::Waiting => self.waiting += 1,
            Standing::Unknown => self.unknown += 1,
        }
    }
}

fn standing(status: Option<&ContainerStatus>) -> Standing<'_> {
    let Some(status) = status else {
        return Standing::Unknown;
    };
    let Some(state) = &status.state else {
        return Standing::Unknown;
    };
    if state.running.is_some() {
        return Standing::Running { started: status.started == Some(true) };
    }
    if let Some(end) = &state.terminated {
        return Standing::Ended(end);
    }
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    match (&state.waiting, last) {
        (Some(_), Some(end)) => Standing::Ended(end),
        (Some(_), None) => Standing::Waiting,
        (None, _) => Standing::Unknown,
    }
}

/// True when a main container of the newest sandbox runs or ran.
// k8s: pkg/kubelet/container/helpers.go HasAnyActiveRegularContainerStarted
fn any_main_started(input: &DeriveInput) -> bool {
    let Some(observed) = input.observed else {
        return false;
    };
    let sandbox = observed.newest_sandbox().map(|sandbox| &sandbox.id);
    let mains = first_by(&pod::spec(input.pod).containers, |main| &main.name);
    observed.containers.iter().any(|instance| {
        Some(&instance.sandbox_id) == sandbox
            && instance.state != RunState::Created
            && mains.contains_key(&*instance.name)
    })
}
