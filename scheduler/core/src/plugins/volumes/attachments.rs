//! VolumeAttachments by node.
//!
//! Input: attachments added and deleted. Output: those of a node. Owner: the volumes. Bounds: two
//! entries an attachment. Why by node: each query is about one node, and a cluster has very many
//! attachments.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::storage::v1::VolumeAttachment;

/// All attachments.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    all: HashMap<Rc<str>, Rc<VolumeAttachment>>,
    by_node: HashMap<String, HashSet<Rc<str>>>,
}

impl Attachments {
    /// Adds or updates an attachment.
    pub(super) fn insert(&mut self, attachment: VolumeAttachment) {
        let name: Rc<str> = attachment.metadata.name.as_deref().unwrap_or_default().into();
        self.remove(&name);
        let node = attachment.spec.node_name.clone();
        self.by_node.entry(node).or_default().insert(Rc::clone(&name));
        self.all.insert(name, Rc::new(attachment));
    }

    /// Removes an attachment.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(old) = self.all.remove(name) else { return };
        if let Some(names) = self.by_node.get_mut(&old.spec.node_name) {
            names.remove(name);
            if names.is_empty() {
                self.by_node.remove(&old.spec.node_name);
            }
        }
    }

    /// Returns the names of all attachments.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(|name| &**name)
    }

    /// Returns the attachments of a node.
    pub(super) fn on_node(&self, node: &str) -> impl Iterator<Item = &VolumeAttachment> {
        let names = self.by_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.all.get(name)).map(|attachment| &**attachment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_attachment_counts_only_on_its_last_node() {
        let attachment = |node: &str| {
            let mut attachment = VolumeAttachment::default();
            attachment.metadata.name = Some("x".to_owned());
            attachment.spec.node_name = node.to_owned();
            attachment
        };
        let mut all = Attachments::default();
        all.insert(attachment("a"));
        all.insert(attachment("b"));
        assert_eq!((all.on_node("a").count(), all.on_node("b").count()), (0, 1));
        assert_eq!(all.keys().collect::<Vec<_>>(), ["x"]);
        all.remove("x");
        assert!(all.on_node("b").next().is_none() && all.by_node.is_empty());
    }
}
