//! The search for victims: results, cost, and equality with really removing the pods.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use super::*;
use crate::attempt_budget::Limits;
use crate::snapshot::tests::{node_with, pod_with};
use crate::{explain, select};

const NODES: usize = 300;

/// Nodes that are full of one pod each; on the first fifty it is protected by a budget.
fn full() -> (Cluster, Vec<Budget>) {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..NODES {
        let node = node_with(&format!("n{at}"), |n| {
            n["status"]["allocatable"]["cpu"] = json!("1");
        });
        cluster.set_node(&node).expect("node");
        let pod = pod_with(&format!("p{at}"), |p| {
            let guarded = if at < 50 { "yes" } else { "no" };
            p["metadata"]["labels"]["guarded"] = json!(guarded);
            p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
        });
        cluster.assume(&pod, &format!("n{at}")).expect("room");
    }
    let budget = json!({"metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"guarded": "yes"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0,
            "expectedPods": 0}});
    let budgets = cluster.budgets(&[serde_json::from_value(budget).expect("budget")]);
    (cluster, budgets)
}

#[test]
fn a_dry_run_stops_at_as_many_candidates_as_are_wanted() {
    let spent = &AttemptBudget::unlimited();
    let (cluster, budgets) = full();
    let urgent = pod_with("urgent", |p| {
        p["spec"]["priority"] = json!(1000);
        p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
    });
    // percent, minimum, first node, expected rows of the candidates
    for (percent, least, offset, want) in [
        (10, 100, 60, (60..160).collect::<Vec<u32>>()),
        (50, 100, 60, (60..210).collect()),
        (100, 0, 0, (0..300).collect()),
        (1, 0, 100, (100..103).collect()),
        (0, 500, 7, (7..300).chain(0..7).collect()),
        (0, 20, 290, (290..300).chain(0..10).collect()),
        // Enough, but all of them violate the budget: the search continues to the first that does
        // not.
        (0, 20, 10, (10..51).collect()),
    ] {
        let mut cluster = cluster.clone();
        let mut profile = Profile::clone(&cluster.view.profile);
        profile.preemption_candidates.percent = percent;
        profile.preemption_candidates.min = least;
        cluster.view.profile = std::sync::Arc::new(profile);
        let program = cluster.compile(&urgent).expect("pod");
        let mut scratch = Scratch::default();
        let (outcome, detail) =
            select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
        assert_eq!(outcome.feasible, 0);
        let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
        let from =
            Trials { budgets: &budgets, offset, expected: &[], without: &|_, _, _, _| None, spent };
        let run = dry_run_from(&cluster, &urgent, &program, &statuses, &from, &mut scratch);
        let rows: Vec<u32> = run.candidates.iter().map(|c| c.row).collect();
        assert_eq!(rows, want, "{percent} percent, {least} at least, from {offset}");
        let chosen = run.candidates[run.chosen.expect("candidates")].violations;
        assert_eq!(chosen, 0, "one without violation is there and preferred");
    }
}

#[test]
fn node_rejected_by_fit_before_its_taint_gets_a_dry_run_and_keeps_the_taint() {
    use Plugin::{NodeResourcesFit as Fit, TaintToleration as Taint, VolumeBinding as Volumes};
    let says = |plugin: Plugin| {
        let code = Code::UnschedulableAndUnresolvable;
        Status { plugin: Some(plugin), code, reasons: vec!["no".to_owned()] }
    };
    let spent = &AttemptBudget::unlimited();
    // the order, is the node tried, the plugin that rejects it then
    for (order, is_tried, want) in [
        ([Taint, Fit, Volumes], false, None),
        ([Fit, Taint, Volumes], true, Some(Taint)),
        ([Fit, Volumes, Taint], true, Some(Volumes)),
        ([Volumes, Fit, Taint], true, Some(Volumes)),
    ] {
        let filter_ranks = crate::config::ranks(order.map(Plugin::name));
        let mut cluster = Cluster::new(Profile { filter_ranks, ..Profile::default() });
        let node = node_with("n", |n| {
            n["status"]["allocatable"]["cpu"] = json!("1");
            n["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
        });
        cluster.set_node(&node).expect("node");
        let asks = |priority: i32| {
            pod_with(&format!("p{priority}"), |p| {
                p["spec"]["priority"] = json!(priority);
                p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
            })
        };
        cluster.assume(&asks(0), "n").expect("room");
        let program = cluster.compile(&asks(9)).expect("pod");
        let mut scratch = Scratch::default();
        let (_, detail) = select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
        let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
        let without = |cluster: &Cluster, _, _: &[PodId], before| {
            let is_asked = cluster.view().profile.filter_rank(Volumes) < before;
            is_asked.then(|| says(Volumes))
        };
        let trials = Trials { budgets: &[], offset: 0, expected: &[], without: &without, spent };
        let run = dry_run_from(&cluster, &asks(9), &program, &statuses, &trials, &mut scratch);
        assert_eq!(run.potential.len(), usize::from(is_tried), "{order:?}");
        let rejected = run.rejected.first().and_then(|(_, status)| status.plugin);
        assert_eq!((rejected, run.candidates.len()), (want, 0), "{order:?}");
    }
}

/// A search with this much work to spend.
fn search(cluster: &mut Cluster, pod: &Pod, budgets: &[Budget], work: u64) -> DryRun {
    let program = cluster.compile(pod).expect("pod");
    let mut scratch = Scratch::default();
    let (_, detail) = select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
    let statuses = explain::statuses(cluster, &program, &detail, &mut scratch);
    let limits = Limits { work, bytes: u64::MAX };
    let spent = &AttemptBudget::new(limits, || false);
    let trials = Trials { budgets, offset: 0, expected: &[], without: &|_, _, _, _| None, spent };
    dry_run_from(cluster, pod, &program, &statuses, &trials, &mut scratch)
}

/// Nodes without free CPU because of pods of low priority; each pod has its own label.
fn crowded(nodes: usize, pods: usize) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..nodes {
        let node = node_with(&format!("n{at}"), |n| {
            n["status"]["allocatable"] = json!({"cpu": pods.to_string(), "memory": "64Gi",
                "pods": "500"});
        });
        cluster.set_node(&node).expect("node");
        for pod in 0..pods {
            let pod = pod_with(&format!("p{at}-{pod}"), |p| {
                p["metadata"]["labels"] = json!({"app": format!("a{pod}")});
                p["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
            });
            cluster.assume(&pod, &format!("n{at}")).expect("room");
        }
    }
    cluster
}

/// A preemptor that repels pods by `terms` anti-affinity terms. Half of them are met.
fn repelling(terms: usize) -> Pod {
    let term = |at: usize| {
        let app = if at.is_multiple_of(2) { format!("a{}", at / 2) } else { format!("x{at}") };
        json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions":
            [{"key": "app", "operator": "In", "values": [app, format!("y{at}")]}]}})
    };
    pod_with("urgent", |p| {
        p["spec"]["priority"] = json!(1000);
        p["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
        let terms: Vec<_> = (0..terms).map(term).collect();
        p["spec"]["affinity"] =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    })
}

#[test]
fn search_pays_for_terms_once_and_for_pods_once_a_node() {
    let (nodes, pods, terms) = (20, 50, 2_000);
    let mut cluster = crowded(nodes, pods);
    let pod = repelling(terms);
    // Each node meets each class; its pod is changed up to three times and checked once.
    let enough = (40 * (terms + nodes * pods) + 64 * nodes * pods) as u64;
    let run = search(&mut cluster, &pod, &[], enough);
    assert_eq!(run.ineligible, None, "{} units were not enough", enough);
    assert_eq!(run.candidates.len(), nodes);
    assert!(run.candidates.iter().all(|c| c.victims.len() == pods), "all of them are repelled");
    assert!((enough as usize) < terms * nodes * pods / 10, "it is not paid for each pod and term");
}

#[test]
fn search_that_exceeds_the_budget_evicts_no_pod_and_reports_the_reason() {
    let run = search(&mut crowded(20, 50), &repelling(100), &[], 5_000);
    assert_eq!((run.candidates.len(), run.chosen), (0, None));
    let why = "preemption: the work limit of one scheduling attempt was exceeded while looking for \
        preemption victims";
    assert_eq!(summary(20, &run), why);
}

#[test]
fn budgets_of_other_namespaces_cost_no_work_and_own_budgets_once_per_class() {
    let mut cluster = crowded(10, 20);
    let budget = |at: usize, namespace: &str| {
        let budget = json!({"metadata": {"name": format!("b{at}"), "namespace": namespace},
            "spec": {"selector": {"matchLabels": {"app": format!("a{at}")}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0,
                "expectedPods": 0}});
        serde_json::from_value::<PodDisruptionBudget>(budget).expect("a budget")
    };
    let others = (0..3_000).map(|at| budget(at, "others"));
    let all: Vec<_> = others.chain((0..10).map(|at| budget(at, "ns"))).collect();
    let budgets = cluster.budgets(&all);
    let run = search(&mut cluster, &repelling(0), &budgets, 3_000 * 10);
    assert_eq!(run.ineligible, None);
    // One victim is enough, and each node has ten pods without a budget.
    assert!(run.candidates.iter().all(|c| (c.victims.len(), c.violations) == (1, 0)), "{run:?}");
    let mut own: Vec<_> = all;
    own.iter_mut().for_each(|budget| budget.metadata.namespace = Some("ns".to_owned()));
    let budgets = cluster.budgets(&own);
    let run = search(&mut cluster, &repelling(0), &budgets, 3_010 * 20 + 30_000);
    assert_eq!(run.ineligible, None, "each budget is compared once with each of 20 classes");
}

/// Random pods of few kinds.
struct PodDice(u64);

impl PodDice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % sides
    }

    fn term(&mut self) -> serde_json::Value {
        let key = ["zone", "kubernetes.io/hostname", "rack"][self.roll(3)];
        let app = format!("a{}", self.roll(3));
        json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
    }

    fn pod(&mut self, name: &str, priority: usize) -> Pod {
        let rolls: Vec<usize> = (0..8).map(|_| self.roll(5)).collect();
        let terms: Vec<_> = (0..rolls[0] / 2).map(|_| self.term()).collect();
        let attracts: Vec<_> = (0..rolls[1] / 4).map(|_| self.term()).collect();
        let spread = self.term();
        pod_with(name, |p| {
            p["metadata"]["labels"] = json!({"app": format!("a{}", rolls[2] % 3)});
            p["spec"]["priority"] = json!(priority);
            let (cpu, gpu) = (1 + rolls[3] % 2, rolls[4] % 2);
            let mut requests = json!({"cpu": cpu.to_string()});
            if gpu > 0 {
                requests["example.com/gpu"] = json!("1");
            }
            p["spec"]["containers"][0]["resources"]["requests"] = requests;
            if rolls[5] == 0 {
                p["spec"]["containers"][0]["ports"] =
                    json!([{"containerPort": 1, "hostPort": 80 + rolls[6] % 2}]);
            }
            let required = "requiredDuringSchedulingIgnoredDuringExecution";
            if !terms.is_empty() {
                p["spec"]["affinity"]["podAntiAffinity"][required] = json!(terms);
            }
            if !attracts.is_empty() {
                p["spec"]["affinity"]["podAffinity"][required] = json!(attracts);
            }
            if rolls[7] < 2 {
                p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1 + rolls[7],
                    "whenUnsatisfiable": "DoNotSchedule", "topologyKey": spread["topologyKey"],
                    "labelSelector": spread["labelSelector"]}]);
            }
        })
    }
}

/// Returns the victims on a node, found by removing the pods and deciding again; `None` if that
/// does not help.
fn victims_by_removal(cluster: &Cluster, pod: &Pod, row: u32) -> Option<Vec<PodId>> {
    let mut cluster = cluster.clone();
    let fits = |cluster: &mut Cluster| {
        let program = cluster.compile(pod).expect("pod");
        let mut scratch = Scratch::default();
        select::decide(cluster.view(), &program, &mut scratch);
        scratch.feasible.get(row)
    };
    let mut lower: Vec<PodId> = cluster.pods.on_node(row).collect();
    lower.retain(|id| cluster.pods.get(*id).priority < 9);
    lower.sort_by_key(|id| (std::cmp::Reverse(cluster.pods.get(*id).priority), *id));
    lower.iter().for_each(|id| cluster.hide(*id));
    if lower.is_empty() || !fits(&mut cluster) {
        return None;
    }
    let mut victims = Vec::new();
    for id in lower {
        cluster.show(id);
        if !fits(&mut cluster) {
            cluster.hide(id);
            victims.push(id);
        }
    }
    Some(victims)
}

#[test]
fn victims_are_those_that_removing_pods_and_deciding_again_finds() {
    let (mut found, mut rejected) = (0, 0);
    for seed in 0..400 {
        let mut dice = PodDice(seed * 7919 + 1);
        let mut cluster = Cluster::new(Profile::default());
        for at in 0..6 {
            let node = node_with(&format!("n{at}"), |n| {
                n["metadata"]["labels"] = json!({"kubernetes.io/hostname": format!("n{at}"),
                    "zone": format!("z{}", at % 3)});
                if at > 0 {
                    n["metadata"]["labels"]["rack"] = json!(format!("r{}", at % 2));
                }
                n["status"]["allocatable"] = json!({"cpu": "5", "memory": "64Gi", "pods": "9",
                    "example.com/gpu": "2"});
            });
            cluster.set_node(&node).expect("node");
            for pod in 0..3 {
                let priority = dice.roll(3) * 5;
                let pod = dice.pod(&format!("p{at}-{pod}"), priority);
                cluster.assume(&pod, &format!("n{at}")).expect("room");
            }
        }
        let pod = dice.pod("urgent", 9);
        let run = search(&mut cluster, &pod, &[], u64::MAX);
        for candidate in &run.candidates {
            let mut want = victims_by_removal(&cluster, &pod, candidate.row).expect("it helps");
            want.sort_by_key(|id| std::cmp::Reverse(cluster.pods.get(*id).priority));
            assert_eq!(candidate.victims, want, "seed {seed}, row {}", candidate.row);
        }
        for (row, _) in &run.rejected {
            assert_eq!(victims_by_removal(&cluster, &pod, *row), None, "seed {seed}, row {row}");
        }
        found += run.candidates.iter().filter(|c| c.victims.len() > 1).count();
        rejected += run.rejected.len();
    }
    assert!(found > 50 && rejected > 100, "{found} candidates, {rejected} rejected");
}
