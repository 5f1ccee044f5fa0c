//! Manifests of a world: a name, a version, and how its containers behave.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::types::PodUid;
use pintle_api_types::pod::defaults;
use serde_json::{Value, json};

use crate::rng::Rng;

/// How a container behaves once started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Runs until it is told to stop.
    Forever,
    /// Ends by itself after that many milliseconds with that code.
    Ends { after_ms: u64, code: i32 },
    /// Ends badly that many times, then as `Ends` with 0 (init) or runs for ever (main).
    FailsFirst { times: u32 },
}

/// One container of a manifest.
#[derive(Clone, Debug)]
pub struct Box {
    pub name: String,
    pub init: bool,
    pub sidecar: bool,
    pub behaviour: Behaviour,
    /// Ignores SIGTERM and has to be killed.
    pub stubborn: bool,
}

/// A manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub uid: PodUid,
    pub pod: Arc<Pod>,
    pub boxes: Vec<Box>,
    pub policy: &'static str,
    pub grace: i64,
}

impl Manifest {
    /// A version of the pod `name`; its uid follows from its content, as for a static pod.
    pub fn random(name: &str, version: u64, rng: &mut Rng) -> Self {
        let policy = *rng.pick(&["Always", "Always", "OnFailure", "Never"]);
        let grace = *rng.pick(&[1, 2, 5, 30]);
        let mut boxes = Vec::new();
        for index in 0..rng.range(0, 3) {
            let sidecar = rng.chance(40);
            let behaviour = match (sidecar, rng.range(0, 4)) {
                (true, 0) => Behaviour::Ends { after_ms: rng.range(100, 20_000), code: 1 },
                (true, _) => Behaviour::Forever,
                (false, 0) if policy != "Never" => Behaviour::FailsFirst { times: 1 },
                (false, 1) if policy == "Never" => Behaviour::Ends { after_ms: 50, code: 1 },
                (false, _) => Behaviour::Ends { after_ms: rng.range(10, 3_000), code: 0 },
            };
            let name = format!("i{index}");
            boxes.push(Box { name, init: true, sidecar, behaviour, stubborn: rng.chance(20) });
        }
        for index in 0..rng.range(1, 4) {
            let behaviour = match rng.range(0, 5) {
                0 => Behaviour::Ends { after_ms: rng.range(10, 30_000), code: 0 },
                1 => Behaviour::Ends { after_ms: rng.range(10, 30_000), code: 7 },
                2 => Behaviour::FailsFirst { times: rng.range(1, 4) as u32 },
                _ => Behaviour::Forever,
            };
            let name = format!("c{index}");
            let stubborn = rng.chance(20);
            boxes.push(Box { name, init: false, sidecar: false, behaviour, stubborn });
        }
        let uid = PodUid::from(format!("{name}-v{version}"));
        let pod = Arc::new(pod(name, uid.as_str(), &boxes, policy, grace));
        Self { uid, pod, boxes, policy, grace }
    }

    pub fn get(&self, container: &str) -> &Box {
        self.boxes.iter().find(|b| b.name == container).expect("a container of the manifest")
    }
}

fn pod(name: &str, uid: &str, boxes: &[Box], policy: &str, grace: i64) -> Pod {
    let container = |b: &Box| {
        let mut container = json!({"name": b.name, "image": "image:1"});
        if b.sidecar {
            container["restartPolicy"] = json!("Always");
        }
        container
    };
    let of = |init: bool| boxes.iter().filter(|b| b.init == init).map(container).collect();
    let (init, main): (Vec<Value>, Vec<Value>) = (of(true), of(false));
    let mut pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "sim", "uid": uid,
            "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": grace,
            "initContainers": init, "containers": main},
    }))
    .expect("a pod");
    defaults::apply(&mut pod);
    pod
}
