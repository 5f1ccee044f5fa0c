//! Names of objects within their kind.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// `namespace/name`, or `name` of an object of the whole cluster.
// k8s: staging/src/k8s.io/client-go/tools/cache/store.go MetaNamespaceKeyFunc
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// The key of a name in a namespace, which may be empty.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(match namespace.is_empty() {
            true => name.into(),
            false => format!("{namespace}/{name}").into(),
        })
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Empty for objects of the whole cluster.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_key_has_namespace_and_name_or_only_a_name() {
        for (namespace, name, whole) in [("a", "b", "a/b"), ("", "b", "b")] {
            let key = ObjectKey::new(namespace, name);
            assert_eq!((key.as_str(), key.namespace(), key.name()), (whole, namespace, name));
        }
    }
}
