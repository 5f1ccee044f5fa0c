//! Custom kinds, which only discovery knows.

use anyhow::Result;
use serde_json::{Value, json};

use super::CaseNamespace;
use super::requests::NamespaceClient;

/// A custom kind of one version.
pub struct Custom {
    /// Its kind.
    pub kind: &'static str,
    /// Its resource.
    pub plural: &'static str,
    /// Its group.
    pub group: &'static str,
}

impl Custom {
    /// The name of its definition.
    pub fn definition(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Creates its definition.
    pub async fn define(&self, t: &NamespaceClient) -> Result<()> {
        let schema = json!({"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let names = json!({"plural": self.plural, "kind": self.kind});
        let spec = json!({"group": self.group, "scope": "Namespaced", "names": names,
            "versions": [version]});
        let name = self.definition();
        t.create("CustomResourceDefinition", &name, json!({"spec": spec})).await?;
        Ok(())
    }

    /// Creates an object in the namespace of `of` as soon as the kind is served.
    pub async fn create(
        &self,
        t: &CaseNamespace,
        of: &NamespaceClient,
        name: &str,
    ) -> Result<Value> {
        t.until("the kind is served", "an object", async || {
            Ok((true, of.create(self.kind, name, json!({})).await?))
        })
        .await
    }
}
