//! Pages of discovery, read. Pure.
//!
//! Input: the text of `/api`, `/apis` or a group's version. Output: groups. A server without
//! aggregated discovery lists versions only; the resources of each are a further page.
// k8s: staging/src/k8s.io/api/apidiscovery/v2/types.go;
// staging/src/k8s.io/client-go/discovery/aggregated_discovery.go SplitGroupsAndResources

use pintle_api_types::kind::Kind;
use serde::Deserialize;

use super::DiscoveryError;
use super::resources::{ApiGroup, ApiResource, ApiVersion};

/// A page of groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// With their resources.
    Aggregated(Vec<ApiGroup>),
    /// Without: these versions have pages of their own.
    Legacy(Vec<GroupVersion>),
}

/// A version of a group, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupVersion {
    pub(super) group: String,
    pub(super) version: String,
}

impl GroupVersion {
    /// Its page.
    pub(super) fn path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

#[derive(Deserialize)]
struct ObjectHead {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Aggregated {
    #[serde(default)]
    items: Vec<AggregatedGroup>,
}

#[derive(Deserialize)]
struct AggregatedGroup {
    #[serde(default)]
    metadata: NamedResource,
    #[serde(default)]
    versions: Vec<AggregatedVersion>,
}

#[derive(Default, Deserialize)]
struct NamedResource {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    #[serde(default)]
    resources: Vec<AggregatedResource>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource {
    resource: String,
    #[serde(default)]
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    subresources: Vec<Subresource>,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct Subresource {
    subresource: String,
}

#[derive(Deserialize)]
struct LegacyVersions {
    #[serde(default)]
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct LegacyGroups {
    #[serde(default)]
    groups: Vec<LegacyGroup>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup {
    name: String,
    #[serde(default)]
    versions: Vec<LegacyVersion>,
    #[serde(default)]
    preferred_version: Option<LegacyVersion>,
}

#[derive(Deserialize)]
struct LegacyVersion {
    version: String,
}

#[derive(Deserialize)]
struct LegacyResources {
    #[serde(default)]
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
struct LegacyResource {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, DiscoveryError> {
    Ok(serde_json::from_str(text)?)
}

/// Reads `/api` or `/apis`.
pub(super) fn page(text: &str) -> Result<Page, DiscoveryError> {
    match read::<ObjectHead>(text)?.kind.as_str() {
        "APIGroupDiscoveryList" => {
            let list: Aggregated = read(text)?;
            Ok(Page::Aggregated(list.items.into_iter().map(aggregated).collect()))
        }
        "APIVersions" => {
            let list: LegacyVersions = read(text)?;
            let core = |version| GroupVersion { group: String::new(), version };
            Ok(Page::Legacy(list.versions.into_iter().map(core).collect()))
        }
        "APIGroupList" => {
            let list: LegacyGroups = read(text)?;
            Ok(Page::Legacy(list.groups.into_iter().flat_map(preferred_first).collect()))
        }
        other => Err(DiscoveryError::NoList(other.to_owned())),
    }
}

fn preferred_first(group: LegacyGroup) -> impl Iterator<Item = GroupVersion> {
    let preferred = group.preferred_version.map(|one| one.version);
    let mut versions: Vec<String> = group.versions.into_iter().map(|one| one.version).collect();
    versions.sort_by_key(|version| Some(version) != preferred.as_ref());
    let name = group.name;
    versions.into_iter().map(move |version| GroupVersion { group: name.clone(), version })
}

fn aggregated(group: AggregatedGroup) -> ApiGroup {
    let name = group.metadata.name;
    let versions = group.versions.into_iter().map(|version| {
        let resources = version.resources.into_iter();
        let resource = |one: AggregatedResource| {
            // Without a kind of its own it is only there for its subresources.
            let kind = one.response_kind.filter(|kind| !kind.kind.is_empty())?.kind;
            let is_namespaced = one.scope == "Namespaced";
            Some(ApiResource {
                kind: Kind::interned(&name, &version.version, &one.resource, &kind, is_namespaced),
                verbs: one.verbs,
                subresources: one.subresources.into_iter().map(|sub| sub.subresource).collect(),
            })
        };
        ApiVersion {
            resources: resources.filter_map(resource).collect(),
            failure: (version.freshness == "Stale")
                .then(|| "the server behind it does not answer discovery".to_owned()),
            name: version.version.clone(),
        }
    });
    ApiGroup { versions: versions.collect(), name: name.clone() }
}

/// Reads the page of one version.
pub(super) fn resource_list(
    text: &str,
    of: &GroupVersion,
) -> Result<Vec<ApiResource>, DiscoveryError> {
    let list: LegacyResources = read(text)?;
    let (subs, whole): (Vec<_>, Vec<_>) =
        list.resources.into_iter().partition(|one| one.name.contains('/'));
    let resource = |one: LegacyResource| {
        let below = format!("{}/", one.name);
        let subresources = subs.iter().filter_map(|sub| sub.name.strip_prefix(&below));
        ApiResource {
            kind: Kind::interned(&of.group, &of.version, &one.name, &one.kind, one.namespaced),
            subresources: subresources.map(str::to_owned).collect(),
            verbs: one.verbs,
        }
    };
    Ok(whole.into_iter().map(resource).collect())
}

/// Puts versions that were read one by one into their groups.
pub(super) fn grouped(
    read: Vec<(&GroupVersion, Result<Vec<ApiResource>, DiscoveryError>)>,
) -> Vec<ApiGroup> {
    let mut groups: Vec<ApiGroup> = Vec::new();
    for (of, read) in read {
        let (resources, failure) = match read {
            Ok(resources) => (resources, None),
            Err(problem) => (Vec::new(), Some(problem.to_string())),
        };
        let version = ApiVersion { name: of.version.clone(), resources, failure };
        match groups.iter_mut().find(|group| group.name == of.group) {
            Some(group) => group.versions.push(version),
            None => groups.push(ApiGroup { name: of.group.clone(), versions: vec![version] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::{DEPLOYMENTS, LEASES};
    use serde_json::json;

    use super::super::resources::DiscoveredGroups;
    use super::*;

    fn aggregated_page() -> String {
        let resource = |name: &str, kind: &str, verbs: &[&str]| {
            json!({"resource": name, "scope": "Namespaced", "verbs": verbs,
                "responseKind": {"group": "", "version": "", "kind": kind},
                "subresources": [{"subresource": "status", "verbs": ["get"]}]})
        };
        let all = ["create", "delete", "list", "watch"];
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [
                    resource("deployments", "Deployment", &all)]},
                {"version": "v1beta1", "freshness": "Current", "resources": [
                    resource("deployments", "Deployment", &all),
                    resource("olds", "Old", &["list"])]}]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [
                {"version": "v1beta1", "freshness": "Stale"}]},
        ]})
        .to_string()
    }

    fn aggregated_groups() -> DiscoveredGroups {
        match page(&aggregated_page()).expect("a page") {
            Page::Aggregated(groups) => DiscoveredGroups::new(groups),
            Page::Legacy(_) => panic!("it has resources"),
        }
    }

    #[test]
    fn resource_has_the_preferred_version_or_the_first_version_that_serves_it() {
        let discovery = aggregated_groups();
        let names = |verbs: &[&str]| -> Vec<String> {
            let found = discovery.preferred(verbs);
            found.map(|one| format!("{}/{}", one.kind.version, one.kind.plural)).collect()
        };
        assert_eq!(names(&["list"]), ["v1/deployments", "v1beta1/olds"]);
        assert_eq!(names(&["list", "delete"]), ["v1/deployments"]);
    }

    #[test]
    fn stale_group_is_a_failure_of_that_group_alone() {
        let discovery = aggregated_groups();
        let failed: Vec<String> = discovery.failures().map(|(name, _)| name).collect();
        assert_eq!(failed, ["metrics.k8s.io/v1beta1"]);
        let pods = Kind::interned("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", true);
        assert!(discovery.may_have(pods), "it may come back");
        assert!(discovery.may_have(DEPLOYMENTS) && !discovery.may_have(LEASES));
    }

    #[test]
    fn subresources_belong_to_their_resource() {
        let discovery = aggregated_groups();
        let first = discovery.preferred(&[]).next().expect("a resource");
        assert_eq!(
            (first.kind, first.subresources.as_slice()),
            (DEPLOYMENTS, &["status".to_owned()][..])
        );
    }

    #[test]
    fn legacy_pages_give_the_same_as_aggregated_ones() {
        let groups = json!({"kind": "APIGroupList", "groups": [{"name": "apps",
            "versions": [{"groupVersion": "apps/v1beta1", "version": "v1beta1"},
                {"groupVersion": "apps/v1", "version": "v1"}],
            "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"}}]});
        let Page::Legacy(versions) = page(&groups.to_string()).expect("a page") else {
            panic!("it has no resources");
        };
        let paths: Vec<String> = versions.iter().map(GroupVersion::path).collect();
        assert_eq!(paths, ["/apis/apps/v1", "/apis/apps/v1beta1"]);
        let resource = |name: &str, kind: &str, verbs: &[&str]| {
            let of = kind.to_owned();
            json!({"name": name, "kind": of, "namespaced": true, "verbs": verbs})
        };
        let all = ["create", "delete", "list", "watch"];
        let list = json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
            resource("deployments", "Deployment", &all),
            resource("deployments/status", "Deployment", &["get"])]});
        let read = resource_list(&list.to_string(), &versions[0]);
        let failed = Err(DiscoveryError::NoList("Status".to_owned()));
        let groups = grouped(vec![(&versions[0], read), (&versions[1], failed)]);
        let discovery = DiscoveredGroups::new(groups);
        assert_eq!(discovery.groups[0].versions[0], aggregated_groups().groups[0].versions[0]);
        let failures: Vec<_> = discovery.failures().collect();
        assert_eq!(failures, [("apps/v1beta1".to_owned(), "\"Status\" is no list of resources")]);
    }

    #[test]
    fn core_group_has_its_own_path() {
        let text = json!({"kind": "APIVersions", "versions": ["v1"]}).to_string();
        let Page::Legacy(versions) = page(&text).expect("a page") else {
            panic!("it has no resources");
        };
        assert_eq!(versions[0].path(), "/api/v1");
    }

    #[test]
    fn page_that_is_no_list_is_an_error() {
        assert!(
            page("{\"kind\": \"Status\"}").is_err_and(|error| error.to_string().contains("Status"))
        );
        assert!(page("nonsense").is_err());
    }
}
