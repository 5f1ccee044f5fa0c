//! `--shadow-first` on a real API server: controllers that delete wait, all others act at once.
//!
//! Input: a manager with a short wait, an object to collect, a namespace to delete. Output: both
//! exist until the log says that the wait is over, and are deleted then. The duration is not
//! checked.

use std::cell::Cell;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::kit::{Case, DeleteHow};
use crate::server::{ManagerProcess, PORT, Server};

/// Log line of the manager when the held back controllers begin to act.
const ACTING: &str = "acting after";

#[test]
fn what_deletes_acts_only_after_its_time_in_shadow() {
    let tested = std::env::var("PINTLE_CONTROLLERS").unwrap_or_default();
    if tested.ends_with("kube-controller-manager") {
        return println!("upstream's has no such flag");
    }
    let server = Server::start("first");
    let mut args = server.args();
    args.push("--shadow-first=20s".to_owned());
    let manager = server.start_tested("manager", &args);
    server.wait_healthy(PORT);
    server.with_client(async |client| {
        let case = Case::begin(client, "first".to_owned()).await?;
        waits_and_acts(&case, &manager).await
    });
    assert!(manager.end(Signal::SIGTERM).success());
}

async fn waits_and_acts(t: &Case, manager: &ManagerProcess) -> Result<()> {
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
