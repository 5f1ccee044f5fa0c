//! QoS class of a pod.
//!
//! Guaranteed when every container (or the pod itself) asks for exactly its limits of CPU and
//! memory, BestEffort when none asks for any, else Burstable. Other resources do not count.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{containers, spec};
use crate::quantity::Amount;

/// QoS class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Requests equal limits everywhere.
    Guaranteed,
    /// Some requests or limits.
    Burstable,
    /// Neither requests nor limits.
    BestEffort,
}

impl QosClass {
    /// The API's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Reads the API's text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort]
            .into_iter()
            .find(|class| class.as_str() == text)
    }
}

/// The class in the status when it has one (it never changes), else the computed one.
// k8s: pkg/apis/core/v1/helper/qos/qos.go GetPodQOS
pub fn class_of(pod: &Pod) -> QosClass {
    let stored = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    stored.and_then(QosClass::parse).unwrap_or_else(|| compute(pod))
}

/// The class that follows from the spec.
// k8s: pkg/apis/core/v1/helper/qos/qos.go ComputePodQOS
pub fn compute(pod: &Pod) -> QosClass {
    let spec = spec(pod);
    if let Some(own) = spec.resources.as_ref().filter(|own| sets_any(own)) {
        return classify(std::iter::once(Some(own)));
    }
    classify(containers::all(spec).map(|(_, container)| container.resources.as_ref()))
}

fn classify<'a>(parts: impl Iterator<Item = Option<&'a ResourceRequirements>>) -> QosClass {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut all_limited = true;
    for part in parts {
        let asked = part.and_then(|part| part.requests.as_ref());
        let limited = part.and_then(|part| part.limits.as_ref());
        add_positive(&mut requests, asked);
        let named = add_positive(&mut limits, limited);
        all_limited &= named == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// True when requirements at pod level name CPU or memory.
pub fn sets_any(own: &ResourceRequirements) -> bool {
    [&own.requests, &own.limits].into_iter().flatten().flatten().any(|(name, _)| counts(name))
}

fn counts(name: &str) -> bool {
    name == "cpu" || name == "memory"
}

/// Adds the positive CPU and memory amounts; returns how many there were.
fn add_positive(
    sum: &mut BTreeMap<String, Amount>,
    part: Option<&BTreeMap<String, Quantity>>,
) -> usize {
    let mut named = 0;
    for (name, quantity) in part.into_iter().flatten().filter(|(name, _)| counts(name)) {
        let amount = Amount::parse(&quantity.0).unwrap_or(Amount::ZERO);
        if amount.is_zero() || amount.is_negative() {
            continue;
        }
        named += 1;
        let entry = sum.entry(name.clone()).or_insert(Amount::ZERO);
        *entry = *entry + amount;
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(resources: &[serde_json::Value], own: serde_json::Value) -> QosClass {
        let containers: Vec<_> =
            resources.iter().map(|r| json!({"name": "c", "resources": r})).collect();
        let pod = json!({"spec": {"containers": containers, "resources": own}});
        compute(&serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        let none = json!({});
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"},
                          "limits": {"cpu": "1000m", "memory": "1024Mi"}});
        let cpu = json!({"requests": {"cpu": "1"}});
        let zero = json!({"requests": {"cpu": "0"}});
        let other = json!({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}});
        for (parts, own, want) in [
            (vec![none.clone()], json!(null), QosClass::BestEffort),
            (vec![zero], json!(null), QosClass::BestEffort),
            (vec![other], json!(null), QosClass::BestEffort),
            (vec![full.clone()], json!(null), QosClass::Guaranteed),
            (vec![full.clone(), none.clone()], json!(null), QosClass::Burstable),
            (vec![cpu.clone()], json!(null), QosClass::Burstable),
            (vec![cpu], full.clone(), QosClass::Guaranteed),
            (vec![none], full, QosClass::Guaranteed),
        ] {
            assert_eq!(class(&parts, own.clone()), want, "{parts:?} {own}");
        }
    }
}
