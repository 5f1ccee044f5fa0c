//! DeviceTaintRules: taints set by administrators, in addition to those of drivers.
//!
//! Input: DeviceTaintRules of the API. Output: the taints of a device. Owner: the offers; pure.
//! Bounds: the rules of the API. Watched only behind the gate DRADeviceTaintRules.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/resourceslice/tracker/tracker.go

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::resource::v1::DeviceTaint;
use k8s_openapi::api::resource::v1beta2::{DeviceTaintRule, DeviceTaintRuleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api_types::object::PrunedMeta;
use pintle_api_types::pruned_object;
use serde::Deserialize;

use super::offer::DeviceId;

/// A DeviceTaintRule without its status, because no decision reads it and evictions update it
/// often.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LeanRule {
    #[serde(default)]
    metadata: PrunedMeta,
    spec: DeviceTaintRuleSpec,
}

pruned_object!(LeanRule);

impl From<LeanRule> for DeviceTaintRule {
    fn from(LeanRule { metadata, spec }: LeanRule) -> Self {
        let text = |text: Box<str>| Some(text.into()).filter(|text: &String| !text.is_empty());
        let metadata = ObjectMeta {
            name: text(metadata.name),
            uid: text(metadata.uid),
            resource_version: text(metadata.resource_version),
            ..ObjectMeta::default()
        };
        Self { metadata, spec, status: None }
    }
}

/// A rule: its taint, and the devices that it selects (all, if it has no selector).
#[derive(Clone, Debug)]
pub(super) struct TaintRule {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
    taint: Rc<DeviceTaint>,
}

impl TaintRule {
    /// Reads a rule.
    pub(super) fn read(rule: &DeviceTaintRule) -> Self {
        let (selector, taint) = (rule.spec.device_selector.clone(), &rule.spec.taint);
        let selector = selector.unwrap_or_default();
        let taint = DeviceTaint {
            effect: taint.effect.clone(),
            key: taint.key.clone(),
            time_added: taint.time_added.clone(),
            value: taint.value.clone(),
        };
        Self {
            driver: selector.driver,
            pool: selector.pool,
            device: selector.device,
            taint: Rc::new(taint),
        }
    }

    /// Does the rule select the device?
    // k8s: tracker.go applyPatches
    pub(super) fn selects(&self, id: &DeviceId) -> bool {
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|w| w == has);
        is(&self.device, &id.device) && is(&self.driver, &id.driver) && is(&self.pool, &id.pool)
    }
}

/// All rules by name.
#[derive(Debug, Default)]
pub(super) struct TaintRules(BTreeMap<String, TaintRule>);

impl TaintRules {
    /// Adds, replaces or removes a rule; returns the old one.
    pub(super) fn set(&mut self, name: &str, rule: Option<TaintRule>) -> Option<TaintRule> {
        match rule {
            Some(rule) => self.0.insert(name.to_owned(), rule),
            None => self.0.remove(name),
        }
    }

    /// Returns the names of all rules.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Returns the taints that rules add to a device.
    pub(super) fn taints(&self, id: &DeviceId) -> Vec<Rc<DeviceTaint>> {
        let all = self.0.values().filter(|rule| rule.selects(id));
        all.map(|rule| Rc::clone(&rule.taint)).collect()
    }
}
