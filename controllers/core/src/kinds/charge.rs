//! The charge of a pod to quotas.
//!
//! Input: what was read of a pod. Output: the sums of its requests and limits, and by which scopes
//! it is selected. The sums are one text that all pods of a template share. A resize that is under
//! way counts with the larger values.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::pod::resources::{amounts, pod_limits, pod_requests};
use pintle_api_types::quantity::{Amount, Amounts};
use pintle_api_types::symbol::Symbol;
use serde::{Deserialize, Serialize};

/// The charge of a pod to quotas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodCharge {
    /// Its requests and limits, as JSON.
    usage: Symbol,
    /// Its QoS class is BestEffort.
    pub is_best_effort: bool,
    /// It has `activeDeadlineSeconds`.
    pub has_deadline: bool,
    /// Its affinity selects other namespaces.
    pub crosses_namespaces: bool,
    /// Its priority class; empty when it has none.
    pub priority_class: Symbol,
    /// The claim that was made for its extended resources.
    pub extended_claim: Option<Symbol>,
}

/// The sums of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sums {
    requests: BTreeMap<String, String>,
    limits: BTreeMap<String, String>,
}

/// The parts of a pod's spec and status from which the charge is computed.
#[derive(Debug, Default)]
pub(super) struct Charged<'a> {
    pub(super) containers: Vec<ChargedContainer>,
    pub(super) init_containers: Vec<ChargedContainer>,
    pub(super) resources: Option<ResourceRequirements>,
    pub(super) overhead: Option<BTreeMap<String, Quantity>>,
    pub(super) has_deadline: bool,
    pub(super) priority_class: Symbol,
    /// The affinity as JSON.
    pub(super) affinity: Option<&'a str>,
    pub(super) qos_class: Symbol,
    /// Its pending resize is infeasible.
    pub(super) is_resize_infeasible: bool,
    pub(super) statuses: Vec<ActuatedContainer>,
    pub(super) extended_claim: Option<Symbol>,
}

/// A container, and what it asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChargedContainer {
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
    resources: Option<ResourceRequirements>,
}

/// The actuated resources of a container.
#[derive(Debug)]
pub(super) struct ActuatedContainer {
    pub(super) name: Symbol,
    pub(super) resources: Option<ResourceRequirements>,
    pub(super) allocated_resources: Option<BTreeMap<String, Quantity>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ChargedAffinity {
    pod_affinity: Option<AffinityTerms>,
    pod_anti_affinity: Option<AffinityTerms>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AffinityTerms {
    required_during_scheduling_ignored_during_execution: Option<Vec<AffinityTerm>>,
    preferred_during_scheduling_ignored_during_execution: Option<Vec<WeightedTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AffinityTerm {
    namespaces: Option<Vec<serde::de::IgnoredAny>>,
    namespace_selector: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WeightedTerm {
    pod_affinity_term: AffinityTerm,
}

impl PodCharge {
    /// Computes the charge.
    ///
    /// # Errors
    /// When the affinity is none.
    pub(super) fn new(charged: Charged<'_>) -> Result<Self, serde_json::Error> {
        let is_best_effort = match &*charged.qos_class {
            "" => is_best_effort(&charged),
            class => class == "BestEffort",
        };
        let affinity = charged.affinity.map(serde_json::from_str::<ChargedAffinity>).transpose()?;
        let affinity = affinity.unwrap_or_default();
        let terms = [affinity.pod_affinity, affinity.pod_anti_affinity];
        let pod = effective_pod(
            [charged.containers, charged.init_containers],
            charged.resources,
            charged.overhead,
            &charged.statuses,
            charged.is_resize_infeasible,
        );
        let texts = |amounts: Amounts| {
            amounts.into_iter().map(|(name, amount)| (name, amount.canonical())).collect()
        };
        let sums = Sums { requests: texts(pod_requests(&pod)), limits: texts(pod_limits(&pod)) };
        Ok(Self {
            usage: Symbol::of(&serde_json::to_string(&sums)?),
            is_best_effort,
            has_deadline: charged.has_deadline,
            crosses_namespaces: terms.iter().flatten().any(AffinityTerms::cross_namespaces),
            priority_class: charged.priority_class,
            extended_claim: charged.extended_claim,
        })
    }

    /// The same sums of requests and limits.
    pub fn has_same_usage(&self, other: &Self) -> bool {
        self.usage == other.usage
    }

    /// The key of the sums: pods with equal keys have equal sums.
    pub fn usage_name(&self) -> &Symbol {
        &self.usage
    }

    /// The sums of its requests.
    pub fn requests(&self) -> Amounts {
        parsed(self.sums().requests)
    }

    /// The sums of its limits.
    pub fn limits(&self) -> Amounts {
        parsed(self.sums().limits)
    }

    fn sums(&self) -> Sums {
        // Only the charge of a default pod is no JSON.
        serde_json::from_str(&self.usage).unwrap_or_default()
    }
}

fn parsed(texts: BTreeMap<String, String>) -> Amounts {
    texts.into_iter().filter_map(|(name, text)| Some((name, Amount::parse(&text)?))).collect()
}

impl AffinityTerms {
    // k8s: pkg/quota/v1/evaluator/core/pods.go crossNamespacePodAffinityTerm
    fn cross_namespaces(&self) -> bool {
        let required = self.required_during_scheduling_ignored_during_execution.iter().flatten();
        let preferred = self.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        let terms = required.chain(preferred.map(|weighted| &weighted.pod_affinity_term));
        terms.into_iter().any(|term| {
            term.namespace_selector.is_some()
                || term.namespaces.as_ref().is_some_and(|names| !names.is_empty())
        })
    }
}

/// The pod with the actuated resources of its containers.
fn effective_pod(
    [main, init]: [Vec<ChargedContainer>; 2],
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    statuses: &[ActuatedContainer],
    is_infeasible: bool,
) -> Pod {
    let effective = |container: ChargedContainer, is_main: bool| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let actuated = statuses.iter().find(|known| *known.name == *container.name);
        let resources = match actuated.filter(|_| is_main || is_sidecar) {
            Some(actuated) => actuated.effective(container.resources, is_infeasible),
            None => container.resources,
        };
        Container {
            name: container.name,
            restart_policy: container.restart_policy,
            resources,
            ..Container::default()
        }
    };
    let containers = main.into_iter().map(|container| effective(container, true));
    let init = init.into_iter().map(|container| effective(container, false));
    let spec = PodSpec {
        containers: containers.collect(),
        init_containers: Some(init.collect()),
        resources,
        overhead,
        ..PodSpec::default()
    };
    Pod { spec: Some(spec), ..Pod::default() }
}

impl ActuatedContainer {
    // k8s: staging/src/k8s.io/component-helpers/resource/helpers.go determineEffectiveRequests
    fn effective(
        &self,
        wanted: Option<ResourceRequirements>,
        is_infeasible: bool,
    ) -> Option<ResourceRequirements> {
        let Some(actuated) = &self.resources else { return wanted };
        let wanted = wanted.filter(|_| !is_infeasible).unwrap_or_default();
        let requests = [&wanted.requests, &actuated.requests, &self.allocated_resources];
        let limits = [&wanted.limits, &actuated.limits];
        Some(ResourceRequirements {
            requests: Some(largest(&requests)),
            limits: Some(largest(&limits)),
            ..ResourceRequirements::default()
        })
    }
}

fn largest(lists: &[&Option<BTreeMap<String, Quantity>>]) -> BTreeMap<String, Quantity> {
    let mut largest = BTreeMap::<String, Quantity>::new();
    for (name, quantity) in lists.iter().flat_map(|list| list.iter().flatten()) {
        let amount = |quantity: &Quantity| Amount::parse(&quantity.0).unwrap_or_default();
        let known = largest.entry(name.clone()).or_insert_with(|| quantity.clone());
        if amount(quantity) > amount(known) {
            *known = quantity.clone();
        }
    }
    largest
}

/// The spec has no CPU or memory, requested or as a limit. Values of running containers do not
/// count.
// k8s: pkg/apis/core/v1/helper/qos/qos.go ComputePodQOS
fn is_best_effort(charged: &Charged<'_>) -> bool {
    let counts = |list: &Option<BTreeMap<String, Quantity>>| {
        amounts(list.as_ref()).into_iter().any(|(name, amount)| {
            let is_computed = matches!(&*name, "cpu" | "memory");
            is_computed && !amount.is_zero() && !amount.is_negative()
        })
    };
    let asks =
        |resources: &ResourceRequirements| counts(&resources.requests) || counts(&resources.limits);
    if let Some(resources) = &charged.resources {
        return !asks(resources);
    }
    let containers = [&charged.containers, &charged.init_containers].into_iter().flatten();
    !containers.filter_map(|container| container.resources.as_ref()).any(asks)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn charge(pod: Value) -> PodCharge {
        serde_json::from_str::<crate::kinds::Pod>(&pod.to_string()).expect("a good pod").charge
    }

    fn cpu(pod: Value) -> String {
        charge(pod).requests().remove("cpu").unwrap_or_default().canonical()
    }

    #[test]
    fn resize_under_way_counts_with_the_larger_values() {
        let pod = |wanted: &str, actuated: &str, reason: &str| {
            let resources = json!({"requests": {"cpu": wanted}});
            json!({"spec": {"containers": [{"name": "a", "resources": resources}]},
                "status": {"conditions": [{"type": "PodResizePending", "reason": reason}],
                    "containerStatuses": [{"name": "a",
                        "resources": {"requests": {"cpu": actuated}},
                        "allocatedResources": {"cpu": "150m"}}]}})
        };
        for (wanted, actuated, reason, expected) in [
            ("100m", "200m", "Deferred", "200m"),
            ("300m", "200m", "Deferred", "300m"),
            ("300m", "100m", "Infeasible", "150m"),
        ] {
            assert_eq!(cpu(pod(wanted, actuated, reason)), expected);
        }
    }

    #[test]
    fn class_is_computed_while_the_status_has_none() {
        let container = |resources: Value| json!([{"name": "a", "resources": resources}]);
        for (spec, status, expected) in [
            (json!({"containers": container(json!({}))}), json!({}), true),
            (json!({"containers": container(json!({"requests": {"cpu": "1"}}))}), json!({}), false),
            (json!({"containers": container(json!({"requests": {"cpu": "0"}}))}), json!({}), true),
            (
                json!({"containers": container(json!({}))}),
                json!({"containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}),
                true,
            ),
            (json!({}), json!({"qosClass": "Burstable"}), false),
            (json!({}), json!({"qosClass": "BestEffort"}), true),
        ] {
            let charge = charge(json!({"spec": spec, "status": status}));
            assert_eq!(charge.is_best_effort, expected, "{spec}");
        }
    }

    #[test]
    fn affinity_with_namespaces_is_marked_as_crossing_namespaces() {
        let preferred = json!({"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1,
                "podAffinityTerm": {"topologyKey": "z", "namespaceSelector": {}}}]}});
        let required = |term: Value| {
            let mut affinity = json!({});
            affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!([term]);
            affinity
        };
        for (affinity, expected) in [
            (required(json!({"topologyKey": "z"})), false),
            (required(json!({"topologyKey": "z", "namespaces": []})), false),
            (required(json!({"topologyKey": "z", "namespaces": ["a"]})), true),
            (preferred, true),
        ] {
            let charge = charge(json!({"spec": {"affinity": affinity}}));
            assert_eq!(charge.crosses_namespaces, expected, "{affinity}");
        }
    }
}
