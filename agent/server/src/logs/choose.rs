//! Chooses a container's log: of the running one, the last one, or the one before. Pure.
//!
//! Input: the pod's status and the runtime's containers. Output: a container id and its log file,
//! or why there is none, in the kubelet's words.
// k8s: pkg/kubelet/kubelet_pods.go validateContainerLogStatus

use std::path::PathBuf;

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use pintle_agent_core::view::PodView;

use crate::route::PathWords;

/// The id, as a status has it: `containerd://…`.
pub(super) fn container_id(
    status: &PodStatus,
    words: &PathWords,
    previous: bool,
) -> Result<String, NoLog> {
    let (container, pod) = (&words.container, &words.pod);
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let of = lists.into_iter().flatten().flatten().find(|status| status.name == *container);
    let missed = |miss| NoLog { container: container.clone(), pod: pod.clone(), miss };
    let of = of.ok_or_else(|| missed(Miss::NotThere))?;
    choose(of, previous).map_err(missed)
}

/// A container without the wanted log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) struct NoLog {
    container: String,
    pod: String,
    miss: Miss,
}

#[derive(Debug, PartialEq, Eq)]
enum Miss {
    NotThere,
    NoPrevious,
    Terminated,
    /// With the reason, behind a separator.
    Waiting(String),
}

impl fmt::Display for NoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, pod, miss } = self;
        match miss {
            Miss::NotThere => write!(f, "container {container:?} in pod {pod:?} is not available"),
            Miss::NoPrevious => {
                write!(f, "previous terminated container {container:?} in pod {pod:?} not found")
            }
            Miss::Terminated => write!(f, "container {container:?} in pod {pod:?} is terminated"),
            Miss::Waiting(why) => {
                write!(f, "container {container:?} in pod {pod:?} is waiting to start{why}")
            }
        }
    }
}

fn choose(status: &ContainerStatus, previous: bool) -> Result<String, Miss> {
    let id =
        |ended: &ContainerStateTerminated| ended.container_id.clone().filter(|id| !id.is_empty());
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    if previous {
        return last.and_then(id).ok_or(Miss::NoPrevious);
    }
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return Ok(status.container_id.clone().unwrap_or_default());
    }
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        // The next container may not have been made: then the one before is the last one.
        return id(ended).or_else(|| last.and_then(id)).ok_or(Miss::Terminated);
    }
    if let Some(last) = last {
        return id(last).ok_or(Miss::Terminated);
    }
    let reason = state.and_then(|state| state.waiting.as_ref()).map(|waiting| {
        match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => ": image can't be pulled".to_owned(),
            "ImagePullBackOff" => ": trying and failing to pull image".to_owned(),
            reason => format!(": {reason}"),
        }
    });
    Err(Miss::Waiting(reason.unwrap_or_else(|| " - no logs yet".to_owned())))
}

/// The id without the runtime's name in front.
pub(super) fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, bare)| bare)
}

/// The log file of that container; `None` when the runtime has forgotten it.
pub(super) fn log_path(view: &PodView, id: &str) -> Option<PathBuf> {
    let id = bare_id(id);
    let container = view.observed.containers.iter().find(|c| c.id.as_str() == id)?;
    (!container.log_path.is_empty()).then(|| PathBuf::from(&container.log_path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn id(state: &Value, last: &Value, previous: bool) -> Result<String, NoLog> {
        let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "containerID": "containerd://now",
            "state": state, "lastState": last}]});
        let status: PodStatus = serde_json::from_value(status).expect("a status");
        let words =
            PathWords { pod: "p".to_owned(), container: "c".to_owned(), ..PathWords::default() };
        container_id(&status, &words, previous)
    }

    #[test]
    fn the_attempt_is_chosen_by_the_states() {
        let (none, running) = (json!({}), json!({"running": {}}));
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let (a, b) = ("containerd://a", "containerd://b");
        let not = |text: &str| Err(format!("container \"c\" in pod \"p\" is {text}"));
        for (state, last, previous, expected) in [
            (&running, &none, false, Ok("containerd://now".to_owned())),
            (&running, &ended(a), true, Ok(a.to_owned())),
            (&ended(b), &ended(a), false, Ok(b.to_owned())),
            (&ended(""), &ended(a), false, Ok(a.to_owned())),
            (&ended(""), &none, false, not("terminated")),
            (&waiting("CrashLoopBackOff"), &ended(a), false, Ok(a.to_owned())),
            (&waiting("CrashLoopBackOff"), &ended(""), false, not("terminated")),
            (
                &waiting("ErrImagePull"),
                &none,
                false,
                not("waiting to start: image can't be pulled"),
            ),
            (
                &waiting("ImagePullBackOff"),
                &none,
                false,
                not("waiting to start: trying and failing to pull image"),
            ),
            (
                &waiting("ContainerCreating"),
                &none,
                false,
                not("waiting to start: ContainerCreating"),
            ),
            (&none, &none, false, not("waiting to start - no logs yet")),
        ] {
            let found = id(state, last, previous).map_err(|error| error.to_string());
            assert_eq!(found, expected, "{state} {last} {previous}");
        }
        let missing = id(&running, &none, true).expect_err("none");
        let missing = missing.to_string();
        assert_eq!(missing, "previous terminated container \"c\" in pod \"p\" not found");
    }

    #[test]
    fn a_container_without_a_status_is_not_available() {
        let words =
            PathWords { pod: "p".to_owned(), container: "x".to_owned(), ..PathWords::default() };
        let error = container_id(&PodStatus::default(), &words, false).expect_err("none");
        assert_eq!(error.to_string(), "container \"x\" in pod \"p\" is not available");
    }
}
