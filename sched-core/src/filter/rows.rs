//! Rows that match node selectors of other objects: volumes, topologies, capacities.
//!
//! Input: terms, of which one has to match. Output: rows. Owner: pure but for the interner. Bounds:
//! the terms' own size and a few words a row.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use super::node;
use crate::bits::Bits;
use crate::filter::node::NodeScratch;
use crate::program::node_terms::{is_empty_term, parse_term};
use crate::snapshot::Cluster;

impl Cluster {
    /// Returns the nodes that match one of the terms. An empty or invalid term matches no node.
    // k8s: component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go NodeSelector.Match
    pub fn rows_matching(&mut self, terms: &[NodeSelectorTerm]) -> Bits {
        let mut found = Bits::default();
        found.reset(self.view.rows);
        let mut scratch = NodeScratch::default();
        for term in terms.iter().filter(|term| !is_empty_term(term)) {
            let Ok(term) = parse_term(term, "", &mut self.interner) else { continue };
            let mut rows = Bits::default();
            rows.copy_from(&self.view.valid, self.view.rows);
            node::matching(&self.view, &term, &mut scratch, &mut rows);
            found.or(&rows);
        }
        found
    }

    /// Returns the nodes with labels that meet all of these.
    pub fn rows_with(&mut self, requirements: Vec<NodeSelectorRequirement>) -> Bits {
        if requirements.is_empty() {
            return self.all_rows();
        }
        let term = NodeSelectorTerm { match_expressions: Some(requirements), match_fields: None };
        self.rows_matching(&[term])
    }

    /// All nodes.
    #[must_use]
    pub fn all_rows(&self) -> Bits {
        let mut rows = Bits::default();
        rows.copy_from(&self.view.valid, self.view.rows);
        rows
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Profile;
    use crate::snapshot::tests::node_with;

    #[test]
    fn one_selector_term_must_match_and_an_empty_term_never_matches() {
        let mut cluster = Cluster::new(Profile::default());
        for (at, zone) in ["a", "b", "c"].into_iter().enumerate() {
            let node =
                node_with(&format!("n{at}"), |n| n["metadata"]["labels"]["zone"] = json!(zone));
            cluster.set_node(&node).expect("a node");
        }
        let term = |value: serde_json::Value| -> NodeSelectorTerm {
            serde_json::from_value(value).expect("a term")
        };
        let zone = |op: &str, values: &[&str]| {
            term(json!({"matchExpressions": [{"key": "zone", "operator": op, "values": values}]}))
        };
        let named = term(json!({"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}));
        for (terms, want) in [
            (vec![], vec![]),
            (vec![term(json!({}))], vec![]),
            (vec![zone("In", &["a", "b"])], vec![0, 1]),
            (vec![zone("In", &["a"]), named], vec![0, 2]),
            (vec![zone("NotIn", &["a"])], vec![1, 2]),
            (vec![zone("Near", &["a"])], vec![]),
        ] {
            assert_eq!(cluster.rows_matching(&terms).iter().collect::<Vec<_>>(), want, "{terms:?}");
        }
        assert_eq!(cluster.rows_with(Vec::new()).count(), 3);
    }
}
