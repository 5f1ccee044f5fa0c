//! Service accounts, their tokens, and the certificates that pods trust.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, annotation, run, uid};

const MAP: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";

#[test]
fn accounts_and_roots_are_upstreams() {
    run(cases![
        a_changed_root_certificate_is_restored,
        a_deleted_default_account_comes_back,
        a_secret_gets_the_token_of_its_account,
    ]);
}

/// k#100926
async fn a_changed_root_certificate_is_restored(t: &CaseNamespace) -> Result<()> {
    let data = async || Ok(t.get("ConfigMap", MAP).await?["data"].clone());
    let text = async || Ok(annotation(&t.get("ConfigMap", MAP).await?, DESCRIPTION));
    let is_there = async || {
        let seen = data().await?;
        let text = seen["ca.crt"].as_str().unwrap_or_default();
        Ok((text.starts_with("-----BEGIN CERTIFICATE-----"), seen))
    };
    let right = t.until("a certificate", "PEM", is_there).await?;
    let described = text().await?;
    t.eq("it is described", json!(true), async || Ok(described.is_string().into())).await?;
    t.patch("ConfigMap", MAP, json!({"data": {"ca.crt": "x", "more": "y"}})).await?;
    t.eq("the data are back", right.clone(), data).await?;
    t.patch("ConfigMap", MAP, json!({"metadata": {"annotations": {DESCRIPTION: null}}})).await?;
    t.eq("the description is back", described, text).await?;
    t.patch("ConfigMap", MAP, json!({"metadata": {"annotations": {DESCRIPTION: "mine"}}})).await?;
    t.stays("another description", json!("mine"), text).await?;
    let before = uid(&t.get("ConfigMap", MAP).await?);
    t.delete("ConfigMap", MAP, Default::default()).await?;
    t.eq("the map is back", json!([true, right]), async || {
        let map = t.get("ConfigMap", MAP).await?;
        Ok(json!([uid(&map) != before, map["data"]]))
    })
    .await?;
    t.settles(&["ConfigMap"]).await
}

fn token(account: &str, uid: &str) -> Value {
    let notes = json!({"kubernetes.io/service-account.name": account,
        "kubernetes.io/service-account.uid": uid});
    json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": notes}})
}

/// k#40754
async fn a_deleted_default_account_comes_back(t: &CaseNamespace) -> Result<()> {
    let account =
        async || -> Result<Value> { Ok(uid(&t.get("ServiceAccount", "default").await?).into()) };
    let before: Value = account().await?;
    t.delete("ServiceAccount", "default", Default::default()).await?;
    t.until("another account", "another UID", async || {
        let seen: Value = account().await?;
        Ok((seen != "" && seen != before, seen))
    })
    .await?;
    let old = before.as_str().unwrap_or_default();
    t.create("Secret", "s", token("default", old)).await?;
    t.gone("Secret", "s").await?;
    t.settles(&["ServiceAccount", "Secret"]).await
}

async fn a_secret_gets_the_token_of_its_account(t: &CaseNamespace) -> Result<()> {
    let account = t.create("ServiceAccount", "robot", json!({})).await?;
    t.create("Secret", "s", token("robot", &uid(&account))).await?;
    t.eq("token, root and namespace", json!([true, true, true]), async || {
        let data = &t.get("Secret", "s").await?["data"];
        let has = |key: &str| data[key].as_str().is_some_and(|text| !text.is_empty());
        Ok(json!([has("token"), has("ca.crt"), has("namespace")]))
    })
    .await?;
    t.settles(&["ServiceAccount", "Secret"]).await?;
    t.delete("ServiceAccount", "robot", Default::default()).await?;
    t.gone("Secret", "s").await
}
