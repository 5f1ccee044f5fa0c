//! Kinds that cannot be read: they must not block controllers of other kinds.
//!
//! Input: an API service without a server behind it, and a kind whose conversion fails. Output: the
//! garbage collector and quotas keep working, a namespace's status says why its deletion waits, and
//! it ends when the cause is gone. On a server of its own, because every namespace waits. k#72244,
//! k#75788, k#101078, k#110720.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::kit::{CaseNamespace, condition, owner_reference};
use crate::server::{ControlPlane, PORT};

const DEFINITION: &str = "crates.cases.pintle.test";
const SERVICE: &str = "v1.broken.pintle.test";

#[test]
fn broken_kinds_do_not_block_controllers_of_other_kinds() {
    let server = ControlPlane::start("broken");
    let args = server.args();
    let mut manager = server.start_tested("manager", &args);
    server.wait_healthy(PORT);
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client.clone(), "broken".to_owned()).await?;
        break_conversion(&case).await?;
        break_service(&case).await
    });
    // A manager that starts now cannot list these kinds at all.
    assert!(manager.end(nix::sys::signal::Signal::SIGTERM).success());
    manager = server.start_tested("second", &args);
    server.wait_healthy(PORT);
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "works".to_owned()).await?;
        collects_and_counts(&case).await?;
        namespace_waits_and_ends(&case).await
    });
    assert!(manager.ended().is_none(), "{}", manager.log_end());
}

/// A kind of two versions, with an object of the old one, without a server for its conversion.
async fn break_conversion(t: &CaseNamespace) -> Result<()> {
    let schema = json!({"openAPIV3Schema": {"type": "object",
        "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, storage: bool| {
        let mut version = json!({"name": name, "served": true, "schema": schema});
        version["storage"] = json!(storage);
        version
    };
    let names = json!({"plural": "crates", "singular": "crate", "kind": "Crate"});
    let spec = json!({"group": "cases.pintle.test", "scope": "Namespaced", "names": names,
        "versions": [version("v1", true)]});
    t.create("CustomResourceDefinition", DEFINITION, json!({"spec": spec})).await?;
    t.until("the kind is served", "a crate", async || {
        Ok((true, t.create("Crate", "a", json!({})).await?))
    })
    .await?;
    let config = json!({"url": "https://127.0.0.1:1/convert"});
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": config});
    let spec = json!({"versions": [version("v2", true), version("v1", false)],
        "conversion": {"strategy": "Webhook", "webhook": webhook}});
    t.patch("CustomResourceDefinition", DEFINITION, json!({"spec": spec})).await?;
    t.until("it cannot be read", "an error", async || {
        let read = t.get("CrateOfV2", "a").await;
        Ok((read.is_err(), json!(read.is_ok())))
    })
    .await
    .map(drop)
}

async fn break_service(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"group": "broken.pintle.test", "version": "v1", "groupPriorityMinimum": 100,
        "versionPriority": 100, "insecureSkipTLSVerify": true,
        "service": {"name": "nowhere", "namespace": "default"}});
    t.create("APIService", SERVICE, json!({"spec": spec})).await.map(drop)
}

async fn collects_and_counts(t: &CaseNamespace) -> Result<()> {
    let owner = t.config_map("a", &[], false).await?;
    t.config_map("b", &[owner_reference(&owner, true)], false).await?;
    t.create("ResourceQuota", "q", json!({"spec": {"hard": {"configmaps": "9"}}})).await?;
    let used = async || {
        let quota = t.get("ResourceQuota", "q").await?;
        Ok(quota["status"]["used"]["configmaps"].clone())
    };
    t.eq("with the root certificates", json!("3"), used).await?;
    t.delete("ConfigMap", "a", Default::default()).await?;
    t.gone("ConfigMap", "b").await?;
    t.eq("the root certificates are left", json!("1"), used).await
}

async fn namespace_waits_and_ends(t: &CaseNamespace) -> Result<()> {
    let other = t.in_namespace("waits");
    other.create("Namespace", "waits", json!({})).await?;
    other.create("Secret", "s", json!({})).await?;
    t.delete("Namespace", "waits", Default::default()).await?;
    let condition_of = async |kind: &str| -> Result<Value> {
        Ok(condition(&t.get("Namespace", "waits").await?, kind, &["status", "reason", "message"]))
    };
    let failure = t
        .until("a condition", "DiscoveryFailed", async || {
            let seen = condition_of("NamespaceDeletionDiscoveryFailure").await?;
            Ok((seen[1] == "DiscoveryFailed", seen))
        })
        .await?;
    let message = failure[2].as_str().unwrap_or_default();
    ensure!(message.contains("broken.pintle.test/v1"), "{message}");
    t.eq("the rest is deleted", json!(0), async || Ok(other.list("Secret").await?.len().into()))
        .await?;
    t.delete("APIService", SERVICE, Default::default()).await?;
    t.until("a condition", "ContentDeletionFailed", async || {
        let seen = condition_of("NamespaceDeletionContentFailure").await?;
        Ok((seen[1] == "ContentDeletionFailed", seen))
    })
    .await?;
    // No object of the kind can be read, so none can be deleted before its conversion works.
    let conversion = json!({"strategy": "None", "webhook": null});
    let patch = json!({"spec": {"conversion": conversion}});
    t.patch("CustomResourceDefinition", DEFINITION, patch).await?;
    t.gone("Namespace", "waits").await
}
