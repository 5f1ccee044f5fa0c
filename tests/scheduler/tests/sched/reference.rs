//! The slow, obvious scheduler: row by row, pod by pod, straight from the formulas.
//!
//! Input: API objects. Output: for each node a rejection or raw and normalised scores.
//! No columns, no counters, no interning: every decision walks all nodes and all their pods, as the
//! original does. It reads the fields that the generator writes: requests of containers and init
//! containers, no in-place resize.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Service,
    Taint, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;

/// A rejection: plugin, whether preemption cannot help, reasons.
pub(crate) type Rejection = (&'static str, bool, Vec<String>);

/// Raw and normalised scores of one plugin by node.
pub(crate) type Scores = BTreeMap<&'static str, Option<Vec<(i64, i64)>>>;

/// The reference's result: per node a rejection, and scores of the feasible nodes in order.
pub(crate) struct ReferenceResult {
    pub(crate) rejections: Vec<Option<Rejection>>,
    pub(crate) scores: Scores,
    pub(crate) totals: Vec<i64>,
}

/// A cluster as API objects.
#[derive(Clone, Default)]
pub(crate) struct ClusterObjects {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) services: Vec<Service>,
}

const WEIGHTS: [(&str, i64); 7] = [
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodeResourcesFit", 1),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
];

fn labels(node: &Node) -> &Labels {
    node.metadata.labels.as_ref().expect("generated nodes have labels")
}

fn pod_labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().expect("generated pods have a namespace")
}

fn node_name(node: &Node) -> &str {
    node.metadata.name.as_deref().expect("generated nodes have names")
}

fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return false };
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let value = labels.get(&e.key);
            let listed = value.is_some_and(|v| e.values.as_ref().is_some_and(|l| l.contains(v)));
            match e.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

fn selects_everything(selector: Option<&LabelSelector>) -> bool {
    selector.is_some_and(|s| {
        s.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && s.match_expressions.as_ref().is_none_or(Vec::is_empty)
    })
}

/// Whole units of a generated quantity: digits with m, Ki, Mi or Gi; CPU in thousandths.
fn quantity(q: &Quantity, cpu: bool) -> i64 {
    let text = q.0.as_str();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..digits].parse().expect("digits");
    match (&text[digits..], cpu) {
        ("m", true) => number,
        ("", true) => number * 1000,
        ("", false) => number,
        ("Ki", false) => number << 10,
        ("Mi", false) => number << 20,
        ("Gi", false) => number << 30,
        other => panic!("the generator does not write {other:?}"),
    }
}

/// Requests by resource; with `defaults` for containers without CPU or memory requests.
fn requests(pod: &Pod, defaults: bool) -> BTreeMap<String, i64> {
    let spec = pod.spec.as_ref().expect("spec");
    let of = |c: &k8s_openapi::api::core::v1::Container| {
        let mut all = BTreeMap::new();
        for (name, q) in c.resources.iter().flat_map(|r| r.requests.iter().flatten()) {
            all.insert(name.clone(), quantity(q, name == "cpu"));
        }
        if defaults {
            all.entry("cpu".to_owned()).or_insert(100);
            all.entry("memory".to_owned()).or_insert(200 * 1024 * 1024);
        }
        all
    };
    let mut total: BTreeMap<String, i64> = BTreeMap::new();
    for container in &spec.containers {
        for (name, value) in of(container) {
            *total.entry(name).or_default() += value;
        }
    }
    for container in spec.init_containers.iter().flatten() {
        for (name, value) in of(container) {
            let most = total.entry(name).or_insert(value);
            *most = (*most).max(value);
        }
    }
    total
}

fn tolerates(t: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (given(&t.effect), given(&t.key));
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match given(&t.operator).as_str() {
            "" | "Equal" => given(&t.value) == taint.value.clone().unwrap_or_default(),
            "Exists" => true,
            _ => false,
        }
}

fn requirement(r: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = r.values.clone().unwrap_or_default();
    let number = |ok: &dyn Fn(i64, i64) -> bool| match (value, values.first()) {
        (Some(v), Some(limit)) => match (v.parse::<i64>(), limit.parse::<i64>()) {
            (Ok(v), Ok(limit)) => ok(v, limit),
            _ => false,
        },
        _ => false,
    };
    match r.operator.as_str() {
        "In" => value.is_some_and(|v| values.contains(v)),
        "NotIn" => value.is_none_or(|v| !values.contains(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(&|v, limit| v > limit),
        _ => number(&|v, limit| v < limit),
    }
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node_name(node).to_owned();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|e| requirement(e, labels(node).get(&e.key)))
        && fields.iter().all(|f| requirement(f, Some(&name)))
}

/// Node selector and required node affinity.
fn affine(pod: &Pod, node: &Node) -> bool {
    let spec = pod.spec.as_ref().expect("spec");
    let selected = spec.node_selector.iter().flatten().all(|(k, v)| labels(node).get(k) == Some(v));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term_matches(t, node)))
}

fn untolerated<'a>(pod: &'a Pod, node: &'a Node, soft: bool) -> impl Iterator<Item = &'a Taint> {
    let tolerations = pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten());
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.filter(move |t| {
        let applies = if soft {
            t.effect == "PreferNoSchedule"
        } else {
            t.effect == "NoSchedule" || t.effect == "NoExecute"
        };
        applies && !tolerations.clone().any(|x| tolerates(x, t))
    })
}

impl ClusterObjects {
    fn on<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Pod> {
        let name = node_name(node);
        self.pods
            .iter()
            .filter(move |p| p.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some(name)))
    }

    fn namespace_labels(&self, name: &str) -> Labels {
        let found = self.namespaces.iter().find(|n| n.metadata.name.as_deref() == Some(name));
        found.and_then(|n| n.metadata.labels.clone()).unwrap_or_default()
    }

    /// Returns whether a term of `owner` selects `other`; `resolved` terms are the incoming pod's.
    fn term_selects(
        &self,
        term: &PodAffinityTerm,
        owner: &Pod,
        other: &Pod,
        resolved: bool,
    ) -> bool {
        let listed = term.namespaces.clone().unwrap_or_default();
        let own = listed.is_empty() && term.namespace_selector.is_none();
        let selector = term.namespace_selector.as_ref();
        let space = namespace(other);
        let named = if own { space == namespace(owner) } else { listed.iter().any(|n| n == space) };
        let by_labels = if resolved {
            let exists = self.namespaces.iter().any(|n| n.metadata.name.as_deref() == Some(space));
            selects(selector, &Labels::new())
                || (exists && selects(selector, &self.namespace_labels(space)))
        } else {
            selects(selector, &self.namespace_labels(space))
        };
        (named || by_labels) && selects(term.label_selector.as_ref(), &pod_labels(other))
    }

    /// Decides for one pod over all nodes.
    pub(crate) fn decide(&self, pod: &Pod) -> ReferenceResult {
        let rejections: Vec<_> = self.nodes.iter().map(|n| self.filter(pod, n)).collect();
        let feasible: Vec<&Node> = self
            .nodes
            .iter()
            .zip(&rejections)
            .filter(|(_, r)| r.is_none())
            .map(|(n, _)| n)
            .collect();
        let mut scores = Scores::new();
        let mut totals = vec![0; feasible.len()];
        if !feasible.is_empty() {
            scores.insert("TaintToleration", Some(self.taint_scores(pod, &feasible)));
            scores.insert("NodeAffinity", affinity_scores(pod, &feasible));
            scores.insert("NodeResourcesFit", Some(self.fit_scores(pod, &feasible)));
            scores.insert("NodeResourcesBalancedAllocation", self.balance_scores(pod, &feasible));
            scores.insert("ImageLocality", Some(self.image_scores(pod, &feasible)));
            scores.insert("PodTopologySpread", self.spread_scores(pod, &feasible));
            scores.insert("InterPodAffinity", self.pod_scores(pod, &feasible));
        }
        for (plugin, weight) in WEIGHTS {
            for (at, (_, score)) in scores.get(plugin).into_iter().flatten().flatten().enumerate() {
                totals[at] += score * weight;
            }
        }
        ReferenceResult { rejections, scores, totals }
    }

    // ---- filters --------------------------------------------------------------------------------

    fn filter(&self, pod: &Pod, node: &Node) -> Option<Rejection> {
        let spec = pod.spec.as_ref().expect("spec");
        let hard = |plugin, reason: &str| Some((plugin, true, vec![reason.to_owned()]));
        let soft = |plugin, reason: &str| Some((plugin, false, vec![reason.to_owned()]));
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
        if cordoned && !spec.tolerations.iter().flatten().any(|t| tolerates(t, &cordon)) {
            return hard("NodeUnschedulable", "node(s) were unschedulable");
        }
        if spec.node_name.as_deref().is_some_and(|n| n != node_name(node)) {
            return hard("NodeName", "node(s) didn't match the requested node name");
        }
        if untolerated(pod, node, false).next().is_some() {
            return hard("TaintToleration", "node(s) had untolerated taint(s)");
        }
        if !affine(pod, node) {
            return hard("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
        }
        if self.ports_conflict(pod, node) {
            let reason = "node(s) didn't have free ports for the requested pod ports";
            return soft("NodePorts", reason);
        }
        self.fit_rejection(pod, node)
            .or_else(|| self.spread_rejection(pod, node))
            .or_else(|| self.affinity_rejection(pod, node))
    }

    fn ports_conflict(&self, pod: &Pod, node: &Node) -> bool {
        let ports = |pod: &Pod| -> Vec<(String, String, i32)> {
            let containers = pod.spec.iter().flat_map(|s| &s.containers);
            let ports = containers.flat_map(|c| c.ports.iter().flatten());
            let of = |text: &Option<String>, default: &str| text.clone().unwrap_or(default.into());
            ports
                .filter_map(|p| {
                    Some((of(&p.protocol, "TCP"), of(&p.host_ip, "0.0.0.0"), p.host_port?))
                })
                .collect()
        };
        let wanted = ports(pod);
        self.on(node).flat_map(ports).any(|(protocol, ip, port)| {
            wanted.iter().any(|(p, i, n)| {
                *p == protocol && *n == port && (*i == ip || i == "0.0.0.0" || ip == "0.0.0.0")
            })
        })
    }

    fn allocatable(node: &Node) -> BTreeMap<String, i64> {
        let list = node.status.as_ref().and_then(|s| s.allocatable.as_ref()).expect("allocatable");
        list.iter().map(|(name, q)| (name.clone(), quantity(q, name == "cpu"))).collect()
    }

    fn used(&self, node: &Node, defaults: bool) -> BTreeMap<String, i64> {
        let mut used: BTreeMap<String, i64> = BTreeMap::new();
        for pod in self.on(node) {
            for (name, value) in requests(pod, defaults) {
                *used.entry(name).or_default() += value;
            }
        }
        used
    }

    fn fit_rejection(&self, pod: &Pod, node: &Node) -> Option<Rejection> {
        let (all, used) = (Self::allocatable(node), self.used(node, false));
        let amount = |map: &BTreeMap<String, i64>, name: &str| map.get(name).copied().unwrap_or(0);
        let (mut reasons, mut hopeless) = (Vec::new(), false);
        if self.on(node).count() as i64 + 1 > amount(&all, "pods") {
            reasons.push("Too many pods".to_owned());
        }
        let wanted = requests(pod, false);
        let fixed = ["cpu", "memory", "ephemeral-storage"];
        let others = wanted.keys().map(String::as_str).filter(|n| !fixed.contains(n));
        for name in fixed.into_iter().chain(others) {
            let asked = amount(&wanted, name);
            if asked > 0 && asked > amount(&all, name) - amount(&used, name) {
                reasons.push(format!("Insufficient {name}"));
                hopeless |= asked > amount(&all, name);
            }
        }
        (!reasons.is_empty()).then_some(("NodeResourcesFit", hopeless, reasons))
    }

    /// Constraints of the pod for one action; the defaults when it has none of its own.
    fn constraints(&self, pod: &Pod, action: &str) -> (Vec<TopologySpreadConstraint>, bool) {
        let own = pod.spec.iter().flat_map(|s| s.topology_spread_constraints.iter().flatten());
        let own: Vec<_> = own.cloned().collect();
        if !own.is_empty() {
            return (own.into_iter().filter(|c| c.when_unsatisfiable == action).collect(), true);
        }
        if action == "DoNotSchedule" {
            return (Vec::new(), false);
        }
        let mut merged = Labels::new();
        let mine = pod_labels(pod);
        for service in &self.services {
            let here = service.metadata.namespace.as_deref() == Some(namespace(pod));
            let selector = service.spec.as_ref().and_then(|s| s.selector.clone());
            if let Some(selector) = selector.filter(|_| here)
                && selector.iter().all(|(k, v)| mine.get(k) == Some(v))
            {
                merged.extend(selector);
            }
        }
        if merged.is_empty() {
            return (Vec::new(), false);
        }
        let selector = LabelSelector { match_labels: Some(merged), match_expressions: None };
        let default = |key: &str, max_skew| TopologySpreadConstraint {
            label_selector: Some(selector.clone()),
            max_skew,
            topology_key: key.to_owned(),
            ..TopologySpreadConstraint::default()
        };
        let zone = default("topology.kubernetes.io/zone", 5);
        (vec![default("kubernetes.io/hostname", 3), zone], false)
    }

    fn matching_pods(&self, c: &TopologySpreadConstraint, pod: &Pod, node: &Node) -> i64 {
        if selects_everything(c.label_selector.as_ref()) {
            return 0;
        }
        let counted = self.on(node).filter(|p| {
            p.metadata.deletion_timestamp.is_none()
                && namespace(p) == namespace(pod)
                && selects(c.label_selector.as_ref(), &pod_labels(p))
        });
        counted.count() as i64
    }

    fn included(c: &TopologySpreadConstraint, pod: &Pod, node: &Node) -> bool {
        (c.node_affinity_policy.as_deref() == Some("Ignore") || affine(pod, node))
            && (c.node_taints_policy.as_deref() != Some("Honor")
                || untolerated(pod, node, false).next().is_none())
    }

    fn spread_rejection(&self, pod: &Pod, node: &Node) -> Option<Rejection> {
        let (constraints, _) = self.constraints(pod, "DoNotSchedule");
        let keys: Vec<&String> = constraints.iter().map(|c| &c.topology_key).collect();
        let has_all = |n: &Node| keys.iter().all(|k| labels(n).contains_key(*k));
        for c in &constraints {
            let mut domains: BTreeMap<&String, i64> = BTreeMap::new();
            for n in self.nodes.iter().filter(|n| has_all(n) && Self::included(c, pod, n)) {
                let value = &labels(n)[&c.topology_key];
                *domains.entry(value).or_default() += self.matching_pods(c, pod, n);
            }
            let Some(value) = labels(node).get(&c.topology_key) else {
                let reason =
                    "node(s) didn't match pod topology spread constraints (missing required label)";
                return Some(("PodTopologySpread", true, vec![reason.to_owned()]));
            };
            let mut least = domains.values().min().copied().unwrap_or(i64::from(i32::MAX));
            if (domains.len() as i64) < i64::from(c.min_domains.unwrap_or(1)) {
                least = 0;
            }
            let own = i64::from(selects(c.label_selector.as_ref(), &pod_labels(pod)));
            let here = domains.get(value).copied().unwrap_or(0);
            if here + own - least > i64::from(c.max_skew) {
                let reason = "node(s) didn't match pod topology spread constraints";
                return Some(("PodTopologySpread", false, vec![reason.to_owned()]));
            }
        }
        None
    }

    fn affinity_rejection(&self, pod: &Pod, node: &Node) -> Option<Rejection> {
        let (attract, repel) = required_terms(pod);
        let same = |term: &PodAffinityTerm, other: &Node| {
            let key = &term.topology_key;
            labels(node).contains_key(key) && labels(node).get(key) == labels(other).get(key)
        };
        if !attract.is_empty() {
            let meets = |p: &Pod| attract.iter().all(|t| self.term_selects(t, pod, p, true));
            let has_key = |n: &Node, t: &PodAffinityTerm| labels(n).contains_key(&t.topology_key);
            let somewhere = self
                .nodes
                .iter()
                .any(|n| attract.iter().any(|t| has_key(n, t)) && self.on(n).any(meets));
            let near = |t: &&PodAffinityTerm| {
                self.nodes.iter().any(|n| same(t, n) && self.on(n).any(meets))
            };
            let first = !somewhere && meets(pod) && attract.iter().all(|t| has_key(node, t));
            if !(attract.iter().all(near) || first) {
                let reason = "node(s) didn't match pod affinity rules";
                return Some(("InterPodAffinity", true, vec![reason.to_owned()]));
            }
        }
        let avoided = repel.iter().any(|t| {
            let here = |p: &Pod| self.term_selects(t, pod, p, true);
            self.nodes.iter().any(|n| same(t, n) && self.on(n).any(here))
        });
        if avoided {
            let reason = "node(s) didn't match pod anti-affinity rules";
            return Some(("InterPodAffinity", false, vec![reason.to_owned()]));
        }
        let forbidden = self.nodes.iter().any(|n| {
            self.on(n).any(|p| {
                let terms = required_terms(p).1;
                terms.iter().any(|t| same(t, n) && self.term_selects(t, p, pod, false))
            })
        });
        forbidden.then(|| {
            let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
            ("InterPodAffinity", false, vec![reason.to_owned()])
        })
    }

    // ---- scores ---------------------------------------------------------------------------------

    fn taint_scores(&self, pod: &Pod, feasible: &[&Node]) -> Vec<(i64, i64)> {
        let mut soft = pod.clone();
        let tolerations = soft.spec.as_mut().and_then(|s| s.tolerations.as_mut());
        if let Some(list) = tolerations {
            list.retain(|t| {
                let effect = t.effect.clone().unwrap_or_default();
                effect.is_empty() || effect == "PreferNoSchedule"
            });
        }
        let raw: Vec<i64> =
            feasible.iter().map(|n| untolerated(&soft, n, true).count() as i64).collect();
        let max = raw.iter().copied().max().unwrap_or(0);
        raw.iter().map(|s| (*s, if max == 0 { 100 } else { 100 - 100 * s / max })).collect()
    }

    fn fit_scores(&self, pod: &Pod, feasible: &[&Node]) -> Vec<(i64, i64)> {
        let wanted = requests(pod, true);
        let score = |node: &&Node| {
            let (all, used) = (Self::allocatable(node), self.used(node, true));
            let (mut sum, mut weights) = (0, 0);
            for name in ["cpu", "memory"] {
                let capacity = all.get(name).copied().unwrap_or(0);
                let busy = used.get(name).copied().unwrap_or(0) + wanted[name];
                if capacity != 0 {
                    sum += if busy > capacity { 0 } else { (capacity - busy) * 100 / capacity };
                    weights += 1;
                }
            }
            if weights == 0 { 0 } else { sum / weights }
        };
        feasible.iter().map(score).map(|s| (s, s)).collect()
    }

    fn balance_scores(&self, pod: &Pod, feasible: &[&Node]) -> Option<Vec<(i64, i64)>> {
        let wanted = requests(pod, false);
        let asked = |name: &str| wanted.get(name).copied().unwrap_or(0);
        if asked("cpu") == 0 && asked("memory") == 0 {
            return None;
        }
        let score = |node: &&Node| {
            let (all, used) = (Self::allocatable(node), self.used(node, false));
            let balance = |with: bool| {
                let mut parts = Vec::new();
                for name in ["cpu", "memory"] {
                    let capacity = all.get(name).copied().unwrap_or(0);
                    let more = if with { asked(name) } else { 0 };
                    let busy = used.get(name).copied().unwrap_or(0) + more;
                    if capacity != 0 {
                        parts.push((busy as f64 / capacity as f64).min(1.0));
                    }
                }
                let std = if parts.len() == 2 { ((parts[0] - parts[1]) / 2.0).abs() } else { 0.0 };
                ((1.0 - std) * 100.0) as i64
            };
            50 + (50 + balance(true) - balance(false)) / 2
        };
        Some(feasible.iter().map(score).map(|s| (s, s)).collect())
    }

    fn image_scores(&self, pod: &Pod, feasible: &[&Node]) -> Vec<(i64, i64)> {
        let spec = pod.spec.as_ref().expect("spec");
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let named = |n: &str| {
            let after = n.rsplit('/').next().unwrap_or(n);
            if after.contains(':') { n.to_owned() } else { format!("{n}:latest") }
        };
        let names: Vec<String> =
            containers.map(|c| named(c.image.as_deref().unwrap_or(""))).collect();
        let holds = |node: &Node, name: &str| -> Option<i64> {
            let images = node.status.iter().flat_map(|s| s.images.iter().flatten());
            let mut found = images.filter(|i| i.names.iter().flatten().any(|n| n == name));
            found.next().and_then(|i| i.size_bytes)
        };
        let (least, most) = (23 << 20, (1000 << 20) * names.len() as i64);
        let score = |node: &&Node| {
            let mut sum = 0;
            for name in &names {
                if holds(node, name).is_some() {
                    let nodes: Vec<i64> =
                        self.nodes.iter().filter_map(|n| holds(n, name)).collect();
                    let spread = nodes.len() as f64 / self.nodes.len() as f64;
                    sum += (nodes[0] as f64 * spread) as i64;
                }
            }
            100 * (sum.max(least).min(most) - least) / (most - least)
        };
        feasible.iter().map(score).map(|s| (s, s)).collect()
    }

    fn spread_scores(&self, pod: &Pod, feasible: &[&Node]) -> Option<Vec<(i64, i64)>> {
        let (constraints, all_keys) = self.constraints(pod, "ScheduleAnyway");
        if constraints.is_empty() {
            return None;
        }
        let has_all =
            |n: &Node| constraints.iter().all(|c| labels(n).contains_key(&c.topology_key));
        let ignored: Vec<bool> = feasible.iter().map(|n| all_keys && !has_all(n)).collect();
        let scored: Vec<&Node> =
            feasible.iter().zip(&ignored).filter(|(_, i)| !**i).map(|(n, _)| *n).collect();
        let mut raw = vec![0.0; feasible.len()];
        for c in &constraints {
            let key = &c.topology_key;
            let text = |n: &Node| labels(n).get(key).cloned().unwrap_or_default();
            let hostname = key == "kubernetes.io/hostname";
            let domains: BTreeSet<String> = scored.iter().map(|n| text(n)).collect();
            let size = if hostname { scored.len() } else { domains.len() };
            let weight = pintle_sched_core::logarithm::weight(size);
            for (at, node) in feasible.iter().enumerate() {
                if ignored[at] || !labels(node).contains_key(key) {
                    continue;
                }
                let count: i64 = if hostname {
                    self.matching_pods(c, pod, node)
                } else {
                    let same = self.nodes.iter().filter(|n| {
                        (!all_keys || has_all(n))
                            && Self::included(c, pod, n)
                            && text(n) == text(node)
                    });
                    same.map(|n| self.matching_pods(c, pod, n)).sum()
                };
                raw[at] += count as f64 * weight + f64::from(c.max_skew - 1);
            }
        }
        let raw: Vec<i64> = raw.iter().map(|s| s.round() as i64).collect();
        let live = || raw.iter().zip(&ignored).filter(|(_, i)| !**i).map(|(s, _)| *s);
        let (min, max) = (live().min().unwrap_or(0), live().max().unwrap_or(0));
        let normal = |(s, ignored): (&i64, &bool)| match (ignored, max) {
            (true, _) => (*s, 0),
            (false, 0) => (*s, 100),
            (false, _) => (*s, 100 * (max + min - s) / max),
        };
        Some(raw.iter().zip(&ignored).map(normal).collect())
    }

    fn pod_scores(&self, pod: &Pod, feasible: &[&Node]) -> Option<Vec<(i64, i64)>> {
        let mut gains: BTreeMap<(String, String), i64> = BTreeMap::new();
        for node in &self.nodes {
            let mut add = |term: &PodAffinityTerm, gain: i64| {
                if let Some(value) = labels(node).get(&term.topology_key) {
                    *gains.entry((term.topology_key.clone(), value.clone())).or_default() += gain;
                }
            };
            for other in self.on(node) {
                for (sign, term) in preferred_terms(pod) {
                    if self.term_selects(&term.pod_affinity_term, pod, other, true) {
                        add(&term.pod_affinity_term, sign * i64::from(term.weight));
                    }
                }
                for term in required_terms(other).0 {
                    if self.term_selects(term, other, pod, false) {
                        add(term, 1);
                    }
                }
                for (sign, term) in preferred_terms(other) {
                    if self.term_selects(&term.pod_affinity_term, other, pod, false) {
                        add(&term.pod_affinity_term, sign * i64::from(term.weight));
                    }
                }
            }
        }
        if gains.is_empty() {
            return None;
        }
        let score = |n: &&Node| {
            let here = gains.iter().filter(|((k, v), _)| labels(n).get(k) == Some(v));
            here.map(|(_, gain)| gain).sum::<i64>()
        };
        let raw: Vec<i64> = feasible.iter().map(score).collect();
        let (min, max) = (*raw.iter().min()?, *raw.iter().max()?);
        let normal = |s: &i64| {
            if max == min { 0 } else { (100.0 * ((s - min) as f64 / (max - min) as f64)) as i64 }
        };
        Some(raw.iter().map(|s| (*s, normal(s))).collect())
    }
}

fn affinity_scores(pod: &Pod, feasible: &[&Node]) -> Option<Vec<(i64, i64)>> {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref());
    let affinity = affinity.and_then(|a| a.node_affinity.as_ref());
    let terms = affinity?.preferred_during_scheduling_ignored_during_execution.as_ref()?;
    let score = |node: &&Node| {
        let matching = terms.iter().filter(|t| term_matches(&t.preference, node));
        matching.map(|t| i64::from(t.weight)).sum::<i64>()
    };
    let raw: Vec<i64> = feasible.iter().map(score).collect();
    let max = raw.iter().copied().max().unwrap_or(0);
    Some(raw.iter().map(|s| (*s, if max == 0 { *s } else { 100 * s / max })).collect())
}

/// Required affinity and anti-affinity terms.
fn required_terms(pod: &Pod) -> (Vec<&PodAffinityTerm>, Vec<&PodAffinityTerm>) {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref());
    let attract = affinity.and_then(|a| a.pod_affinity.as_ref());
    let repel = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    let attract =
        attract.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let repel = repel.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    (attract.into_iter().flatten().collect(), repel.into_iter().flatten().collect())
}

/// Preferred terms with their sign.
fn preferred_terms(pod: &Pod) -> Vec<(i64, &WeightedPodAffinityTerm)> {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref());
    let attract = affinity.and_then(|a| a.pod_affinity.as_ref());
    let repel = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    let attract =
        attract.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let repel = repel.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let attract = attract.into_iter().flatten().map(|t| (1, t));
    attract.chain(repel.into_iter().flatten().map(|t| (-1, t))).collect()
}
