//! The CSINode object: the node's CSI drivers and the in-tree plugins that are migrated to CSI.
//!
//! Created once after registration; until then the node is not ready, as with the kubelet.
//! `csi_drivers` writes the drivers into it. Bounds: one request at a time, waits of `RETRY`.
// k8s: pkg/volume/csi/csi_plugin.go initializeCSINode, nodeinfomanager.go CreateCSINode

use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use pintle_api_types::jitter as pace;
use pintle_api_types::migration::{InTree, MIGRATED_PLUGINS};
use tokio::sync::watch;

use super::lease::owner;
use super::own::OwnNode;

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));

/// The reason for which the node is not ready before the CSINode exists.
pub const NOT_YET: &str = "CSINode is not yet initialized";

/// Retries until the CSINode exists. `uid` is the UID of the Node object, if it is known already;
/// `failed` receives the reason for which the node is not ready yet.
pub async fn prepare(
    client: kube::Client,
    name: &str,
    uid: Option<String>,
    mut own: watch::Receiver<OwnNode>,
    mut failed: impl FnMut(String),
) {
    let mut uid = match uid {
        Some(uid) => uid,
        None => match own.wait_for(|own| own.uid().is_some()).await {
            Ok(own) => own.uid().unwrap_or_default().to_owned(),
            Err(_) => return,
        },
    };
    let api: Api<CSINode> = Api::all(client);
    let mut wait = RETRY.0;
    while let Err(error) = ensure(&api, name, &uid).await {
        failed(format!("failed to initialize CSINode: {}", crate::words(&error)));
        tokio::time::sleep(wait).await;
        wait = pace::doubled(wait, RETRY.1);
        // The Node object may have been recreated meanwhile.
        if let Some(now) = own.borrow().uid() {
            now.clone_into(&mut uid);
        }
    }
}

/// Creates the CSINode or updates the annotation of an existing one. The CSINode of an earlier node
/// of this name is replaced, because the garbage collector would delete it.
// k8s: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go tryInitializeCSINodeWithAnnotation,
//      ensureNodeOwnsCSINode
pub(super) async fn ensure(api: &Api<CSINode>, name: &str, uid: &str) -> Result<(), kube::Error> {
    let mut found = api.get_opt(name).await?;
    if let Some(stale) = found.take_if(|node| !is_of(node, name, uid)) {
        tracing::info!("the CSINode is of an earlier node; it is made anew");
        let uid = stale.metadata.uid;
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted?),
        }
    }
    match found {
        None => api.create(&PostParams::default(), &fresh(name, uid)).await.map(drop),
        Some(mut node) => match annotate(&mut node) {
            true => api.replace(name, &PostParams::default(), &node).await.map(drop),
            false => Ok(()),
        },
    }
}

/// True when the CSINode is owned by the Node with this UID.
fn is_of(node: &CSINode, name: &str, uid: &str) -> bool {
    let mut owners = node.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "Node" && owner.name == name && owner.uid == uid)
}

fn fresh(name: &str, uid: &str) -> CSINode {
    let mut node = CSINode::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.owner_references = Some(vec![owner(name, uid)]);
    node.spec = CSINodeSpec { drivers: Vec::new() };
    annotate(&mut node);
    node
}

/// Sets the annotation; returns whether it was different.
fn annotate(node: &mut CSINode) -> bool {
    let annotations = node.metadata.annotations.get_or_insert_default();
    let plugins = InTree::ALL.map(InTree::plugin).join(",");
    let before = annotations.insert(MIGRATED_PLUGINS.to_owned(), plugins.clone());
    before.as_deref() != Some(&plugins)
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::Kind;
    use pintle_memory_api::{Refusal, Verb};
    use pintle_memory_http::SharedServer;

    use super::*;

    const PATH: &str = "/apis/storage.k8s.io/v1/csinodes/n";

    #[tokio::test]
    async fn csi_node_of_an_earlier_node_is_recreated_and_a_failure_is_reported() {
        let server = SharedServer::new(1);
        server.put(PATH, serde_json::to_value(fresh("n", "earlier")).expect("JSON"));
        // The first creation is refused.
        let error = pintle_api_types::request::ApiError {
            code: 403,
            reason: "Forbidden".to_owned(),
            message: "you may not".to_owned(),
            ..Default::default()
        };
        let kind = Some(Kind::interned("storage.k8s.io", "v1", "csinodes", "CSINode", false));
        let verb = Some(Verb::Create);
        let refusal = Refusal { verb, kind, times: Some(1), error, ..Refusal::default() };
        server.act(|server, _| server.refuse(refusal));
        let (_node, own) = watch::channel(OwnNode::default());
        let mut told = Vec::new();
        for _ in 0..2 {
            let uid = Some("now".to_owned());
            prepare(server.client(), "n", uid, own.clone(), |why| told.push(why)).await;
        }
        assert_eq!(told, ["failed to initialize CSINode: you may not"]);
        let object = server.get(PATH).expect("a CSINode");
        let object: CSINode = serde_json::from_value(object).expect("a CSINode");
        assert!(is_of(&object, "n", "now") && !is_of(&object, "n", "earlier"));
        let requests = server.requests();
        let asked: Vec<_> = requests.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(asked[..5], ["GET", "DELETE", "POST", "GET", "POST"]);
        assert_eq!(asked[5..], ["GET"], "it is ours");
    }

    #[test]
    fn a_fresh_object_needs_no_second_write() {
        let mut node = fresh("n", "u");
        assert!(!annotate(&mut node));
        let text = serde_json::to_value(&node).expect("JSON");
        assert_eq!(text["spec"], serde_json::json!({"drivers": []}));
        assert_eq!(text["metadata"]["ownerReferences"][0]["kind"], "Node");
        node.metadata.annotations = None;
        assert!(annotate(&mut node));
    }
}
