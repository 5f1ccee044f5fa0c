//! The smallest change that would make an unschedulable pod fit.
//!
//! Input: a cluster, a program, the details of a failed decision. Output: a node and what to
//! change. Owner: pure functions. Bounds: one check of each node; scratch of one decision.
//! The column filters are independent of each other, so that removing every obstacle of one node
//! makes the pod fit there: the advice is sufficient by construction, and a test applies it. Of the
//! row plugins only the first that rejects a node is known. "Smallest" means the least sum of cost
//! classes, then the least sum of sizes (`NodeRemedy::burden`), among the nodes with the fewest
//! rejecting plugins and those with one more.

mod conditions;

use serde::Serialize;

use crate::config::Plugin;
use crate::filter::node::is_hard;
use crate::filter::status::{Code, Status};
use crate::filter::{COLUMN_FILTERS, interpod};
use crate::program::Program;
use crate::select::{Detail, PreFilterRefusal, Scratch};
use crate::snapshot::Cluster;

/// A change that removes one obstacle of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "change")]
pub enum NodeRemedy {
    /// Free this amount of a resource, or request less.
    #[serde(rename_all = "camelCase")]
    Free {
        /// The resource.
        resource: String,
        /// The missing amount: millicores, bytes, or a count.
        missing: i64,
        /// True if the node is too small even when empty.
        beyond_node: bool,
        /// Amount that the pod requests: less than the missing amount if a node is overcommitted.
        asked: i64,
    },
    /// The node must allow one more pod.
    PodSlot,
    /// Tolerate this taint, or remove it.
    #[serde(rename_all = "camelCase")]
    Tolerate {
        /// The taint as key=value:effect.
        taint: String,
    },
    /// The node must recover from the condition behind this taint.
    #[serde(rename_all = "camelCase")]
    Recover {
        /// The taint as key=value:effect.
        taint: String,
    },
    /// Uncordon the node.
    Uncordon,
    /// Drop or change the pod's node name.
    #[serde(rename_all = "camelCase")]
    NodeName {
        /// The node that the pod names.
        named: String,
    },
    /// Relax node selector or node affinity, or label the node.
    #[serde(rename_all = "camelCase")]
    NodeLabels {
        /// Requirements of the closest term that the node does not meet.
        unmet: Vec<String>,
    },
    /// Free a host port, or use another.
    #[serde(rename_all = "camelCase")]
    HostPort {
        /// Ports in use.
        ports: Vec<String>,
    },
    /// Raise maxSkew, or place matching pods elsewhere.
    #[serde(rename_all = "camelCase")]
    Spread {
        /// Topology key.
        topology: String,
        /// Skew with the pod; 0 if the node lacks the key.
        skew: i64,
        /// Skew allowed.
        max_skew: i64,
    },
    /// Relax pod affinity or anti-affinity.
    #[serde(rename_all = "camelCase")]
    PodAffinity {
        /// The rule.
        rule: String,
    },
    /// Have the node declare these features.
    #[serde(rename_all = "camelCase")]
    Features {
        /// Missing features.
        missing: Vec<String>,
    },
    /// Wait until the pods nominated to the node are placed.
    #[serde(rename_all = "camelCase")]
    Wait {
        /// Reasons why the node rejects the pod while it counts the nominated pods.
        reasons: Vec<String>,
    },
    /// A change that concerns no single node.
    #[serde(rename_all = "camelCase")]
    Pod {
        /// The change.
        what: String,
    },
}

/// The changes for one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// The node; `None` if the pod itself has to change.
    pub node: Option<String>,
    /// All of these changes are needed.
    pub changes: Vec<NodeRemedy>,
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(node) = &self.node {
            write!(f, "on node {node}: ")?;
        }
        f.write_str(&text_of(&self.changes))
    }
}

/// Returns true if a node has pods of a lower priority, without which preemption cannot help there.
#[must_use]
pub fn has_victims(cluster: &Cluster, row: u32, priority: i32) -> bool {
    let pods = cluster.pods();
    pods.on_node(row).any(|id| pods.get(id).priority < priority)
}

/// Returns the changes in words; all are needed.
#[must_use]
pub fn text_of(changes: &[NodeRemedy]) -> String {
    changes.iter().map(NodeRemedy::text).collect::<Vec<_>>().join(", and ")
}

impl NodeRemedy {
    /// Returns the change in words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Free { resource, missing, beyond_node, asked } => {
                let less = amount(resource, *missing.min(asked));
                let amount = amount(resource, *missing);
                match (beyond_node, missing > asked) {
                    (true, _) => format!("ask for {less} less {resource} (more than the node has)"),
                    (false, true) => format!("free {amount} {resource} or ask for none"),
                    (false, false) => format!("free {amount} {resource} or ask for that much less"),
                }
            }
            Self::PodSlot => "free one pod slot".to_owned(),
            Self::Tolerate { taint } => format!("tolerate the taint {taint}"),
            Self::Recover { taint } => {
                let what =
                    conditions::recovery(taint).unwrap_or("wait until the node has recovered");
                format!("{what} (taint {taint})")
            }
            Self::Uncordon => "uncordon it".to_owned(),
            Self::NodeName { named } => format!("drop spec.nodeName {named:?}"),
            Self::NodeLabels { unmet } if unmet.iter().any(|one| conditions::is_fixed(one)) => {
                let all = unmet.join(", ");
                format!("change its node affinity or selector, which needs {all}")
            }
            Self::NodeLabels { unmet } => format!("meet node affinity: {}", unmet.join(", ")),
            Self::HostPort { ports } => format!("free host port {}", ports.join(", ")),
            Self::Spread { topology, skew: 0, .. } => format!("label it with {topology}"),
            Self::Spread { topology, skew, max_skew } => {
                format!("allow a skew of {skew} instead of {max_skew} over {topology}")
            }
            Self::PodAffinity { rule } => format!("relax {rule}"),
            Self::Features { missing } => format!("have it declare {}", missing.join(", ")),
            Self::Wait { reasons } => {
                format!("wait until the pods nominated to it are bound ({})", reasons.join(", "))
            }
            Self::Pod { what } => what.clone(),
        }
    }

    /// Returns the cost class of a change, the cheapest lowest, and its size within the class.
    fn burden(&self, cluster: &Cluster, row: u32) -> (u32, f64) {
        let n = cluster.view().numbers(row);
        match self {
            Self::Free { resource, missing, beyond_node, .. } => {
                let all = match resource.as_str() {
                    "cpu" => n.cpu,
                    "memory" => n.mem,
                    "ephemeral-storage" => n.eph,
                    _ => 1,
                };
                let share = *missing as f64 / (all.max(1)) as f64;
                (if *beyond_node { 3 } else { 1 }, share)
            }
            Self::PodSlot => (1, 0.01),
            Self::HostPort { .. } => (2, 0.0),
            Self::Uncordon | Self::Tolerate { .. } => (2, 0.5),
            Self::Wait { .. } => (2, 0.9),
            Self::Spread { skew, max_skew, .. } => (2, (skew - max_skew) as f64),
            Self::PodAffinity { .. } => (3, 0.5),
            Self::Recover { .. } => (3, 0.9),
            Self::NodeLabels { unmet } => (3, unmet.len() as f64),
            Self::NodeName { .. } | Self::Features { .. } | Self::Pod { .. } => (4, 0.0),
        }
    }
}

/// Formats an amount with its usual unit.
#[must_use]
pub fn amount(resource: &str, value: i64) -> String {
    const UNITS: [(&str, i64); 4] =
        [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    match resource {
        "cpu" if value % 1000 == 0 => (value / 1000).to_string(),
        "cpu" => format!("{value}m"),
        "memory" | "ephemeral-storage" => {
            let unit = UNITS.iter().find(|(_, size)| value.abs() >= *size);
            match unit {
                Some((name, size)) if value % size == 0 => format!("{}{name}", value / size),
                Some((name, size)) => format!("{:.1}{name}", value as f64 / *size as f64),
                None => format!("{value}"),
            }
        }
        _ => value.to_string(),
    }
}

/// Returns the smallest change for a pod rejected in PreFilter.
#[must_use]
pub fn of_refusal(refusal: &PreFilterRefusal) -> Remedy {
    let what = match refusal {
        PreFilterRefusal::PreFilter(Plugin::SchedulingGates, reason) => {
            format!("remove the scheduling gates ({reason})")
        }
        PreFilterRefusal::PreFilter(plugin, reason) => of_plugin(*plugin, reason),
        PreFilterRefusal::Error(error) => format!("correct the pod: {error}"),
        PreFilterRefusal::Stale => "try again, because the cluster has changed".to_owned(),
    };
    Remedy { node: None, changes: vec![NodeRemedy::Pod { what }] }
}

/// Returns the change in words for a rejection of which only the plugin and its reason are known.
fn of_plugin(plugin: Plugin, reason: &str) -> String {
    match plugin {
        Plugin::NodeAffinity => format!("change the pod's node affinity ({reason})"),
        Plugin::VolumeRestrictions
        | Plugin::NodeVolumeLimits
        | Plugin::VolumeBinding
        | Plugin::VolumeZone => format!("create or change what its volumes need ({reason})"),
        Plugin::DynamicResources => format!("create or change its resource claims ({reason})"),
        Plugin::OutOfTree => format!("change what a plugin rejects ({reason})"),
        Plugin::Extender => format!("change what an extender rejects ({reason})"),
        other => format!("change what {} rejects ({reason})", other.name()),
    }
}

/// Returns the smallest change over all nodes; `None` if there is no node.
#[must_use]
pub fn smallest(
    cluster: &Cluster,
    program: &Program,
    detail: &Detail,
    scratch: &mut Scratch,
) -> Option<Remedy> {
    nearest(cluster, program, detail, scratch, 1).pop()
}

/// Returns the changes for the nodes that need least, at most `count`, the smallest first.
#[must_use]
pub fn nearest(
    cluster: &Cluster,
    program: &Program,
    detail: &Detail,
    scratch: &mut Scratch,
    count: usize,
) -> Vec<Remedy> {
    scratch.filter.spread.prepare(cluster.view(), program, &mut scratch.filter.node);
    let rows = cluster.view().valid_rows();
    let count_of =
        |row: u32| failing(detail, row).count() + usize::from(rejected(detail, row).is_some());
    let fewest = rows.iter().map(count_of).min().unwrap_or(0);
    let mut found: Vec<((u32, f64), u32, Vec<NodeRemedy>)> = Vec::new();
    for row in rows.iter().filter(|row| count_of(*row) <= fewest + 1) {
        let changes = changes_of(cluster, program, detail, scratch, row);
        if changes.is_empty() {
            continue;
        }
        let burdens = changes.iter().map(|c| c.burden(cluster, row));
        let burden = burdens.fold((0, 0.0), |sum, b| (sum.0 + b.0, sum.1 + b.1));
        let at = found.partition_point(|(other, _, _)| *other <= burden);
        if at < count {
            found.insert(at, (burden, row, changes));
            found.truncate(count);
        }
    }
    let remedy = |(_, row, changes)| Remedy { node: Some(cluster.node_name(row).into()), changes };
    found.into_iter().map(remedy).collect()
}

/// Returns the changes for this node; none if it accepts the pod.
#[must_use]
pub fn of_row(
    cluster: &Cluster,
    program: &Program,
    detail: &Detail,
    scratch: &mut Scratch,
    row: u32,
) -> Vec<NodeRemedy> {
    scratch.filter.spread.prepare(cluster.view(), program, &mut scratch.filter.node);
    changes_of(cluster, program, detail, scratch, row)
}

fn changes_of(
    cluster: &Cluster,
    program: &Program,
    detail: &Detail,
    scratch: &Scratch,
    row: u32,
) -> Vec<NodeRemedy> {
    let mut changes = Vec::new();
    failing(detail, row)
        .for_each(|plugin| obstacles(cluster, program, scratch, plugin, row, &mut changes));
    changes.extend(rejected(detail, row));
    if changes.contains(&NodeRemedy::Uncordon) {
        // Uncordoning removes the taint too.
        let of_cordon = "node.kubernetes.io/unschedulable:NoSchedule";
        changes.retain(
            |change| !matches!(change, NodeRemedy::Tolerate { taint } if taint == of_cordon),
        );
    }
    changes
}

/// Returns the column plugins that reject a node.
fn failing(detail: &Detail, row: u32) -> impl Iterator<Item = Plugin> {
    detail.passing.iter().filter(move |(_, rows)| !rows.get(row)).map(|(plugin, _)| *plugin)
}

/// Returns the change needed for the row plugin that rejects this node.
fn rejected(detail: &Detail, row: u32) -> Option<NodeRemedy> {
    let at = detail.rejected.binary_search_by_key(&row, |(row, _)| *row).ok()?;
    of_status(&detail.rejected[at].1, failing(detail, row))
}

/// Returns the change needed for a row plugin. A column filter has such a status if nominated pods
/// make it reject the node. That needs no change of its own if the column rejects the node even
/// without them, except for resources, which add up.
fn of_status(status: &Status, mut failing: impl Iterator<Item = Plugin>) -> Option<NodeRemedy> {
    let reasons = status.reasons.clone();
    let Some(plugin) = status.plugin else {
        return Some(NodeRemedy::Pod { what: reasons.join(", ") });
    };
    if !COLUMN_FILTERS.contains(&plugin) {
        return Some(NodeRemedy::Pod { what: of_plugin(plugin, &reasons.join(", ")) });
    }
    // What is freed for the pod alone is not enough for the nominated pods as well.
    let adds_up = plugin == Plugin::NodeResourcesFit && status.code == Code::Unschedulable;
    let rejects_alone = failing.any(|other| other == plugin);
    (adds_up || !rejects_alone).then_some(NodeRemedy::Wait { reasons })
}

/// Returns the changes that one failing plugin needs on a node.
fn obstacles(
    cluster: &Cluster,
    program: &Program,
    scratch: &Scratch,
    plugin: Plugin,
    row: u32,
    changes: &mut Vec<NodeRemedy>,
) {
    let view = cluster.view();
    let text = |id| cluster.text(id).to_owned();
    match plugin {
        Plugin::NodeUnschedulable => changes.push(NodeRemedy::Uncordon),
        Plugin::NodeName => {
            let named = program.node_name.map(text).unwrap_or_default();
            changes.push(NodeRemedy::NodeName { named });
        }
        Plugin::TaintToleration => {
            for (taint, rows) in view.sparse.taints.iter() {
                let tolerated = program.tolerations.iter().any(|t| t.tolerates(taint));
                if is_hard(taint) && rows.contains(row) && !tolerated {
                    let (key, value) = (text(taint.key), text(taint.value));
                    let value = if value.is_empty() { value } else { format!("={value}") };
                    let taint = format!("{key}{value}:{:?}", taint.effect);
                    changes.push(match conditions::recovery(&taint) {
                        Some(_) => NodeRemedy::Recover { taint },
                        None => NodeRemedy::Tolerate { taint },
                    });
                }
            }
        }
        Plugin::NodeAffinity => changes.push(labels(cluster, program, row)),
        Plugin::NodePorts => {
            let ports = program.ports.iter().filter(|p| {
                let users = view.sparse.ports.get(&(p.protocol, p.port)).into_iter();
                let mut clashing = users.flat_map(|u| u.clashing(p.ip, view.wildcard_ip));
                clashing.any(|(_, rows)| rows.contains(row))
            });
            let ports = ports.map(|p| format!("{}/{}", p.port, text(p.protocol))).collect();
            changes.push(NodeRemedy::HostPort { ports });
        }
        Plugin::NodeResourcesFit => resources(cluster, program, row, changes),
        Plugin::PodTopologySpread => {
            for (c, domains) in program.spread.hard.iter().zip(&scratch.filter.spread.domains) {
                let value = view.keys.column(c.key).value(row) as usize;
                let count = domains.counts.get(value).copied().unwrap_or(0);
                let skew = count + i64::from(c.self_match) - domains.least;
                if value == 0 || skew > c.max_skew {
                    let topology = text(view.keys.column(c.key).name);
                    let skew = if value == 0 { 0 } else { skew };
                    changes.push(NodeRemedy::Spread { topology, skew, max_skew: c.max_skew });
                }
            }
        }
        Plugin::InterPodAffinity => {
            for rule in pod_rules(cluster, program, row) {
                changes.push(NodeRemedy::PodAffinity { rule: rule.to_owned() });
            }
        }
        _ => {
            let lacks = |f: &&crate::intern::Str| {
                !view.sparse.features.get(*f).is_some_and(|rows| rows.contains(row))
            };
            let missing = program.features.iter().filter(lacks).map(|f| text(*f)).collect();
            changes.push(NodeRemedy::Features { missing });
        }
    }
}

fn resources(cluster: &Cluster, program: &Program, row: u32, changes: &mut Vec<NodeRemedy>) {
    let view = cluster.view();
    let n = view.numbers(row);
    let r = &program.requests.plain;
    if n.pods == 0 {
        let what = "raise the node's allocatable number of pods, which is 0".to_owned();
        changes.push(NodeRemedy::Pod { what });
    } else if n.pods_used >= n.pods {
        changes.push(NodeRemedy::PodSlot);
    }
    let mut check = |resource: &str, asked: i64, all: i64, used: i64| {
        let free = all.saturating_sub(used);
        if asked > 0 && asked > free {
            let missing = asked.saturating_sub(free);
            let resource = resource.to_owned();
            changes.push(NodeRemedy::Free { resource, missing, beyond_node: asked > all, asked });
        }
    };
    check("cpu", r.cpu_milli, n.cpu, n.cpu_used);
    check("memory", r.mem_bytes, n.mem, n.mem_used);
    check("ephemeral-storage", r.eph_bytes, n.eph, n.eph_used);
    for (name, asked) in &program.scalars {
        let (all, used) = view.scalar(*name, row);
        check(cluster.text(*name), *asked, all.unwrap_or(0), used);
    }
    for (name, asked) in &program.delegated {
        if let (Some(all @ 1..), used) = view.scalar(*name, row) {
            check(cluster.text(*name), *asked, all, used);
        }
    }
}

/// Returns the unmet requirements of the closest term of the pod's affinity.
fn labels(cluster: &Cluster, program: &Program, row: u32) -> NodeRemedy {
    let unmet_of = |requirements: &[crate::program::NodeRequirement]| -> Vec<String> {
        let unmet = requirements.iter().filter(|r| !meets(cluster, r, row));
        unmet.map(|r| requirement_text(cluster, r)).collect()
    };
    let mut unmet = unmet_of(&program.node_affinity.selector);
    for terms in
        [&program.node_affinity.required, &program.node_affinity.added].into_iter().flatten()
    {
        let closest = terms.iter().map(|t| unmet_of(&t.0)).min_by_key(Vec::len);
        unmet.extend(closest.unwrap_or_else(|| vec!["a term that can match a node".to_owned()]));
    }
    if let Some(names) = &program.node_affinity.subset
        && unmet.is_empty()
    {
        let names: Vec<&str> = names.iter().map(|n| cluster.text(*n)).collect();
        unmet.push(format!("metadata.name in ({})", names.join(", ")));
    }
    NodeRemedy::NodeLabels { unmet }
}

fn meets(cluster: &Cluster, r: &crate::program::NodeRequirement, row: u32) -> bool {
    let view = cluster.view();
    let mut rows = crate::bits::Bits::with_rows(view.rows);
    rows.set(row);
    let term = crate::program::NodeTerm([r.clone()].into());
    crate::filter::node::matching(view, &term, &mut Default::default(), &mut rows);
    rows.get(row)
}

fn requirement_text(cluster: &Cluster, r: &crate::program::NodeRequirement) -> String {
    use crate::program::NodeOp;
    let key = r.key.map_or("metadata.name", |k| cluster.text(k));
    let list = |values: &[crate::intern::Str]| {
        values.iter().map(|v| cluster.text(*v)).collect::<Vec<_>>().join(", ")
    };
    match &r.op {
        NodeOp::In(values) => match &values[..] {
            [one] => format!("{key}={}", cluster.text(*one)),
            many => format!("{key} in ({})", list(many)),
        },
        NodeOp::NotIn(values) => format!("{key} not in ({})", list(values)),
        NodeOp::Exists => format!("{key} present"),
        NodeOp::NotExists => format!("{key} absent"),
        NodeOp::Above(n) => format!("{key} > {n}"),
        NodeOp::Below(n) => format!("{key} < {n}"),
    }
}

fn pod_rules(cluster: &Cluster, program: &Program, row: u32) -> Vec<&'static str> {
    let view = cluster.view();
    let here = |key, counts: &crate::columns::domain_counts::DomainCounts| {
        let value = view.keys.column(key).value(row);
        (value != 0).then(|| counts.get(value))
    };
    let mut rules = Vec::new();
    if let Some((counter, keys)) = &program.pods.required {
        let counter = view.counts.counters.get(counter.0);
        let first = program.pods.meets_own && interpod::no_pod_matches(view, program);
        let unmet = |key: &crate::columns::keys::KeyId| {
            here(*key, counter.domain(*key)).is_none_or(|n| n == 0 && !first)
        };
        if keys.iter().any(|key| view.keys.column(*key).value(row) == 0) {
            rules.push("its pod affinity, because the node lacks the label of its topology key");
        } else if keys.iter().any(unmet) {
            rules.push("its pod affinity, or place a pod it asks for nearby");
        }
    }
    let anti = |(counter, key): &(_, _)| {
        let counter: &crate::columns::counters::CounterId = counter;
        here(*key, view.counts.counters.get(counter.0).domain(*key)).is_some_and(|n| n > 0)
    };
    if program.pods.anti.iter().any(anti) {
        rules.push("its pod anti-affinity, or move the pods it avoids");
    }
    let mut existing = interpod::forbidding(view, program);
    if existing.any(|(_, t)| here(t.topology, &t.domains).is_some_and(|n| n > 0)) {
        rules.push("the anti-affinity of pods already there");
    }
    rules
}
