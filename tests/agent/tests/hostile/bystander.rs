//! A pod that has nothing to do with the attack, and the duration of each part of its life.
//!
//! Its container serves health, has a readiness probe each second, an emptyDir and a downwardAPI
//! volume. It requests a quarter of a CPU, as a user does for a pod that must respond on a full
//! machine.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use pintle_testbed::manifest::{
    With, address, condition, container, container_id, is_running, pod, restarts,
};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{TestNode, until};
use serde_json::{Value, json};
use xtask::node::process;

use crate::port::NodePort;

/// How many times as long as on the quiet node a part of a life may take.
pub(crate) const LIMIT_FACTOR: u32 = 3;
/// Extra time that a part may take. The two cores of a test host are shared by the agent, the
/// runtime, the attacker and this program, and a probe falls anywhere within its period of one
/// second, so a fast part is easily a second or two late although nothing blocks it. A real
/// blockage (a full pool, a lock, a hanging call) lasts many times that.
const FLOOR: Duration = Duration::from_secs(2);

/// Duration of each part of a life.
pub(crate) type Times = Vec<(&'static str, Duration)>;

/// Limit of a part that took `quiet` on the quiet node.
pub(crate) fn limit(quiet: Duration) -> Duration {
    quiet * LIMIT_FACTOR + FLOOR
}

fn manifest(name: &str) -> Value {
    let probe = json!({"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1,
        "failureThreshold": 1, "timeoutSeconds": 1});
    let serves = container("c", &["/box", "serve", "http=8080"])
        .with("readinessProbe", probe)
        .with("resources", json!({"requests": {"cpu": "250m"}}))
        .with(
            "volumeMounts",
            json!([{"name": "disk", "mountPath": "/disk"},
            {"name": "down", "mountPath": "/down"}]),
        );
    let field = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    pod(name, &[serves]).with_spec(
        "volumes",
        json!([{"name": "disk", "emptyDir": {}},
            {"name": "down", "downwardAPI": {"items": [field]}}]),
    )
}

/// Lives once and returns the duration of each part. A part longer than `longest` fails.
pub(crate) fn live(
    node: &TestNode,
    port: &NodePort,
    name: &str,
    longest: Duration,
    mut seen: impl FnMut(&'static str, Duration),
) {
    let mut part = |what: &'static str, ask: &mut dyn FnMut() -> Result<()>| {
        let begin = Instant::now();
        until(longest, &format!("{name} {what}"), &mut *ask);
        seen(what, begin.elapsed());
    };
    let file = format!("{name}.json");
    node.put(&file, &manifest(name));
    part("starts", &mut || wanted(node, name, |p| condition(p, "Ready")));

    let now = node.pod(name).expect("it was there");
    let server = SocketAddr::from((address(&now), 8080));
    let switch = |to: &str| {
        until(longest, "its server answers", || {
            let answer = node.get_from(server, &format!("/set/{to}"))?;
            ensure!(answer.body == "set", "{answer:?}");
            Ok(())
        });
    };
    switch("unhealthy");
    part("is probed", &mut || wanted(node, name, |p| !condition(p, "Ready")));
    switch("healthy");
    part("is probed again", &mut || wanted(node, name, |p| condition(p, "Ready")));

    let path = |what: &str| format!("/{what}/default/{name}-{NODE_NAME}/c");
    part("has its log read", &mut || {
        let log = port.get(node, &path("containerLogs"))?;
        ensure!(log.status == 200 && log.body.contains("serving"), "{log:?}");
        Ok(())
    });
    part("has a command run", &mut || port.exec(node, &path("exec"), "bystander-says"));
    part("is listed", &mut || {
        let pods = port.get(node, "/pods")?;
        ensure!(pods.status == 200 && pods.body.contains(name), "{}", pods.status);
        Ok(())
    });
    part("finds the node healthy", &mut || healthy(node));

    let pid = node.container_pid(&container_id(&now, "c")).expect("it runs");
    process::signal(pid, Signal::SIGKILL);
    part("dies and is restarted", &mut || {
        wanted(node, name, |p| restarts(p, "c") == 1 && is_running(p, "c"))
    });
    node.remove(&file);
    part("goes", &mut || {
        let full = format!("{name}-{NODE_NAME}");
        let pods = node.pods()?;
        let it = pods.iter().find(|p| p.metadata.name.as_deref() == Some(&full));
        ensure!(it.is_none(), "{:?}", it.and_then(|p| p.status.as_ref()));
        Ok(())
    });
}

/// Checks that the node's health port answers ok.
pub(crate) fn healthy(node: &TestNode) -> Result<()> {
    let health = node.get(xtask::node::agent::HEALTH_PORT, "/healthz")?;
    ensure!(health.status == 200, "{health:?}");
    Ok(())
}

fn wanted(
    node: &TestNode,
    name: &str,
    check: impl Fn(&k8s_openapi::api::core::v1::Pod) -> bool,
) -> Result<()> {
    let pod = node.pod(name)?;
    ensure!(check(&pod), "{}", serde_json::to_string_pretty(&pod.status)?);
    Ok(())
}
