//! The CSINode object: which CSI drivers the node has, and which old plugins CSI stands in for.
//!
//! Made once after registration; until then the node is not ready, as with the kubelet. Drivers
//! are added by those who register them.
// k8s: pkg/volume/csi/csi_plugin.go initializeCSINode, nodeinfomanager.go CreateCSINode

use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec};
use kube::api::{Api, PostParams};

use super::lease::owner;

/// Why the node is not ready before this is done.
pub const NOT_YET: &str = "CSINode is not yet initialized";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Plugins that are gone from the kubelet; CSI drivers have taken over.
const PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
                       kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,\
                       kubernetes.io/vsphere-volume";

/// Makes the object, or brings the annotation of an existing one up to date.
pub async fn ensure(client: kube::Client, name: &str, uid: &str) -> Result<(), kube::Error> {
    let api: Api<CSINode> = Api::all(client);
    let found = api.get_opt(name).await?;
    match found {
        None => api.create(&PostParams::default(), &fresh(name, uid)).await.map(drop),
        Some(mut node) => match annotate(&mut node) {
            true => api.replace(name, &PostParams::default(), &node).await.map(drop),
            false => Ok(()),
        },
    }
}

fn fresh(name: &str, uid: &str) -> CSINode {
    let mut node = CSINode::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.owner_references = Some(vec![owner(name, uid)]);
    node.spec = CSINodeSpec { drivers: Vec::new() };
    annotate(&mut node);
    node
}

/// Sets the annotation; tells whether it was different.
fn annotate(node: &mut CSINode) -> bool {
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATED.to_owned(), PLUGINS.to_owned()).as_deref() != Some(PLUGINS)
}

#[cfg(test)]
mod tests {
    use super::*;

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
