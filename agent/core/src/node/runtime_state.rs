//! The last report of the container runtime about itself, and its meaning for the node.
//!
//! Input: answers to the CRI call Status, with the time of each. Output: the errors that make the
//! node not ready, handlers and features. Pure; the poll is in `task.rs`.
// k8s: pkg/kubelet/runtime.go runtimeState, pkg/kubelet/kubelet.go updateRuntimeUp

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use pintle_cri_v1 as v1;

use pintle_api_types::ids::Mono;

use crate::types::{NodeFacts, RuntimeHandler};

/// Without a good answer for this long the runtime counts as down.
pub const DOWN_AFTER: Duration = Duration::from_secs(30);

/// The runtime as it last answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeState {
    /// When it last reported that it was ready.
    ready_at: Option<Mono>,
    runtime: Option<String>,
    network: Option<String>,
    /// Why its lists make the node not ready; see `pleg`.
    pub lists: Option<String>,
    /// Its handlers, by name.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// Its features, if it reports any.
    pub features: Option<NodeFeatures>,
}

impl Default for RuntimeState {
    fn default() -> Self {
        Self {
            ready_at: None,
            runtime: None,
            network: Some("network state unknown".to_owned()),
            lists: None,
            handlers: Vec::new(),
            features: None,
        }
    }
}

impl RuntimeState {
    /// Records an answer. A runtime that does not answer is detected by the age of the last one.
    pub fn observe(&mut self, answer: &v1::StatusResponse, now: Mono) {
        let conditions = answer.status.as_ref().map(|status| &status.conditions[..]);
        let conditions = conditions.unwrap_or_default();
        self.network = problem(conditions, "NetworkReady", "container runtime network not ready");
        self.runtime = problem(conditions, "RuntimeReady", "container runtime not ready");
        if self.runtime.is_some() {
            return;
        }
        self.handlers = handlers(answer);
        self.features = answer.features.as_ref().map(|features| NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        });
        self.ready_at = Some(now);
    }

    /// Copies the runtime's features to the facts of the workers, if it has been ready.
    // k8s: pkg/kubelet/kubelet.go updateRuntimeUp
    pub fn add_to(&self, facts: &mut NodeFacts) {
        if self.ready_at.is_none() {
            return;
        }
        let handlers = self.handlers.iter().map(|handler| {
            let features = handler.features.as_ref();
            let has = |of: fn(&NodeRuntimeHandlerFeatures) -> Option<bool>| {
                features.and_then(of).unwrap_or(false)
            };
            RuntimeHandler {
                name: handler.name.clone().unwrap_or_default(),
                recursive_read_only: has(|features| features.recursive_read_only_mounts),
                user_namespaces: has(|features| features.user_namespaces),
            }
        });
        let features = self.features.as_ref();
        let groups = features.and_then(|features| features.supplemental_groups_policy);
        facts.take_runtime(handlers.collect(), groups.unwrap_or(false));
    }

    /// Why pods cannot be connected to a network.
    // k8s: pkg/kubelet/runtime.go networkErrors
    pub fn network_error(&self) -> Option<&str> {
        self.network.as_deref()
    }

    /// Why the node cannot run pods because of the runtime, in the kubelet's order.
    pub fn errors(&self, now: Mono) -> Vec<String> {
        let silent = match self.ready_at {
            None => Some("container runtime status check may not have completed yet".to_owned()),
            Some(at) if now.since(at) >= DOWN_AFTER => Some("container runtime is down".to_owned()),
            _ => None,
        };
        let of_lists = self.lists.clone();
        let all = [silent, of_lists, self.runtime.clone(), self.network.clone()];
        all.into_iter().flatten().collect()
    }
}

fn problem(conditions: &[v1::RuntimeCondition], kind: &str, what: &str) -> Option<String> {
    match conditions.iter().find(|condition| condition.r#type == kind) {
        None => Some(format!("{what}: <nil>")),
        Some(condition) if condition.status => None,
        Some(v1::RuntimeCondition { reason, message, .. }) => {
            Some(format!("{what}: {kind}=false reason:{reason} message:{message}"))
        }
    }
}

/// Sorted, so that a runtime that shuffles them causes no writes.
fn handlers(answer: &v1::StatusResponse) -> Vec<NodeRuntimeHandler> {
    let of = |handler: &v1::RuntimeHandler| {
        let features = handler.features.as_ref();
        NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(
                    features.is_some_and(|has| has.recursive_read_only_mounts),
                ),
                user_namespaces: Some(features.is_some_and(|has| has.user_namespaces)),
            }),
        }
    };
    let mut handlers: Vec<_> = answer.runtime_handlers.iter().map(of).collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    handlers
}

/// `containerRuntimeVersion`: name and version number, without a leading `v` or other text;
/// `Unknown` without a number.
// k8s: pkg/kubelet/nodestatus/setters.go VersionInfo
pub fn name_and_version(name: &str, version: &str) -> String {
    format!("{name}://{}", number_of(version).unwrap_or_else(|| "Unknown".to_owned()))
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go newRuntimeVersion
fn number_of(version: &str) -> Option<String> {
    let text = version.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let parts = text[..end].split('.').take_while(|part| !part.is_empty());
    let parts: Vec<&str> = parts.collect();
    let zero_first = |part: &str| part.starts_with('0') && part != "0";
    let three = parts.len() == 3 && !parts.iter().any(|part| zero_first(part));
    if three && is_extra(&text[parts.join(".").len()..]) {
        return Some(text.to_owned());
    }
    if parts.len() < 2 || zero_first(parts[0]) {
        return None;
    }
    let parts: Option<Vec<String>> =
        parts.iter().map(|part| part.parse::<u64>().ok().map(|part| part.to_string())).collect();
    Some(parts?.join("."))
}

/// True for a valid suffix after the numbers of a semantic version.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/version/version.go ParseSemantic
fn is_extra(text: &str) -> bool {
    let (release, build) = match text.split_once('+') {
        Some((release, build)) => (release, Some(build)),
        None => (text, None),
    };
    let word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let release = match release.strip_prefix('-') {
        Some(release) => Some(release),
        None if release.is_empty() => None,
        None => return false,
    };
    let number = |word: &str| word.chars().all(|c| c.is_ascii_digit());
    let zero_first = |word: &str| word.len() > 1 && word.starts_with('0') && number(word);
    release.is_none_or(|text| text.split('.').all(|part| word(part) && !zero_first(part)))
        && build.is_none_or(|text| text.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: bool) -> v1::RuntimeCondition {
        v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: "Why".to_owned(),
            message: "words".to_owned(),
        }
    }

    fn answer(conditions: Vec<v1::RuntimeCondition>) -> v1::StatusResponse {
        v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() }
    }

    fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn runtime_that_never_responded_is_distinguished_from_a_stopped_runtime() {
        let mut state = RuntimeState::default();
        let never = ["container runtime status check may not have completed yet".to_owned()];
        assert_eq!(state.errors(at(5))[..1], never);
        let good = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        state.observe(&good, at(10));
        assert!(state.errors(at(39)).is_empty());
        assert_eq!(state.errors(at(40)), ["container runtime is down"]);
    }

    #[test]
    fn responding_runtime_with_an_unhealthy_pleg_is_not_ready() {
        let mut state = RuntimeState::default();
        let good = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        state.observe(&good, at(10));
        state.lists = Some("PLEG is not healthy".to_owned());
        assert_eq!(state.errors(at(11)), ["PLEG is not healthy"]);
        // As the kubelet orders them.
        let down = ["container runtime is down", "PLEG is not healthy"];
        assert_eq!(state.errors(at(40)), down);
    }

    #[test]
    fn unready_condition_is_reported_with_the_runtimes_message() {
        let mut state = RuntimeState::default();
        let bad = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
        state.observe(&bad, at(10));
        let want = "container runtime network not ready: NetworkReady=false reason:Why \
                    message:words";
        assert_eq!(state.errors(at(10)), [want]);
        state.observe(&answer(Vec::new()), at(11));
        assert_eq!(state.errors(at(11)).len(), 2);
        assert_eq!(state.errors(at(11))[0], "container runtime not ready: <nil>");
    }

    #[test]
    fn workers_get_runtime_features_once_the_runtime_reports_features() {
        let mut state = RuntimeState::default();
        let mut facts = NodeFacts { supplemental_groups_policy: true, ..NodeFacts::default() };
        facts.handlers = vec![RuntimeHandler { user_namespaces: true, ..Default::default() }];
        let before = facts.clone();
        state.add_to(&mut facts);
        assert_eq!(facts, before, "the facts at the start");
        let ready = || vec![condition("RuntimeReady", true), condition("NetworkReady", true)];
        let handler = |name: &str, able: bool| v1::RuntimeHandler {
            name: name.to_owned(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: able,
                user_namespaces: able,
            }),
        };
        for able in [true, false] {
            let features =
                v1::RuntimeFeatures { supplemental_groups_policy: able, ..Default::default() };
            let told = v1::StatusResponse {
                runtime_handlers: vec![handler("kata", !able), handler("", able)],
                features: able.then_some(features),
                ..answer(ready())
            };
            state.observe(&told, at(10));
            state.add_to(&mut facts);
            let can = |name| {
                let handler = facts.handler(name);
                (handler.user_namespaces, handler.recursive_read_only)
            };
            assert_eq!(
                (can(""), can("kata"), can("other")),
                ((able, able), (!able, !able), (false, false))
            );
            assert_eq!((facts.recursive_read_only, facts.supplemental_groups_policy), (able, able));
        }
    }

    #[test]
    fn runtime_version_keeps_only_its_semantic_part() {
        for (given, want) in [
            ("2.1.9+unknown", "2.1.9+unknown"),
            ("v1.7.24", "1.7.24"),
            ("1.7.24~ds1", "1.7.24"),
            ("1.30.0-rc.1", "1.30.0-rc.1"),
            ("1.2", "1.2"),
            ("1.7.28-0ubuntu1~24.04.1", "1.7.28"),
            ("1.7.28-0ubuntu1.24.04.1", "1.7.28"),
            ("2.1.0-beta.0+d.1", "2.1.0-beta.0+d.1"),
            ("1.7.28+", "1.7.28"),
            ("1.02.3.rest", "1.2.3"),
            ("1.2..3", "1.2"),
            ("7", "Unknown"),
            ("01.2.3", "Unknown"),
            ("main", "Unknown"),
        ] {
            assert_eq!(name_and_version("rt", given), format!("rt://{want}"), "{given}");
        }
    }
}
