//! Manifests of a world: a name, a version, and how its containers behave.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::types::PodUid;
use pintle_api_types::pod::defaults;
use serde_json::{Value, json};

use crate::faults::{Fault, Faults};
use crate::rng::Rng;

/// CPU of every container in millicores, before any resize.
pub const CPU_MILLIS: u64 = 100;

/// How a container behaves once started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Runs until it is stopped.
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
    /// Its exit code after SIGTERM.
    pub stopped_code: i32,
    /// Changes with the image.
    pub image: u64,
    /// Its image can be pulled from this second of the world on; never, if it is `u64::MAX`.
    pub image_from_s: u64,
    pub cpu_millis: u64,
    /// Each process of it gets sick after so long, which its liveness probe finds.
    pub sick_after_ms: Option<u64>,
    /// Its readiness probe succeeds after this time.
    pub ready_after_ms: Option<u64>,
    /// Its startup probe succeeds after this time.
    pub started_after_ms: Option<u64>,
    /// Its first process never starts, and its startup probe gives it up after so long.
    pub stuck_ms: Option<u64>,
    /// It has a hook after its start, which may fail.
    pub hook: bool,
    pub ephemeral: bool,
}

impl Box {
    fn new(name: String, behaviour: Behaviour, rng: &mut Rng) -> Self {
        Self {
            name,
            init: false,
            sidecar: false,
            behaviour,
            stubborn: rng.chance(20),
            stopped_code: *rng.pick(&[143, 143, 0]),
            image: 1,
            image_from_s: 0,
            cpu_millis: CPU_MILLIS,
            sick_after_ms: None,
            ready_after_ms: None,
            started_after_ms: None,
            stuck_ms: None,
            hook: false,
            ephemeral: false,
        }
    }

    /// Containers that wait for it to start may wait in vain: it ends before its startup probe can
    /// succeed.
    pub fn ends_before_it_starts(&self) -> bool {
        let Behaviour::Ends { after_ms, .. } = self.behaviour else { return false };
        self.started_after_ms.is_some_and(|started_ms| started_ms + 500 > after_ms)
    }

    fn with_faults(mut self, faults: Faults, rng: &mut Rng) -> Self {
        let lasts = !self.init || self.sidecar;
        if faults.has(Fault::Images) && rng.chance(20) {
            self.image_from_s = *rng.pick(&[30, 200, 400, u64::MAX]);
        }
        if faults.has(Fault::Probes) && lasts {
            self.sick_after_ms = rng.chance(20).then(|| rng.range(1_000, 100_000));
            self.ready_after_ms = rng.chance(30).then(|| rng.range(0, 5_000));
            self.started_after_ms = rng.chance(20).then(|| rng.range(0, 5_000));
            let may_be_stuck = self.started_after_ms.is_some() && rng.chance(50);
            self.stuck_ms = may_be_stuck.then(|| rng.range(100, 10_000));
        }
        self.hook = faults.has(Fault::Hooks) && lasts && rng.chance(30);
        self
    }

    fn spec(&self) -> Value {
        let exec = json!({"exec": {"command": ["x"]}});
        let cpu = json!({"cpu": format!("{}m", self.cpu_millis)});
        let mut container = json!({"name": self.name, "image": format!("image:{}", self.image)});
        if self.sidecar {
            container["restartPolicy"] = json!("Always");
        }
        if !self.ephemeral {
            container["resources"] = json!({"requests": cpu.clone(), "limits": cpu});
        }
        let probes = [
            ("livenessProbe", self.sick_after_ms),
            ("readinessProbe", self.ready_after_ms),
            ("startupProbe", self.started_after_ms),
        ];
        for (probe, _) in probes.iter().filter(|(_, after)| after.is_some()) {
            container[*probe] = exec.clone();
        }
        if self.hook {
            container["lifecycle"] = json!({"postStart": exec});
        }
        container
    }
}

/// A manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub uid: PodUid,
    pub name: String,
    pub pod: Arc<Pod>,
    pub boxes: Vec<Box>,
    pub policy: &'static str,
    pub grace: i64,
    pub deadline_s: Option<u64>,
    /// Volumes can be made ready from this second of the world on.
    pub volumes_from_s: u64,
    /// For a node with a label only.
    pub selective: bool,
    /// Of a folder, not of the API server.
    pub of_folder: bool,
    pub priority: i32,
}

impl Manifest {
    /// A version of the pod `name`; its uid follows from its content, as for a static pod.
    pub fn random(name: &str, version: u64, faults: Faults, rng: &mut Rng) -> Self {
        let policy = *rng.pick(&["Always", "Always", "OnFailure", "Never"]);
        let grace = *rng.pick(&[1, 2, 5, 30]);
        let mut boxes = Vec::new();
        for index in 0..rng.range(0, 3) {
            let sidecar = rng.chance(40);
            let behaviour = match (sidecar, rng.range(0, 4)) {
                (true, 0) => Behaviour::Ends { after_ms: rng.range(500, 20_000), code: 1 },
                (true, _) => Behaviour::Forever,
                (false, 0) if policy != "Never" => Behaviour::FailsFirst { times: 1 },
                (false, 1) if policy == "Never" => Behaviour::Ends { after_ms: 50, code: 1 },
                (false, _) => Behaviour::Ends { after_ms: rng.range(10, 3_000), code: 0 },
            };
            let new = Box::new(format!("i{index}"), behaviour, rng);
            boxes.push(Box { init: true, sidecar, ..new }.with_faults(faults, rng));
        }
        for index in 0..rng.range(1, 4) {
            let behaviour = match rng.range(0, 5) {
                0 => Behaviour::Ends { after_ms: rng.range(10, 30_000), code: 0 },
                1 => Behaviour::Ends { after_ms: rng.range(10, 30_000), code: 7 },
                2 => Behaviour::FailsFirst { times: rng.range(1, 4) as u32 },
                _ => Behaviour::Forever,
            };
            boxes.push(Box::new(format!("c{index}"), behaviour, rng).with_faults(faults, rng));
        }
        let api = faults.has(Fault::Api);
        let deadline_s =
            (api && faults.has(Fault::Deadlines) && rng.chance(40)).then(|| rng.range(20, 200));
        let volumes_from_s = match faults.has(Fault::Volumes) && rng.chance(30) {
            true => rng.range(0, 300),
            false => 0,
        };
        let mut manifest = Self {
            uid: PodUid::from(format!("{name}-v{version}")),
            name: name.to_owned(),
            pod: Arc::default(),
            boxes,
            policy,
            grace,
            deadline_s,
            volumes_from_s,
            selective: api && faults.has(Fault::Node) && rng.chance(50),
            of_folder: !api,
            priority: 0,
        };
        if faults.has(Fault::Shutdown) {
            manifest.priority = *rng.pick(&crate::machine::PRIORITIES);
        }
        manifest.write();
        manifest
    }

    /// Rebuilds the pod from its known parts.
    pub fn write(&mut self) {
        let of = |init: bool| -> Vec<Value> {
            let of_list = |b: &&Box| b.init == init && !b.ephemeral;
            self.boxes.iter().filter(of_list).map(Box::spec).collect()
        };
        let ephemeral: Vec<_> = self.boxes.iter().filter(|b| b.ephemeral).map(Box::spec).collect();
        let source = match self.of_folder {
            true => json!({"kubernetes.io/config.source": "file"}),
            false => json!({}),
        };
        let mut pod = serde_json::from_value(json!({
            "metadata": {"name": self.name, "namespace": "sim", "uid": self.uid.as_str(),
                "annotations": source},
            "spec": {"restartPolicy": self.policy, "terminationGracePeriodSeconds": self.grace,
                "activeDeadlineSeconds": self.deadline_s, "priority": self.priority,
                "nodeSelector": if self.selective { json!({"disk": "ssd"}) } else { json!({}) },
                "initContainers": of(true), "containers": of(false),
                "ephemeralContainers": ephemeral},
        }))
        .expect("a pod");
        defaults::apply(&mut pod);
        self.pod = Arc::new(pod);
    }

    /// The spec changes as the API lets it.
    pub fn change(&mut self, rng: &mut Rng) {
        let debugged = self.boxes.iter().any(|b| b.ephemeral);
        let mut lasting: Vec<_> =
            self.boxes.iter_mut().filter(|b| (!b.init || b.sidecar) && !b.ephemeral).collect();
        let index = rng.range(0, lasting.len() as u64) as usize;
        match rng.range(0, 4) {
            0 => lasting[index].image += 1,
            1 if !debugged => {
                let behaviour = Behaviour::Ends { after_ms: rng.range(10, 30_000), code: 3 };
                let new = Box::new("debug".to_owned(), behaviour, rng);
                let image_from_s = *rng.pick(&[0, 0, u64::MAX]);
                self.boxes.push(Box { ephemeral: true, image_from_s, ..new });
            }
            _ => lasting[index].cpu_millis = *rng.pick(&[50, 100, 200, 300]),
        }
        self.write();
    }

    /// True for a process that its startup probe gives up.
    pub fn is_stuck(&self, container: &str, attempt: u32) -> bool {
        attempt == 0 && self.get(container).stuck_ms.is_some()
    }

    pub fn get(&self, container: &str) -> &Box {
        self.boxes.iter().find(|b| b.name == container).expect("a container of the manifest")
    }

    pub fn cpu_millis(&self) -> u64 {
        // Init containers run before the others: the sum is more than it needs.
        self.boxes.iter().map(|b| b.cpu_millis).sum()
    }
}
