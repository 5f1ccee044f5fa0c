//! Requests and limits of pods, for `/metrics/resources`: stored once for all pods with the same.
//!
//! Input: a pod as observed. Output: [`Declaration`], shared by all pods with the same scheduler,
//! priority and resources. Owner: the cache. Bounds: twice the declarations in use, and
//! `SWEEP_MIN`. A pod costs a pointer; an event costs the serialization of these fields and a
//! lookup. Requests and limits are summed only for the first pod of a declaration.
// k8s: pkg/scheduler/metrics/resources/resources.go

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::quantity::Amounts;
use pintle_api_types::symbol::Symbol;
use pintle_sched_core::intern::Str;
use pintle_sched_core::requests::declared::Declared;

/// The number of declarations from which unused ones are swept.
const SWEEP_MIN: usize = 256;

/// The resources, priority and scheduler of a pod.
#[derive(Debug, Default, PartialEq)]
pub struct Declaration {
    /// Its scheduler.
    pub scheduler: Box<str>,
    /// Its priority, if it has one.
    pub priority: Option<i32>,
    /// Non-zero requests by resource.
    pub requests: Box<[(Box<str>, f64)]>,
    /// Non-zero limits by resource.
    pub limits: Box<[(Box<str>, f64)]>,
}

/// A pod and its declaration.
#[derive(Clone, Debug)]
pub struct DeclaredRow {
    /// The pod.
    pub pod: ObjectKey,
    /// Its node.
    pub node: Option<Symbol>,
    /// Its declaration.
    pub declares: Arc<Declaration>,
}

/// The record of a bound pod, besides its row in the columns.
#[derive(Clone, Debug)]
pub(crate) struct BoundPod {
    pub(crate) uid: Str,
    pub(crate) node: Symbol,
    pub(crate) declares: Arc<Declaration>,
}

/// All declarations in use.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    known: HashMap<Box<[u8]>, Arc<Declaration>>,
    sweep_at: usize,
    written: Vec<u8>,
}

impl Declarations {
    /// Returns the declaration of a pod.
    pub(crate) fn of(&mut self, pod: &Pod) -> Arc<Declaration> {
        self.written.clear();
        write_pod(pod, &mut self.written);
        if let Some(known) = self.known.get(&*self.written) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.known.retain(|_, known| Arc::strong_count(known) > 1);
            self.sweep_at = self.known.len() * 2;
        }
        let new = Arc::new(declaration(pod));
        self.known.insert(self.written.as_slice().into(), Arc::clone(&new));
        new
    }
}

/// A quantity that cannot be parsed counts as zero; reading the pod into the columns logs it.
fn declaration(pod: &Pod) -> Declaration {
    let spec = pod.spec.as_ref();
    let of = Declared::of(pod).unwrap_or_default();
    let numbers = |amounts: &Amounts| {
        let there = amounts.iter().filter(|(_, amount)| !amount.is_zero());
        there.map(|(name, amount)| (name.as_str().into(), amount.approximate())).collect()
    };
    Declaration {
        scheduler: spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default().into(),
        priority: spec.and_then(|spec| spec.priority),
        requests: numbers(&of.requests),
        limits: numbers(&of.limits),
    }
}

/// Serializes every field of a declaration, so that equal bytes mean equal declarations.
fn write_pod(pod: &Pod, out: &mut Vec<u8>) {
    let Some(spec) = &pod.spec else { return };
    let PodSpec { scheduler_name, priority, overhead, resources, .. } = spec;
    write_text(scheduler_name.as_deref().unwrap_or_default(), out);
    out.push(priority.is_some().into());
    out.extend(priority.unwrap_or(0).to_le_bytes());
    write_list(overhead.as_ref(), out);
    write_list(resources.as_ref().and_then(|r| r.requests.as_ref()), out);
    write_list(resources.as_ref().and_then(|r| r.limits.as_ref()), out);
    spec.containers.iter().for_each(|container| write_container(b'c', container, out));
    for container in spec.init_containers.iter().flatten() {
        let stays = container.restart_policy.as_deref() == Some("Always");
        write_container(if stays { b's' } else { b'i' }, container, out);
    }
}

fn write_container(kind: u8, container: &Container, out: &mut Vec<u8>) {
    out.push(kind);
    write_list(container.resources.as_ref().and_then(|r| r.requests.as_ref()), out);
    write_list(container.resources.as_ref().and_then(|r| r.limits.as_ref()), out);
}

fn write_list(list: Option<&BTreeMap<String, Quantity>>, out: &mut Vec<u8>) {
    write_number(list.map_or(0, BTreeMap::len), out);
    for (name, quantity) in list.into_iter().flatten() {
        write_text(name, out);
        write_text(&quantity.0, out);
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    write_number(text.len(), out);
    out.extend(text.as_bytes());
}

fn write_number(number: usize, out: &mut Vec<u8>) {
    out.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a pod")
    }

    fn one(list: &str, resource: &str, amount: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {list: {resource: amount}}}]})
    }

    #[test]
    fn equal_declarations_are_shared_and_different_ones_are_not() {
        let mut all = Declarations::default();
        let first = all.of(&pod(one("requests", "cpu", "100m")));
        let mut named = one("requests", "cpu", "100m");
        named["containers"][0]["name"] = json!("another");
        named["nodeName"] = json!("n");
        assert!(Arc::ptr_eq(&first, &all.of(&pod(named))));
        let base = one("requests", "cpu", "100m");
        let with = |field: &str, value: Value| {
            let mut spec = base.clone();
            spec[field] = value;
            spec
        };
        let init = |policy: Value| {
            json!([{"name": "i", "restartPolicy": policy,
                "resources": {"requests": {"cpu": "1"}}}])
        };
        let others = [
            one("limits", "cpu", "100m"),
            one("requests", "cpu", "200m"),
            one("requests", "memory", "100m"),
            with("priority", json!(0)),
            with("priority", json!(1)),
            with("schedulerName", json!("s")),
            with("overhead", json!({"cpu": "1"})),
            with("resources", json!({"requests": {"cpu": "1"}})),
            with("resources", json!({"limits": {"cpu": "1"}})),
            with("initContainers", init(json!(null))),
            with("initContainers", init(json!("Always"))),
            json!({"containers": []}),
        ];
        let mut seen = vec![first];
        for other in others {
            let new = all.of(&pod(other.clone()));
            assert!(seen.iter().all(|one| !Arc::ptr_eq(one, &new)), "{other}");
            seen.push(new);
        }
    }

    #[test]
    fn zero_and_invalid_quantities_are_omitted_from_declarations() {
        let mut all = Declarations::default();
        let read = all.of(&pod(one("requests", "cpu", "300m")));
        assert_eq!(*read.requests, [("cpu".into(), 0.3)]);
        assert!(read.limits.is_empty() && read.priority.is_none() && read.scheduler.is_empty());
        assert!(all.of(&pod(one("requests", "cpu", "0"))).requests.is_empty());
        assert!(all.of(&pod(one("requests", "cpu", "lots"))).requests.is_empty());
        assert_eq!(*all.of(&Pod::default()), Declaration::default());
    }

    #[test]
    fn unreferenced_declarations_are_dropped() {
        let mut all = Declarations::default();
        let number = |at: usize| pod(one("requests", "memory", &format!("{at}Mi")));
        let kept: Vec<_> = (0..10).map(|at| all.of(&number(at))).collect();
        (10..20 * SWEEP_MIN).for_each(|at| drop(all.of(&number(at))));
        assert!(all.known.len() <= SWEEP_MIN, "{}", all.known.len());
        assert!(kept.iter().enumerate().all(|(at, one)| Arc::ptr_eq(one, &all.of(&number(at)))));
    }
}
