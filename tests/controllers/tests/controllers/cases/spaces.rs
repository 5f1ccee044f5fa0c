//! Namespaces that end, and quotas of namespaces.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, Custom, NamespaceClient, condition, run, template};

const FIELDS: [&str; 3] = ["status", "reason", "message"];

#[test]
fn namespaces_and_quotas_are_upstreams() {
    run(cases![
        a_held_namespace_says_what_holds_it,
        pods_go_before_everything_else_of_a_namespace,
        objects_of_a_new_kind_go_with_their_namespace,
        a_quota_of_pods_leaves_out_finished_ones,
        a_terminating_scope_is_about_deadlines,
        counts_of_objects_follow_deletions,
        custom_and_changed_quotas_are_counted_again,
    ]);
}

async fn namespace_condition(t: &NamespaceClient, kind: &str) -> Result<Value> {
    Ok(condition(&t.get("Namespace", &t.namespace).await?, kind, &FIELDS))
}

async fn begin_other(t: &CaseNamespace) -> Result<NamespaceClient> {
    let other = t.in_namespace(&format!("{}-x", t.namespace));
    other.create("Namespace", &other.namespace, json!({})).await?;
    Ok(other)
}

/// k#82084
async fn a_held_namespace_says_what_holds_it(t: &CaseNamespace) -> Result<()> {
    let other = begin_other(t).await?;
    other.config_map("a", &[], true).await?;
    other.config_map("b", &[], true).await?;
    other.create("Secret", "s", json!({})).await?;
    t.delete("Namespace", &other.namespace, Default::default()).await?;
    let message = "Some resources are remaining: configmaps. has 2 resource instances";
    let content = json!(["True", "SomeResourcesRemain", message]);
    t.eq("content", content, async || {
        namespace_condition(&other, "NamespaceContentRemaining").await
    })
    .await?;
    let message = "Some content in the namespace has finalizers remaining: example.com/hold in 2 \
                   resource instances";
    let held = json!(["True", "SomeFinalizersRemain", message]);
    t.eq("finalizers", held, async || {
        namespace_condition(&other, "NamespaceFinalizersRemaining").await
    })
    .await?;
    for (kind, reason) in [
        ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered"),
        ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions"),
        ("NamespaceDeletionContentFailure", "ContentDeleted"),
    ] {
        let fine = async || Ok(namespace_condition(&other, kind).await?[1].clone());
        t.eq(kind, json!(reason), fine).await?;
    }
    t.eq("no secret", json!(0), async || Ok(other.list("Secret").await?.len().into())).await?;
    other.remove_finalizers("ConfigMap", "a").await?;
    other.remove_finalizers("ConfigMap", "b").await?;
    t.gone("Namespace", &other.namespace).await
}

/// While a pod is left, nothing else is deleted, and the conditions report no other kinds.
async fn pods_go_before_everything_else_of_a_namespace(t: &CaseNamespace) -> Result<()> {
    let (other, node) = (begin_other(t).await?, t.node("n", Value::Null).await?);
    let _ = other.create("ServiceAccount", "default", json!({})).await;
    let slow = template("a", "good", json!({"terminationGracePeriodSeconds": 30}));
    other.create("Pod", "a", json!({"spec": slow["spec"]})).await?;
    other.bind("a", &node).await?;
    other.config_map("map", &[], false).await?;
    t.delete("Namespace", &other.namespace, Default::default()).await?;
    t.eq("the pod terminates", json!(true), async || {
        Ok(other.get("Pod", "a").await?["metadata"]["deletionTimestamp"].is_string().into())
    })
    .await?;
    let removed = json!(["False", "ContentRemoved", "All content successfully removed"]);
    t.eq("conditions", removed, async || {
        namespace_condition(&other, "NamespaceContentRemaining").await
    })
    .await?;
    t.stays("the map", json!("map"), async || {
        Ok(other.get("ConfigMap", "map").await?["metadata"]["name"].clone())
    })
    .await?;
    other.remove_pod("a").await?;
    t.gone("Namespace", &other.namespace).await
}

async fn used(t: &CaseNamespace, quota: &str) -> Result<Value> {
    Ok(t.get("ResourceQuota", quota).await?["status"]["used"].clone())
}

/// The kind is defined just before the deletion: no object outlives its namespace.
async fn objects_of_a_new_kind_go_with_their_namespace(t: &CaseNamespace) -> Result<()> {
    let baskets = Custom { kind: "Basket", plural: "baskets", group: "baskets.pintle.test" };
    let other = begin_other(t).await?;
    baskets.define(t).await?;
    baskets.create(t, &other, "b").await?;
    t.delete("Namespace", &other.namespace, Default::default()).await?;
    t.gone("Namespace", &other.namespace).await?;
    t.eq("the basket", Value::Null, async || other.get("Basket", "b").await).await?;
    t.delete("CustomResourceDefinition", &baskets.definition(), Default::default()).await
}

/// Creates a quota and waits until all of it is counted.
async fn quota(t: &CaseNamespace, name: &str, hard: &Value, scope: Option<&str>) -> Result<()> {
    let scopes: Vec<&str> = scope.into_iter().collect();
    let spec = json!({"hard": hard, "scopes": scopes});
    t.create("ResourceQuota", name, json!({"spec": spec})).await?;
    let keys = |value: &Value| -> Value {
        value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
    };
    t.eq("it is counted", keys(hard), async || Ok(keys(&used(t, name).await?))).await
}

async fn create_pod(t: &CaseNamespace, name: &str, cpu: &str, spec: Value) -> Result<()> {
    let mut pod = template(name, "good", spec);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    t.create("Pod", name, json!({"spec": pod["spec"]})).await.map(drop)
}

/// k#117663
async fn a_quota_of_pods_leaves_out_finished_ones(t: &CaseNamespace) -> Result<()> {
    quota(t, "q", &json!({"pods": "9", "count/pods": "9", "requests.cpu": "2"}), None).await?;
    create_pod(t, "a", "100m", json!({})).await?;
    create_pod(t, "b", "250m", json!({})).await?;
    let is = async |pods: &str, objects: &str, cpu: &str| {
        let want = json!({"pods": pods, "count/pods": objects, "requests.cpu": cpu});
        t.eq("the use", want, async || used(t, "q").await).await
    };
    is("2", "2", "350m").await?;
    t.finish("a", 0).await?;
    is("1", "2", "250m").await?;
    t.settles(&["ResourceQuota"]).await?;
    t.remove_pod("a").await?;
    is("1", "1", "250m").await
}

/// k#135411
async fn a_terminating_scope_is_about_deadlines(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    quota(t, "yes", &json!({"pods": "9"}), Some("Terminating")).await?;
    quota(t, "no", &json!({"pods": "9"}), Some("NotTerminating")).await?;
    create_pod(t, "a", "100m", json!({"activeDeadlineSeconds": 900})).await?;
    create_pod(t, "b", "100m", json!({"terminationGracePeriodSeconds": 120})).await?;
    create_pod(t, "c", "100m", json!({})).await?;
    let both = async || Ok(json!([used(t, "yes").await?["pods"], used(t, "no").await?["pods"]]));
    t.eq("one and two", json!(["1", "2"]), both).await?;
    t.bind("b", &node).await?;
    t.delete("Pod", "b", Default::default()).await?;
    t.stays("a deletion changes nothing", json!(["1", "2"]), both).await?;
    t.patch("Pod", "c", json!({"spec": {"activeDeadlineSeconds": 600}})).await?;
    t.eq("a later deadline", json!(["2", "1"]), both).await?;
    t.remove_pod("b").await?;
    t.eq("it is gone", json!(["2", "0"]), both).await?;
    t.settles(&["ResourceQuota"]).await
}

/// k#39599; the namespace's root certificates are a ConfigMap, too.
async fn counts_of_objects_follow_deletions(t: &CaseNamespace) -> Result<()> {
    t.eq("the root certificates", json!(1), async || Ok(t.list("ConfigMap").await?.len().into()))
        .await?;
    let kinds = [
        "configmaps",
        "secrets",
        "replicationcontrollers",
        "services",
        "services.nodeports",
        "count/deployments.apps",
    ];
    let hard = kinds.iter().map(|kind| ((*kind).to_owned(), json!("9"))).collect();
    quota(t, "q", &Value::Object(hard), None).await?;
    let is = async |want: [&str; 6]| {
        t.eq("the use", json!(want), async || {
            let used = used(t, "q").await?;
            Ok(kinds.iter().map(|kind| used[*kind].clone()).collect())
        })
        .await
    };
    is(["1", "0", "0", "0", "0", "0"]).await?;
    t.config_map("a", &[], false).await?;
    t.create("Secret", "a", json!({})).await?;
    let pods = json!({"replicas": 0, "selector": {"app": "a"},
        "template": template("a", "good", json!({}))});
    t.create("ReplicationController", "a", json!({"spec": pods})).await?;
    let ports = json!([{"port": 80, "name": "x"}, {"port": 81, "name": "y"}]);
    let service = json!({"type": "NodePort", "selector": {"app": "a"}, "ports": ports});
    t.create("Service", "a", json!({"spec": service})).await?;
    t.deployment("a", 0, json!({})).await?;
    is(["2", "1", "1", "1", "2", "1"]).await?;
    t.patch("Service", "a", json!({"spec": {"type": "ClusterIP"}})).await?;
    is(["2", "1", "1", "1", "0", "1"]).await?;
    for kind in ["ConfigMap", "Secret", "ReplicationController", "Service", "Deployment"] {
        t.delete_with(kind, "a", "Background").await?;
    }
    is(["1", "0", "0", "0", "0", "0"]).await?;
    t.settles(&["ResourceQuota"]).await
}

/// k#65107, k#71450: objects created before their quota, and a quota that changes.
async fn custom_and_changed_quotas_are_counted_again(t: &CaseNamespace) -> Result<()> {
    t.create("Secret", "a", json!({})).await?;
    t.create("Secret", "b", json!({})).await?;
    quota(t, "q", &json!({"count/secrets": "9"}), None).await?;
    t.eq("two secrets", json!({"count/secrets": "2"}), async || used(t, "q").await).await?;
    let hard = json!({"hard": {"count/secrets": null, "count/leases.coordination.k8s.io": "3"}});
    t.patch("ResourceQuota", "q", json!({"spec": hard})).await?;
    let leases = |count: &str| json!({"count/leases.coordination.k8s.io": count});
    t.eq("no lease", leases("0"), async || used(t, "q").await).await?;
    t.create("Lease", "l", json!({"spec": {}})).await?;
    t.eq("a lease", leases("1"), async || used(t, "q").await).await?;
    t.settles(&["ResourceQuota"]).await
}
