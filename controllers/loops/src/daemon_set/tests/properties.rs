//! Properties: one daemon pod a node, and limits that hold at every step.

use pintle_api_types::kind::{NODES, PODS};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A change of the cluster.
#[derive(Clone, Debug)]
enum ClusterChange {
    Taint(u8, &'static str),
    Image(u8),
    AddNode(u8),
    RemoveNode(u8),
    FailPod(u8),
    Double(u8),
}

fn steps() -> impl Strategy<Value = Vec<ClusterChange>> {
    let effect = prop::sample::select(vec!["NoSchedule", "NoExecute", "PreferNoSchedule"]);
    let step = prop_oneof![
        (0..4_u8, effect).prop_map(|(node, effect)| ClusterChange::Taint(node, effect)),
        (0..3_u8).prop_map(ClusterChange::Image),
        (0..6_u8).prop_map(ClusterChange::AddNode),
        (0..6_u8).prop_map(ClusterChange::RemoveNode),
        (0..4_u8).prop_map(ClusterChange::FailPod),
        (0..4_u8).prop_map(ClusterChange::Double),
    ];
    prop::collection::vec(step, 1..8)
}

fn apply(world: &mut LoopWorld, step: &ClusterChange) {
    match step {
        ClusterChange::Taint(node, effect) => {
            let node = format!("node-{node}");
            if world.get(NODES, &node).is_some() {
                taint(world, &node, "k", effect);
            }
        }
        ClusterChange::Image(image) => set_image(world, &format!("image-{image}")),
        ClusterChange::AddNode(node) => {
            world.add(NODES, json!({"metadata": {"name": format!("node-{node}")}}));
        }
        ClusterChange::RemoveNode(node) => {
            let name = format!("node-{node}");
            if world.get(NODES, &name).is_some() {
                world.remove(NODES, &name);
                let on_node = |pod: &&Value| pod["spec"]["nodeName"] == *name;
                let pods: Vec<_> = world.all(PODS).filter(on_node).cloned().collect();
                for pod in pods {
                    world.remove(PODS, pod["metadata"]["name"].as_str().expect("a name"));
                }
            }
        }
        ClusterChange::FailPod(at) => {
            if let Some(name) = world.names(PODS).get(usize::from(*at)).map(ToString::to_string) {
                world.edit(PODS, &name, |pod| pod["status"] = json!({"phase": "Failed"}));
            }
        }
        ClusterChange::Double(node) => {
            let node = format!("node-{node}");
            let name = format!("double-{node}");
            if world.get(NODES, &node).is_some() && world.get(PODS, &name).is_none() {
                world.add(PODS, daemon_pod(&name, &node, "Running"));
            }
        }
    }
}

/// Nodes without an available pod that should have one.
fn unavailable(world: &LoopWorld) -> usize {
    let should_run = |node: &&Value| {
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.into_iter().all(|taint| taint["effect"] == "PreferNoSchedule")
    };
    let is_available = |node: &Value| {
        world.all(PODS).any(|pod| {
            pod["spec"]["nodeName"] == node["metadata"]["name"]
                && pod["metadata"]["deletionTimestamp"].is_null()
                && pod["status"]["conditions"][0]["status"] == "True"
        })
    };
    world.all(NODES).filter(should_run).filter(|node| !is_available(node)).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn set_settles_with_one_current_pod_per_node(surges: bool, steps in steps()) {
        let mut wanted = set();
        if surges {
            wanted["spec"]["updateStrategy"]["rollingUpdate"] =
                json!({"maxUnavailable": 0, "maxSurge": 1});
        }
        let mut world = world(wanted, 4);
        settle(&mut world);
        for step in &steps {
            apply(&mut world, step);
            sync(&mut world);
        }
        settle(&mut world);
        let image = {
            let set = world.get(pintle_api_types::kind::DAEMON_SETS, "ds").expect("it is there");
            set["spec"]["template"]["spec"]["containers"][0]["image"].clone()
        };
        let images = images(&world);
        for node in world.all(NODES) {
            let name = node["metadata"]["name"].as_str().expect("a name");
            let effect = &node["spec"]["taints"][0]["effect"];
            let on_node = images.get(name).map(String::as_str);
            match effect.as_str() {
                None | Some("PreferNoSchedule") => prop_assert_eq!(on_node, image.as_str()),
                Some("NoExecute") => prop_assert_eq!(on_node, None),
                // An existing pod stays, but is not replaced by a second one.
                _ => prop_assert!(on_node.is_none_or(|on_node| !on_node.is_empty())),
            }
        }
        prop_assert!(sync(&mut world).requests.is_empty());
    }
}

#[test]
fn rollout_keeps_within_its_limit_at_every_step() {
    for limit in 1..4_usize {
        let mut wanted = set();
        wanted["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = limit.into();
        let mut world = world(wanted, 6);
        settle(&mut world);
        set_image(&mut world, "two");
        let is_new = |world: &LoopWorld| images(world).values().all(|image| image == "two");
        for _ in 0..40 {
            sync(&mut world);
            assert!(unavailable(&world) <= limit);
            world.run_kubelets();
            if is_new(&world) && images(&world).len() == 6 {
                break;
            }
        }
        assert!(is_new(&world));
    }
}
