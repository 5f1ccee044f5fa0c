//! Garbage collector: owners that go, owners that never were, and those that wait.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, Custom, is_terminating, name, owner_reference, run, uid};

const HOLD: &str = "example.com/hold";

#[test]
fn collected_objects_are_upstreams() {
    run(cases![
        a_deleted_service_takes_the_deployment_that_it_owns,
        foreground_deletion_waits_for_blocking_dependents_only,
        a_second_foreground_deletion_does_not_hang,
        an_absent_owner_is_found_by_uid_and_by_name,
        an_owner_of_another_namespace_counts_as_absent,
        a_gone_owner_is_taken_off_where_another_one_lives,
        orphans_keep_running_without_their_owner,
        custom_resources_are_collected,
        dependents_of_a_deleted_definitions_objects_are_collected,
        dependents_of_a_kind_that_is_not_served_stay,
    ]);
}

/// k#47843
async fn a_deleted_service_takes_the_deployment_that_it_owns(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"selector": {"app": "d"}, "ports": [{"port": 80}]});
    let service = t.create("Service", "s", json!({"spec": spec})).await?;
    t.deployment("d", 2, json!({})).await?;
    let owners = json!({"metadata": {"ownerReferences": [owner_reference(&service, false)]}});
    t.patch("Deployment", "d", owners).await?;
    t.eq("two pods", json!(2), async || Ok(t.pods().await?.len().into())).await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await?;
    t.delete("Service", "s", Default::default()).await?;
    t.gone("Deployment", "d").await?;
    t.eq("no set and no pod", json!([0, 0]), async || {
        Ok(json!([t.list("ReplicaSet").await?.len(), t.list("Pod").await?.len()]))
    })
    .await
}

/// k#121113
async fn foreground_deletion_waits_for_blocking_dependents_only(t: &CaseNamespace) -> Result<()> {
    let owner = t.config_map("a", &[], false).await?;
    t.config_map("blocks", &[owner_reference(&owner, true)], true).await?;
    t.config_map("free", &[owner_reference(&owner, false)], true).await?;
    t.delete_with("ConfigMap", "a", "Foreground").await?;
    t.eq("both dependents terminate", json!([true, true]), async || {
        Ok(json!([terminates(t, "blocks").await?, terminates(t, "free").await?]))
    })
    .await?;
    t.stays("the owner waits", json!(true), async || terminates(t, "a").await).await?;
    t.remove_finalizers("ConfigMap", "blocks").await?;
    t.gone("ConfigMap", "a").await?;
    t.eq("the other one was not waited for", json!(true), async || terminates(t, "free").await)
        .await?;
    t.remove_finalizers("ConfigMap", "free").await.map(drop)
}

/// k#77081
async fn a_second_foreground_deletion_does_not_hang(t: &CaseNamespace) -> Result<()> {
    let state = async || {
        let object = t.get("ConfigMap", "a").await?;
        Ok(json!([object["metadata"]["finalizers"], is_terminating(&object)]))
    };
    t.config_map("a", &[], true).await?;
    t.delete_with("ConfigMap", "a", "Foreground").await?;
    t.eq("the collector's finalizer is gone", json!([[HOLD], true]), state).await?;
    t.settles(&["ConfigMap"]).await?;
    let before = t.get("ConfigMap", "a").await?["metadata"]["resourceVersion"].clone();
    t.delete_with("ConfigMap", "a", "Foreground").await?;
    t.eq("it is gone again", json!([true, [HOLD]]), async || {
        let object = t.get("ConfigMap", "a").await?;
        let is_new = object["metadata"]["resourceVersion"] != before;
        Ok(json!([is_new, object["metadata"]["finalizers"]]))
    })
    .await?;
    t.settles(&["ConfigMap"]).await?;
    t.remove_finalizers("ConfigMap", "a").await?;
    t.gone("ConfigMap", "a").await
}

/// k#98471
async fn an_absent_owner_is_found_by_uid_and_by_name(t: &CaseNamespace) -> Result<()> {
    let owner = owner_reference(&t.config_map("a", &[], false).await?, true);
    let (mut other_uid, mut other_name) = (owner.clone(), owner.clone());
    other_uid["uid"] = "11111111-2222-3333-4444-555555555555".into();
    other_name["name"] = "b".into();
    t.config_map("right", &[owner], false).await?;
    t.config_map("wrong-uid", &[other_uid], false).await?;
    t.config_map("wrong-name", &[other_name], false).await?;
    t.gone("ConfigMap", "wrong-uid").await?;
    t.gone("ConfigMap", "wrong-name").await?;
    t.stays("the right one", json!(false), async || terminates(t, "right").await).await
}

/// k#65200, k#88097: owners are of the dependent's namespace or of none.
async fn an_owner_of_another_namespace_counts_as_absent(t: &CaseNamespace) -> Result<()> {
    let other = t.in_namespace(&format!("{}-x", t.namespace));
    other.create("Namespace", &other.namespace, json!({})).await?;
    let owner = other.config_map("a", &[], false).await?;
    let child = other.config_map("right", &[owner_reference(&owner, true)], false).await?;
    t.config_map("wrong", &[owner_reference(&owner, true)], false).await?;
    t.gone("ConfigMap", "wrong").await?;
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: {0}, name: a, uid: {1}] does not exist in namespace \
         \"{0}\"",
        t.namespace,
        uid(&owner)
    );
    t.eq("an event", json!([message]), async || {
        t.messages("OwnerRefInvalidNamespace", "wrong").await
    })
    .await?;
    let seen = async || {
        let all = [other.get("ConfigMap", "a").await?, other.get("ConfigMap", "right").await?];
        Ok(all.iter().map(uid).collect())
    };
    t.stays("those of the other namespace", json!([uid(&owner), uid(&child)]), seen).await?;
    t.delete("Namespace", &other.namespace, Default::default()).await
}

/// An object with two owners lives as long as one of them.
async fn a_gone_owner_is_taken_off_where_another_one_lives(t: &CaseNamespace) -> Result<()> {
    let first = owner_reference(&t.config_map("first", &[], false).await?, false);
    let second = owner_reference(&t.config_map("second", &[], false).await?, false);
    t.config_map("both", &[first, second], false).await?;
    let owners = async || {
        let object = t.get("ConfigMap", "both").await?;
        let owners = object["metadata"]["ownerReferences"].as_array();
        Ok(owners.into_iter().flatten().map(|owner| owner["name"].clone()).collect())
    };
    t.delete("ConfigMap", "first", Default::default()).await?;
    t.eq("the living owner is left", json!(["second"]), owners).await?;
    t.settles(&["ConfigMap"]).await?;
    t.delete("ConfigMap", "second", Default::default()).await?;
    t.gone("ConfigMap", "both").await
}

async fn orphans_keep_running_without_their_owner(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 2, json!({})).await?;
    t.eq("two pods", json!(2), async || Ok(t.pods().await?.len().into())).await?;
    let before = t.pod_names().await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await?;
    t.delete_with("Deployment", "d", "Orphan").await?;
    t.gone("Deployment", "d").await?;
    t.eq("its set has no owner", json!([Value::Null]), async || {
        let sets = t.list("ReplicaSet").await?;
        Ok(sets.iter().map(|set| set["metadata"]["ownerReferences"].clone()).collect())
    })
    .await?;
    t.stays("its pods", json!(before), async || Ok(t.pod_names().await?.into())).await
}

/// A kind that appears while the collector runs, and that only discovery knows.
async fn custom_resources_are_collected(t: &CaseNamespace) -> Result<()> {
    let crates = Custom { kind: "Crate", plural: "crates", group: "cases.pintle.test" };
    crates.define(t).await?;
    let owner = crates.create(t, t, "a").await?;
    t.config_map("child", &[owner_reference(&owner, true)], false).await?;
    let map = t.config_map("map", &[], false).await?;
    let owned = json!({"metadata": {"ownerReferences": [owner_reference(&map, true)]}});
    t.create("Crate", "b", owned).await?;
    t.stays("both dependents", json!(["child", "b"]), async || {
        let both = [t.get("ConfigMap", "child").await?, t.get("Crate", "b").await?];
        Ok(both.iter().map(name).collect())
    })
    .await?;
    t.delete("Crate", "a", Default::default()).await?;
    t.delete("ConfigMap", "map", Default::default()).await?;
    t.gone("ConfigMap", "child").await?;
    t.gone("Crate", "b").await?;
    t.delete("CustomResourceDefinition", &crates.definition(), Default::default()).await
}

/// Objects are deleted with their definition, and their dependents after them. The definition comes
/// back with the same name.
async fn dependents_of_a_deleted_definitions_objects_are_collected(
    t: &CaseNamespace,
) -> Result<()> {
    let parcels = Custom { kind: "Parcel", plural: "parcels", group: "parcels.pintle.test" };
    for round in 0..2 {
        parcels.define(t).await?;
        let owner = parcels.create(t, t, &format!("owner-{round}")).await?;
        let child = format!("child-{round}");
        t.config_map(&child, &[owner_reference(&owner, true)], false).await?;
        t.stays("the dependent", json!(child), async || {
            Ok(name(&t.get("ConfigMap", &child).await?).into())
        })
        .await?;
        let definition = parcels.definition();
        t.delete("CustomResourceDefinition", &definition, Default::default()).await?;
        t.gone("CustomResourceDefinition", &definition).await?;
        t.gone("ConfigMap", &child).await?;
    }
    Ok(())
}

/// Objects of a kind that is not served any more are still stored.
async fn dependents_of_a_kind_that_is_not_served_stay(t: &CaseNamespace) -> Result<()> {
    let chests = Custom { kind: "Chest", plural: "chests", group: "chests.pintle.test" };
    let definition = chests.definition();
    chests.define(t).await?;
    let owner = chests.create(t, t, "owner").await?;
    t.config_map("child", &[owner_reference(&owner, true)], false).await?;
    let child = async || Ok(name(&t.get("ConfigMap", "child").await?).into());
    t.stays("the dependent", json!("child"), child).await?;
    let mut versions =
        t.get("CustomResourceDefinition", &definition).await?["spec"]["versions"].take();
    let mut serve = async |is_served: bool| {
        versions[0]["served"] = is_served.into();
        let patch = json!({"spec": {"versions": versions}});
        t.patch("CustomResourceDefinition", &definition, patch).await
    };
    serve(false).await?;
    t.eq("the kind is not served", Value::Null, async || t.get("Chest", "owner").await).await?;
    t.config_map("late", &[owner_reference(&owner, true)], false).await?;
    t.stays("the dependent", json!("child"), child).await?;
    serve(true).await?;
    t.eq("the owner is there", json!("owner"), async || {
        Ok(name(&t.get("Chest", "owner").await?).into())
    })
    .await?;
    t.stays("the dependent", json!("child"), child).await?;
    t.delete("Chest", "owner", Default::default()).await?;
    t.gone("ConfigMap", "child").await?;
    t.gone("ConfigMap", "late").await?;
    t.delete("CustomResourceDefinition", &definition, Default::default()).await
}

async fn terminates(t: &CaseNamespace, map: &str) -> Result<Value> {
    let object = t.get("ConfigMap", map).await?;
    Ok(if object.is_null() { Value::Null } else { is_terminating(&object).into() })
}
