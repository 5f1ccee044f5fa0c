//! `--shadow-first` on a real API server: controllers that delete wait, all others act at once.
//!
//! Input: a manager with a short wait, an object to collect, a namespace to delete. Output: both
//! exist until the log says that the wait is over, and are deleted then. Differences are planted,
//! each of which has the wait begin again; beside upstream's collector, which acts meanwhile, no
//! deletion is withdrawn. The upper bound of the duration is not checked.

use std::cell::Cell;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::kit::{CaseNamespace, DeleteHow, owner_reference};
use crate::server::{ControlPlane, ManagerProcess, PORT};

/// Log line of the manager when the held back controllers begin to act.
const ACTING: &str = "acting after";
/// Parts of the log lines of differences that restart the wait. What ours alone would delete is
/// logged, too, and expected while no other manager acts.
const WITHDRAWN: &str = "the shadow would have, and later not,";
const THEIRS: &str = "the acting manager alone did";
/// How long the held back controllers have to be clean.
const WAIT_SECONDS: f64 = 20.0;
/// The same beside upstream's manager, which has to delete a namespace meanwhile.
const LONG_WAIT: &str = "--shadow-first=45s";
const OTHER_PORT: u16 = 10261;

fn is_upstreams_tested() -> bool {
    let tested = std::env::var("PINTLE_CONTROLLERS").unwrap_or_default();
    tested.ends_with("kube-controller-manager")
}

/// A server, and ours with a short wait on it; `None` where upstream's is tested.
fn start(purpose: &str) -> Option<(ControlPlane, ManagerProcess)> {
    if is_upstreams_tested() {
        println!("upstream's has no such flag");
        return None;
    }
    let server = ControlPlane::start(purpose);
    let mut args = server.args();
    args.push(format!("--shadow-first={WAIT_SECONDS}s"));
    let manager = server.start_tested("manager", &args);
    server.wait_healthy(PORT);
    Some((server, manager))
}

#[test]
fn deleting_controllers_act_only_after_their_shadow_period() {
    let Some((server, manager)) = start("first") else { return };
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "first".to_owned()).await?;
        waits_and_acts(&case, &manager).await
    });
    assert!(manager.end(Signal::SIGTERM).success());
}

async fn waits_and_acts(t: &CaseNamespace, manager: &ManagerProcess) -> Result<()> {
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "never"});
    t.config_map("dependent", &[owner], false).await?;
    let other = t.in_namespace("goes");
    t.create("Namespace", "goes", json!({})).await?;
    other.config_map("content", &[], false).await?;
    // The other controllers act, or this would wait for ever.
    t.eq("its account", json!("default"), async || {
        Ok(other.get("ServiceAccount", "default").await?["metadata"]["name"].clone())
    })
    .await?;
    t.delete("Namespace", "goes", DeleteHow::default()).await?;
    let early = Cell::new(false);
    t.until("both are gone", "gone", async || {
        let left = [t.get("ConfigMap", "dependent").await?, t.get("Namespace", "goes").await?];
        // An object that is gone by now was deleted after that log line.
        let is_acting = manager.log().contains(ACTING);
        early.set(early.get() || !is_acting && left.iter().any(Value::is_null));
        Ok((left.iter().all(Value::is_null), json!([is_acting, left])))
    })
    .await?;
    ensure!(!early.get(), "deleted in shadow\n{}", manager.log_end());
    Ok(())
}

#[test]
fn difference_restarts_the_shadow_period() {
    let Some((server, manager)) = start("differs") else { return };
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "differs".to_owned()).await?;
        differs_and_waits_again(&case, &manager).await
    });
    assert!(manager.end(Signal::SIGTERM).success());
}

/// An owner that does not exist.
fn never(api_version: &str, kind: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": "never", "uid": format!("no-{kind}")})
}

/// An object would have been collected and gets another owner: the collector was wrong. Another is
/// deleted as upstream's collector would, which ours would not have done, because the API server
/// has no such kind.
async fn differs_and_waits_again(t: &CaseNamespace, manager: &ManagerProcess) -> Result<()> {
    let owner = never("v1", "ConfigMap");
    for name in ["dependent", "mistake"] {
        t.config_map(name, std::slice::from_ref(&owner), false).await?;
    }
    t.config_map("foreign", &[never("none.pintle.test/v1", "Nothing")], false).await?;
    seen(t, manager, "the shadow alone would delete configmaps differs/mistake").await?;
    t.patch("ConfigMap", "mistake", json!({"metadata": {"ownerReferences": null}})).await?;
    seen(t, manager, &format!("{WITHDRAWN} delete configmaps differs/mistake")).await?;
    t.delete("ConfigMap", "foreign", DeleteHow::default()).await?;
    seen(t, manager, &format!("{THEIRS} delete configmaps differs/foreign")).await?;
    ensure!(!t.get("ConfigMap", "dependent").await?.is_null(), "{}", manager.log_end());
    t.gone("ConfigMap", "dependent").await?;
    let log = manager.log();
    let differs: Vec<f64> = log.lines().filter(|line| is_difference(line)).map(seconds).collect();
    let acts = log.lines().filter(|line| line.contains(ACTING));
    let acts: Vec<f64> = acts.map(seconds).collect();
    ensure!(differs.len() == 2 && acts.len() == 1, "{differs:?} {acts:?}\n{log}");
    let gap = (acts[0] - differs[1]).rem_euclid(DAY_SECONDS);
    ensure!((WAIT_SECONDS - 0.1..DAY_SECONDS / 2.0).contains(&gap), "it acts after {gap} s\n{log}");
    t.stays("what was no garbage", json!("mistake"), async || {
        Ok(t.get("ConfigMap", "mistake").await?["metadata"]["name"].clone())
    })
    .await
}

fn is_difference(line: &str) -> bool {
    line.contains(WITHDRAWN) || line.contains(THEIRS)
}

/// Waits until the log has a difference, before anything acts.
async fn seen(t: &CaseNamespace, manager: &ManagerProcess, difference: &str) -> Result<()> {
    let log = t.until("a difference", difference, async || {
        let log = manager.log();
        Ok((log.contains(difference), log.into()))
    });
    let log = log.await?;
    ensure!(!log.as_str().unwrap_or_default().contains(ACTING), "it acts already: {log}");
    Ok(())
}

const DAY_SECONDS: f64 = 86_400.0;

/// The time of day of a line of the log: `I1121 12:00:00.123456 ..`.
fn seconds(line: &str) -> f64 {
    let time = line.split(' ').nth(1).unwrap_or_default();
    let parts = time.split(':').map(|part| part.parse::<f64>().expect("a number"));
    parts.fold(0.0, |sum, part| sum * 60.0 + part)
}

#[test]
fn shadow_beside_upstreams_collector_withdraws_no_deletion_and_then_acts() {
    if is_upstreams_tested() {
        return println!("upstream's has no such flag");
    }
    let server = ControlPlane::start("agrees");
    let mut args = server.args();
    args.push(LONG_WAIT.to_owned());
    let names = "garbage-collector-controller,namespace-controller";
    let others = ["--leader-elect=false".to_owned(), format!("--secure-port={OTHER_PORT}")];
    let mut of_upstream = server.args();
    of_upstream.retain(|arg| !arg.starts_with("--controllers="));
    of_upstream.extend(others.into_iter().chain([format!("--controllers={names}")]));
    let upstream = server.start_upstream("upstream", &of_upstream);
    server.wait_healthy(OTHER_PORT);
    let manager = server.start_tested("manager", &args);
    server.wait_healthy(PORT);
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "agrees".to_owned()).await?;
        collects(&case, "goes").await?;
        let log = manager.log();
        ensure!(!log.contains(ACTING), "upstream's took too long\n{log}");
        Ok(())
    });
    assert!(!upstream.end(Signal::SIGKILL).success());
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "alone".to_owned()).await?;
        let acts = async || Ok((manager.log().contains(ACTING), manager.log_end().into()));
        case.until("it acts", ACTING, acts).await?;
        collects(&case, "goes-late").await?;
        let log = manager.log();
        // Upstream's may have deleted an object before ours had read it live.
        ensure!(!log.contains(WITHDRAWN), "{log}");
        Ok(())
    });
    assert!(manager.end(Signal::SIGTERM).success());
}

/// An object without its owner and a namespace with content are gone after a while, by whichever
/// manager.
async fn collects(t: &CaseNamespace, namespace: &str) -> Result<()> {
    t.config_map("dependent", &[never("v1", "ConfigMap")], false).await?;
    let owner = t.config_map("owner", &[], false).await?;
    t.config_map("owned", &[owner_reference(&owner, true)], false).await?;
    let other = t.in_namespace(namespace);
    t.create("Namespace", namespace, json!({})).await?;
    other.config_map("content", &[], false).await?;
    t.delete_with("ConfigMap", "owner", "Foreground").await?;
    t.delete("Namespace", namespace, DeleteHow::default()).await?;
    for gone in ["dependent", "owner", "owned"] {
        t.gone("ConfigMap", gone).await?;
    }
    t.gone("Namespace", namespace).await
}
