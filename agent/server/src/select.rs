//! Finds the pod that a person means: by uid, `NAMESPACE/NAME`, name alone, or the beginning of one
//! of these.
//!
//! Pure. A pod's whole name never counts as the beginning of another's. A name that several pods
//! have is refused with all of them; an unknown name is refused with similar names, so that the
//! next try succeeds.

use pintle_agent_config::did_you_mean;
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_api_types::pod;
use pintle_api_types::pod::containers;

/// Names listed in a refusal.
const LISTED_MAX: usize = 20;

/// Reason why no pod was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Several pods have that name.
    Ambiguous(Vec<String>),
    /// No pod has it; these are near.
    Unknown(Vec<String>),
}

/// The pod that `query` names.
pub(super) fn select<'a>(snapshot: &'a Snapshot, query: &str) -> Result<&'a PodView, Miss> {
    if let Some(view) = snapshot.pods.get(query) {
        return Ok(view);
    }
    let named = |view: &&PodView| match query.split_once('/') {
        Some((namespace, name)) => {
            pod::namespace(&view.pod) == namespace && pod::name(&view.pod) == name
        }
        None => pod::name(&view.pod) == query,
    };
    let mut found: Vec<_> = snapshot.pods.values().filter(named).collect();
    if found.is_empty() && !query.is_empty() {
        found = snapshot.pods.values().filter(|view| begins(view, query)).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(Miss::Unknown(near(snapshot, query))),
        several => Err(Miss::Ambiguous(
            several
                .iter()
                .take(LISTED_MAX)
                .map(|v| format!("{}, uid {}", full(v), uid(v)))
                .collect(),
        )),
    }
}

fn begins(view: &PodView, query: &str) -> bool {
    let name = pod::name(&view.pod);
    name.starts_with(query) || uid(view).starts_with(query) || full(view).starts_with(query)
}

/// The pod of that namespace and name; of several the one that was made last.
// k8s: pkg/kubelet/pod/pod_manager.go GetPodByName
pub(super) fn by_name<'a>(
    snapshot: &'a Snapshot,
    namespace: &str,
    name: &str,
) -> Option<&'a PodView> {
    let views = snapshot.pods.values();
    let named = views.filter(|v| pod::namespace(&v.pod) == namespace && pod::name(&v.pod) == name);
    // Without a time of creation, as for static pods, one that has not ended comes first.
    named.max_by_key(|v| {
        let over = matches!(v.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        (v.pod.metadata.creation_timestamp.clone(), !over)
    })
}

/// True if the pod has a container of that name, of any kind.
pub(super) fn has_container(view: &PodView, name: &str) -> bool {
    let spec = pod::spec(&view.pod);
    let mut ephemeral = spec.ephemeral_containers.iter().flatten();
    containers::find(spec, name).is_some() || ephemeral.any(|c| c.name == name)
}

fn near(snapshot: &Snapshot, query: &str) -> Vec<String> {
    let wanted = query.rsplit('/').next().unwrap_or(query);
    let similar = |name: &str| did_you_mean(wanted, [name].into_iter()).is_some();
    let near = snapshot.pods.values().filter(|v| {
        let name = pod::name(&v.pod);
        !wanted.is_empty() && (name.contains(wanted) || wanted.contains(name) || similar(name))
    });
    near.take(LISTED_MAX).map(full).collect()
}

/// `namespace/name`.
pub(super) fn full(view: &PodView) -> String {
    format!("{}/{}", pod::namespace(&view.pod), pod::name(&view.pod))
}

/// The pod's uid.
pub(super) fn uid(view: &PodView) -> &str {
    view.pod.metadata.uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::json;

    fn snapshot() -> Snapshot {
        let pods = [("a", "web", "1"), ("b", "web", "2"), ("a", "db-node", "3")];
        let pods = pods.iter().map(|(namespace, name, uid)| {
            view(json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}}))
        });
        snapshot_of(pods.collect())
    }

    #[test]
    fn pods_are_found_by_uid_by_name_and_by_namespace_and_name() {
        let snapshot = snapshot();
        for (query, found) in [
            ("2", "b/web"),
            ("a/web", "a/web"),
            ("db-node", "a/db-node"),
            ("db", "a/db-node"),
            ("b/", "b/web"),
        ] {
            assert_eq!(select(&snapshot, query).map(full), Ok(found.to_owned()), "{query}");
        }
    }

    #[test]
    fn of_two_pods_with_the_same_name_the_newer_is_selected() {
        let pod = |uid: &str, made: &str| {
            view(json!({"metadata": {"namespace": "a", "name": "web", "uid": uid,
                "creationTimestamp": made}}))
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
        let snapshot = snapshot_of(vec![pod("1", new), pod("2", old)]);
        assert_eq!(by_name(&snapshot, "a", "web").map(uid), Some("1"));
        assert!(by_name(&snapshot, "b", "web").is_none());
    }

    #[test]
    fn containers_of_every_kind_are_found() {
        let pod = view(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
            "initContainers": [{"name": "i", "image": "x"}],
            "containers": [{"name": "c", "image": "x"}],
            "ephemeralContainers": [{"name": "e", "image": "x"}]}}));
        let found = ["i", "c", "e", "x"].map(|name| has_container(&pod, name));
        assert_eq!(found, [true, true, true, false]);
    }

    #[test]
    fn ambiguous_pod_name_lists_the_matching_pods() {
        let listed = vec!["a/web, uid 1".to_owned(), "b/web, uid 2".to_owned()];
        assert_eq!(select(&snapshot(), "web").map(full), Err(Miss::Ambiguous(listed.clone())));
        assert_eq!(select(&snapshot(), "we").map(full), Err(Miss::Ambiguous(listed)));
    }

    #[test]
    fn unknown_pod_name_lists_similar_names() {
        for query in ["node", "dbnode", "db-nod3"] {
            let near = Miss::Unknown(vec!["a/db-node".to_owned()]);
            assert_eq!(select(&snapshot(), query).map(full), Err(near), "{query}");
        }
        assert_eq!(select(&snapshot(), "c/other").map(full), Err(Miss::Unknown(Vec::new())));
    }
}
