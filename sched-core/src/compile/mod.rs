//! The compiler: an API pod in, a program out.
//!
//! Input: a pod, and the cluster with the names, namespaces and workloads it refers to.
//! Output: a `Program`; counters that it reads are created. Owner: the writer of the cluster.
//! Bounds: the pod's own size. One method a family of constraints, each in upstream's order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorTerm, Pod, PodAffinityTerm, Toleration as ApiToleration,
    TopologySpreadConstraint,
};

mod cost;
mod prepare;

use self::cost::PodCost;
use crate::attempt_budget::AttemptBudget;
use crate::columns::counters::{CounterId, CounterKey, PodMatch, Scope};
use crate::columns::keys::{HOSTNAME, KeyId};
use crate::columns::taints::{Effect, NodeTaint, whole_number};
use crate::config::{Plugin, Profile, SpreadDefaults};
use crate::intern::{Interner, LabelsId, Str};
use crate::program::node_terms::{is_empty_term, parse_term};
use crate::program::{
    Attraction, NodeAffinityProgram, NodeOp, NodeRequirement, NodeTerms, PodAffinityProgram,
    Program, Pull, Spread, SpreadProgram, Toleration, TolerationOp, WeightedTerms,
};
use crate::requests::PodRequests;
use crate::selector::Selector;
use crate::snapshot::cluster::{Cluster, DeltaError};
use crate::snapshot::objects::{
    ObjectError, existing_terms, host_ports, split_labels, term_namespaces,
};

/// Names and amounts of extended resources.
type Amounts = Box<[(Str, i64)]>;

const ZONE: &str = "topology.kubernetes.io/zone";
const TAINT_UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Skews of the system's default constraints.
// k8s: podtopologyspread/plugin.go systemDefaultConstraints
const SYSTEM_DEFAULTS: [(&str, i32); 2] = [(HOSTNAME, 3), (ZONE, 5)];

/// Label of budget steps spent on compiling.
const PURPOSE: &str = "compiling the terms of the pod";

/// Compiles a pod with these requests, regardless of earlier programs.
fn compile(
    cluster: &mut Cluster,
    pod: &Pod,
    requests: PodRequests,
    spent: &AttemptBudget,
) -> Result<Arc<Program>, DeltaError> {
    let cost = PodCost::of(pod);
    spent.pay(cost.work(cluster), PURPOSE)?;
    spent.pay_bytes(cost.bytes(cluster), PURPOSE)?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    if cost.counted > 0
        && let Some(id) = cluster.interner.find(namespace)
        && cluster.counter_budget.is_full(id)
    {
        return Err(DeltaError::TermsOfNamespace(namespace.to_owned()));
    }
    let compiler = Compiler::new(cluster, pod);
    compiler.cluster.counter_budget.begin(compiler.namespace, cost.counted);
    match compiler.program(requests) {
        Ok(program) => Ok(match cluster.counter_budget.hold(program) {
            Ok(program) => cluster.share(program),
            Err(program) => program,
        }),
        Err(error) => {
            let unused = cluster.counter_budget.abandon();
            cluster.free_counters(&unused);
            Err(error.into())
        }
    }
}

struct Compiler<'a> {
    cluster: &'a mut Cluster,
    pod: &'a Pod,
    namespace: Str,
    labels: LabelsId,
    profile: Arc<Profile>,
    /// Lists of namespaces, each once.
    namespaces: HashSet<Arc<[Str]>>,
}

impl<'a> Compiler<'a> {
    fn new(cluster: &'a mut Cluster, pod: &'a Pod) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let namespace = cluster.interner.intern(namespace);
        let labels = cluster.interner.intern_labels(pod.metadata.labels.iter().flatten());
        let profile = Arc::clone(&cluster.view.profile);
        Self { cluster, pod, namespace, labels, profile, namespaces: HashSet::new() }
    }

    fn interner(&mut self) -> &mut Interner {
        &mut self.cluster.interner
    }

    fn program(mut self, requests: PodRequests) -> Result<Program, ObjectError> {
        let pod = self.pod;
        let spec = pod.spec.as_ref();
        let affinity = spec.and_then(|s| s.affinity.as_ref());
        let node_affinity = affinity.and_then(|a| a.node_affinity.as_ref());
        let required = node_affinity
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let (images, image_containers) = self.images();
        let (preferred, preferred_error) = self.preferred_nodes(affinity);
        let tolerations = self.tolerations();
        let unschedulable = self.unschedulable();
        let required_terms = required.map(|r| self.node_terms(&r.node_selector_terms));
        let subset = required.and_then(|r| self.subset(&r.node_selector_terms));
        let added = self.added_terms();
        let hard = self.spread("DoNotSchedule")?;
        let soft = self.spread("ScheduleAnyway")?;
        let explicit = spec
            .is_some_and(|s| s.topology_spread_constraints.as_ref().is_some_and(|c| !c.is_empty()));
        let system = self.profile.spread_defaults == SpreadDefaults::System;
        let (pod_affinity, meets_own) = self.required_affinity(affinity)?;
        let anti = self.required_anti(affinity)?;
        let preferred_pods = self.preferred_pods(affinity)?;
        let (delegated, scalars) = self.scalars(&requests);
        let scalar_ids = self.names(&requests);
        let ports = host_ports(pod, self.interner()).into();
        let features = self.features();
        let gates = spec.and_then(|s| s.scheduling_gates.as_ref()).into_iter().flatten();
        let node_name = spec.and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        let node_name = node_name.map(|n| self.interner().intern(n));
        let selector = self.node_selector();
        let class = self.class()?;
        Ok(Program {
            class,
            own_keys_version: self.cluster.view.counts.own_keys_version,
            lease: self.interner().lease(),
            error: None,
            gates: gates.map(|g| g.name.clone()).collect(),
            node_name,
            tolerates_unschedulable: tolerations.iter().any(|t| t.tolerates(&unschedulable)),
            tolerations,
            node_affinity: NodeAffinityProgram {
                selector,
                required: required_terms,
                added,
                subset,
                preferred,
                preferred_error,
            },
            ports,
            requests,
            scalars,
            delegated,
            scalar_ids,
            images,
            image_containers,
            spread: SpreadProgram { hard, soft, requires_all: explicit || !system },
            pods: PodAffinityProgram {
                required: pod_affinity,
                meets_own,
                anti,
                preferred: preferred_pods,
                carries_terms: affinity
                    .is_some_and(|a| a.pod_affinity.is_some() || a.pod_anti_affinity.is_some()),
            },
            features,
            is_passing: self.cluster.counter_budget.is_passing(),
        })
    }

    /// Compiles the profile's required affinity.
    fn added_terms(&mut self) -> Option<NodeTerms> {
        let added = self.profile.added_affinity.clone();
        let required = added.and_then(|a| a.required_during_scheduling_ignored_during_execution);
        required.map(|r| self.node_terms(&r.node_selector_terms))
    }

    /// Returns the pod's class, with all labels that selectors mention, including those of its own
    /// terms, which become known when it is placed.
    fn class(&mut self) -> Result<u32, ObjectError> {
        for term in existing_terms(self.pod, self.namespace, self.interner())? {
            self.cluster.mention(&term.selector);
        }
        let (shared, own) = split_labels(self.pod, self.interner());
        Ok(self.cluster.class_of(self.namespace, shared, &own))
    }

    /// Returns the taint of cordoned nodes.
    fn unschedulable(&mut self) -> NodeTaint {
        let [key, value] = [TAINT_UNSCHEDULABLE, ""].map(|text| self.interner().intern(text));
        NodeTaint { key, value, number: None, effect: Effect::NoSchedule }
    }

    fn tolerations(&mut self) -> Box<[Toleration]> {
        let list = self.pod.spec.as_ref().and_then(|s| s.tolerations.as_ref());
        let interner = &mut self.cluster.interner;
        let text = |t: &Option<String>| t.clone().filter(|t| !t.is_empty());
        let compares = self.profile.compares_tolerations;
        let limit =
            |t: &ApiToleration| t.value.as_deref().and_then(whole_number).filter(|_| compares);
        list.into_iter()
            .flatten()
            .map(|t| Toleration {
                key: text(&t.key).map(|k| interner.intern(&k)),
                op: match t.operator.as_deref().unwrap_or("") {
                    "" | "Equal" => TolerationOp::Equal,
                    "Exists" => TolerationOp::Exists,
                    "Gt" => limit(t).map_or(TolerationOp::Never, TolerationOp::Above),
                    "Lt" => limit(t).map_or(TolerationOp::Never, TolerationOp::Below),
                    _ => TolerationOp::Never,
                },
                value: interner.intern(t.value.as_deref().unwrap_or("")),
                effect: text(&t.effect).map(|e| match e.as_str() {
                    "NoSchedule" => Effect::NoSchedule,
                    "NoExecute" => Effect::NoExecute,
                    "PreferNoSchedule" => Effect::PreferNoSchedule,
                    _ => Effect::Other,
                }),
            })
            .collect()
    }

    // ---- node affinity --------------------------------------------------------------------------

    fn node_selector(&mut self) -> Box<[NodeRequirement]> {
        let selector = self.pod.spec.as_ref().and_then(|s| s.node_selector.as_ref());
        let interner = &mut self.cluster.interner;
        let require = |(key, value): (&String, &String)| NodeRequirement {
            key: Some(interner.intern(key)),
            op: NodeOp::In([interner.intern(value)].into()),
        };
        selector.into_iter().flatten().map(require).collect()
    }

    /// Compiles the terms that can match; empty and invalid ones never do.
    fn node_terms(&mut self, terms: &[NodeSelectorTerm]) -> NodeTerms {
        terms
            .iter()
            .filter(|t| !is_empty_term(t))
            .filter_map(|t| parse_term(t, "", self.interner()).ok())
            .collect()
    }

    /// Returns the names to which terms restrict the nodes, if every term does.
    // k8s: nodeaffinity/node_affinity.go PreFilter
    fn subset(&mut self, terms: &[NodeSelectorTerm]) -> Option<Box<[Str]>> {
        if terms.is_empty() || !self.profile.filters(Plugin::NodeAffinity) {
            return None;
        }
        let mut names: Vec<Str> = Vec::new();
        for term in terms {
            let mut of_term: Option<Vec<Str>> = None;
            let fields = term.match_fields.iter().flatten();
            for field in fields.filter(|f| f.key == "metadata.name" && f.operator == "In") {
                let values = field.values.iter().flatten();
                let values: Vec<Str> = values.map(|v| self.interner().intern(v)).collect();
                of_term = Some(match of_term {
                    None => values,
                    Some(before) => before.into_iter().filter(|n| values.contains(n)).collect(),
                });
            }
            names.extend(of_term?);
        }
        names.sort_unstable();
        names.dedup();
        Some(names.into())
    }

    fn preferred_nodes(
        &mut self,
        affinity: Option<&Affinity>,
    ) -> (Option<WeightedTerms>, Option<String>) {
        let own = affinity.and_then(|a| a.node_affinity.as_ref());
        let own = own.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone());
        let added = self.profile.added_affinity.clone();
        let added = added.and_then(|a| a.preferred_during_scheduling_ignored_during_execution);
        if own.is_none() && added.is_none() {
            return (None, None);
        }
        let (mut terms, mut errors) = (Vec::new(), Vec::new());
        for list in [added, own].into_iter().flatten() {
            for (at, term) in list.iter().enumerate() {
                if term.weight == 0 || is_empty_term(&term.preference) {
                    continue;
                }
                match parse_term(&term.preference, &format!("[{at}]"), self.interner()) {
                    Ok(parsed) => terms.push((i64::from(term.weight), parsed)),
                    Err(error) => errors.extend(error),
                }
            }
        }
        errors.dedup();
        let error = match errors.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            many => Some(format!("[{}]", many.join(", "))),
        };
        let error = error.map(|e| format!("running PreScore plugin \"NodeAffinity\": {e}"));
        (Some(terms.into()), error)
    }

    // ---- resources, images, features
    // --------------------------------------------------------------

    fn names(&mut self, requests: &PodRequests) -> Box<[Str]> {
        let names = requests.plain.scalars.iter();
        names.map(|(name, _)| self.cluster.interner.intern(name)).collect()
    }

    /// Splits extended resources into those that device classes offer, and the others.
    fn scalars(&mut self, requests: &PodRequests) -> (Amounts, Amounts) {
        let ignored = |name: &str| {
            let group = name.split_once('/').map(|(group, _)| group);
            let native = group.is_none() || name.contains("kubernetes.io/");
            !native
                && (self.profile.ignored_resources.iter().any(|r| r == name)
                    || self
                        .profile
                        .ignored_resource_groups
                        .iter()
                        .any(|g| Some(g.as_str()) == group))
        };
        let kept = requests.plain.scalars.iter().filter(|(name, v)| *v != 0 && !ignored(name));
        let (mut delegated, mut own) = (Vec::new(), Vec::new());
        for (name, value) in kept {
            let of = if self.cluster.of_devices.contains(name) { &mut delegated } else { &mut own };
            of.push((self.cluster.interner.intern(name), *value));
        }
        (delegated.into(), own.into())
    }

    // k8s: imagelocality/image_locality.go sumImageScores, normalizedImageName
    fn images(&mut self) -> (Box<[Str]>, i64) {
        let Some(spec) = self.pod.spec.as_ref() else { return (Box::default(), 0) };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let count = containers.clone().count() as i64;
        let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref());
        let volumes = volumes.map(|i| i.reference.as_deref().unwrap_or(""));
        let names = containers.map(|c| c.image.as_deref().unwrap_or("")).chain(volumes);
        let normalised = names.map(|name| match (name.rfind(':'), name.rfind('/')) {
            (None, _) => format!("{name}:latest"),
            (Some(colon), Some(slash)) if colon < slash => format!("{name}:latest"),
            _ => name.to_owned(),
        });
        (normalised.map(|n| self.cluster.interner.intern(&n)).collect(), count)
    }

    // k8s: component-helpers/nodedeclaredfeatures/features/registry.go
    fn features(&mut self) -> Box<[Str]> {
        let Some(spec) = self.pod.spec.as_ref() else { return Box::default() };
        let mut features = Vec::new();
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let mut rules = containers.flat_map(|c| c.restart_policy_rules.iter().flatten());
        if rules.any(|r| r.action == "RestartAllContainers") {
            features.push(self.interner().intern("RestartAllContainersOnContainerExits"));
        }
        if spec.host_network == Some(true) && spec.host_users == Some(false) {
            features.push(self.interner().intern("UserNamespacesHostNetworkSupport"));
        }
        features.into()
    }

    // ---- topology spread ------------------------------------------------------------------------

    // k8s: podtopologyspread/common.go filterTopologySpreadConstraints, buildDefaultConstraints
    fn spread(&mut self, action: &str) -> Result<Box<[Spread]>, ObjectError> {
        let own = self.pod.spec.as_ref().and_then(|s| s.topology_spread_constraints.as_ref());
        if let Some(own) = own.filter(|c| !c.is_empty()) {
            let of_action = own.iter().filter(|c| c.when_unsatisfiable == action);
            return of_action.map(|c| self.own_constraint(c)).collect();
        }
        let profile = Arc::clone(&self.profile);
        let defaults: Vec<TopologySpreadConstraint> = match &profile.spread_defaults {
            SpreadDefaults::System if action == "DoNotSchedule" => Vec::new(),
            SpreadDefaults::System => {
                SYSTEM_DEFAULTS.map(|(key, max_skew)| system_default(key, max_skew)).to_vec()
            }
            SpreadDefaults::List(list) => {
                list.iter().filter(|c| c.when_unsatisfiable == action).cloned().collect()
            }
        };
        if defaults.is_empty() {
            return Ok(Box::default());
        }
        let selector = self.default_selector();
        if selector.is_everything() {
            return Ok(Box::default());
        }
        Ok(defaults.iter().map(|c| self.constraint(c, selector.clone())).collect())
    }

    fn own_constraint(&mut self, c: &TopologySpreadConstraint) -> Result<Spread, ObjectError> {
        let mut selector = Selector::from_api(c.label_selector.as_ref(), self.interner())?;
        let labels = self.pod.metadata.labels.as_ref();
        let keys = c.match_label_keys.iter().flatten();
        let merged = keys.filter_map(|k| Some((k.clone(), labels?.get(k)?.clone()))).collect();
        let merged: BTreeMap<String, String> = merged;
        if !merged.is_empty() {
            let extra = Selector::from_labels(Some(&merged), self.interner());
            selector = extra.merged(&selector);
        }
        Ok(self.constraint(c, selector))
    }

    fn constraint(&mut self, c: &TopologySpreadConstraint, selector: Selector) -> Spread {
        let key = self.topology(&c.topology_key);
        let everything = selector.is_everything();
        let labels = Arc::clone(self.cluster.interner.labels(self.labels));
        let self_match = selector.matches(&labels);
        let all = if everything {
            Box::default()
        } else {
            [PodMatch { scope: Scope::These([self.namespace].into()), selector }].into()
        };
        // A soft constraint on the hostname is counted by node: no domains to maintain.
        let by_node = c.topology_key == HOSTNAME && c.when_unsatisfiable == "ScheduleAnyway";
        let tracked = (!by_node).then_some(key);
        let counter = self.cluster.counter(&CounterKey { all, live_only: true }, tracked);
        Spread {
            key,
            hostname: c.topology_key == HOSTNAME,
            max_skew: c.max_skew.into(),
            min_domains: c.min_domains.unwrap_or(1).into(),
            honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
            counter,
            self_match,
            everything,
        }
    }

    fn topology(&mut self, key: &str) -> KeyId {
        let key = self.interner().intern(key);
        self.cluster.key(key)
    }

    /// Returns the selector of the pod's services and controller.
    // k8s: pkg/scheduler/framework/plugins/helper/spread.go DefaultSelector
    fn default_selector(&mut self) -> Selector {
        let empty = BTreeMap::new();
        let labels = self.pod.metadata.labels.as_ref().unwrap_or(&empty);
        let mut merged = BTreeMap::new();
        let services = self.cluster.owners.services.get(&self.namespace);
        for selector in services.into_iter().flat_map(|s| s.values()) {
            if selector.iter().all(|(k, v)| labels.get(k) == Some(v)) {
                merged.extend(selector.clone());
            }
        }
        let owners = self.pod.metadata.owner_references.iter().flatten();
        let owner = owners.clone().find(|o| o.controller == Some(true));
        let key = |interner: &mut Interner, name: &str, ns| (ns, interner.intern(name));
        let mut extra = None;
        if let Some(owner) = owner {
            let key = key(&mut self.cluster.interner, &owner.name, self.namespace);
            let all = &self.cluster.owners;
            match (owner.api_version.as_str(), owner.kind.as_str()) {
                ("v1", "ReplicationController") => {
                    merged.extend(all.controllers.get(&key).cloned().unwrap_or_default());
                }
                ("apps/v1", "ReplicaSet") => extra = all.replica_sets.get(&key).cloned(),
                ("apps/v1", "StatefulSet") => extra = all.stateful_sets.get(&key).cloned(),
                _ => {}
            }
        }
        let selector = Selector::from_labels(Some(&merged), self.interner());
        extra.map_or_else(|| selector.clone(), |extra| selector.merged(&extra))
    }

    // ---- pod affinity ---------------------------------------------------------------------------

    fn pod_match(&mut self, term: &PodAffinityTerm) -> Result<PodMatch, ObjectError> {
        let namespaces = Selector::from_api(term.namespace_selector.as_ref(), self.interner())?;
        let selector = Selector::from_api(term.label_selector.as_ref(), self.interner())?;
        // Upstream resolves the selector to names, and then asks the selector once more without any
        // labels: one that admits a namespace without labels admits all of them.
        if namespaces.matches(&[]) {
            return Ok(PodMatch { scope: Scope::All, selector });
        }
        let own = self.namespace;
        let mut list = term_namespaces(term, own, self.interner());
        let cluster = &self.cluster;
        let known = cluster.namespaces.iter();
        list.extend(
            known
                .filter(|(_, labels)| namespaces.matches(cluster.interner.labels(**labels)))
                .map(|(name, _)| *name),
        );
        list.sort_unstable();
        list.dedup();
        let list = match self.namespaces.get(&list[..]) {
            Some(same) => Arc::clone(same),
            None => {
                let list: Arc<[Str]> = list.into();
                self.namespaces.insert(Arc::clone(&list));
                list
            }
        };
        Ok(PodMatch { scope: Scope::These(list), selector })
    }

    fn required_affinity(
        &mut self,
        affinity: Option<&Affinity>,
    ) -> Result<(Option<Attraction>, bool), ObjectError> {
        let terms = affinity.and_then(|a| a.pod_affinity.as_ref());
        let terms =
            terms.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref());
        let Some(terms) = terms.filter(|t| !t.is_empty()) else { return Ok((None, false)) };
        let matches = terms.iter().map(|t| self.pod_match(t)).collect::<Result<Vec<_>, _>>()?;
        let labels = Arc::clone(self.cluster.interner.labels(self.labels));
        let matches_self = matches.iter().all(|m| m.matches(self.namespace, &labels));
        let key = CounterKey { all: matches.into(), live_only: false };
        let mut keys: Vec<KeyId> = terms.iter().map(|t| self.topology(&t.topology_key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut counter = self.cluster.counter(&key, None);
        for topology in &keys {
            counter = self.cluster.counter(&key, Some(*topology));
        }
        Ok((Some((counter, keys.into())), matches_self))
    }

    fn required_anti(
        &mut self,
        affinity: Option<&Affinity>,
    ) -> Result<Box<[(CounterId, KeyId)]>, ObjectError> {
        let terms = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let terms =
            terms.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let terms = terms.into_iter().flatten().map(|t| self.term_counter(t));
        let mut terms = terms.collect::<Result<Vec<_>, _>>()?;
        // The order does not matter; terms of one key are evaluated together.
        terms.sort_unstable_by_key(|(counter, key)| (*key, *counter));
        terms.dedup();
        Ok(terms.into())
    }

    fn term_counter(&mut self, term: &PodAffinityTerm) -> Result<(CounterId, KeyId), ObjectError> {
        let all = [self.pod_match(term)?].into();
        let topology = self.topology(&term.topology_key);
        Ok((self.cluster.counter(&CounterKey { all, live_only: false }, Some(topology)), topology))
    }

    fn preferred_pods(&mut self, affinity: Option<&Affinity>) -> Result<Box<[Pull]>, ObjectError> {
        let attract = affinity.and_then(|a| a.pod_affinity.as_ref());
        let attract =
            attract.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let repel = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let repel =
            repel.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let mut terms = Vec::new();
        for (sign, list) in [(1, attract), (-1, repel)] {
            for term in list.into_iter().flatten() {
                let (counter, key) = self.term_counter(&term.pod_affinity_term)?;
                terms.push((sign * i64::from(term.weight), counter, key));
            }
        }
        Ok(terms.into())
    }
}

fn system_default(key: &str, max_skew: i32) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew,
        topology_key: key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    }
}

#[cfg(test)]
mod tests;
