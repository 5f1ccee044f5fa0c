//! Kinds by the names in paths.
//!
//! Input: group, version and plural. Output: the kind, if the server serves it: those with
//! constants in `api/types`, and those of the table. Pure.

use pintle_api_types::kind::Kind;

/// Served kinds without a constant: group, version, plural, kind, and whether it is namespaced.
const OTHERS: [(&str, &str, &str, &str, bool); 24] = [
    ("", "v1", "podtemplates", "PodTemplate", true),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false),
    ("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", false),
    ("certificates.k8s.io", "v1beta1", "clustertrustbundles", "ClusterTrustBundle", false),
    ("certificates.k8s.io", "v1beta1", "podcertificaterequests", "PodCertificateRequest", true),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true),
    ("events.k8s.io", "v1", "events", "Event", true),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", true),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", false),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", true),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", false),
    ("resource.k8s.io", "v1beta2", "devicetaintrules", "DeviceTaintRule", false),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false),
    ("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", true),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver", false),
    ("storage.k8s.io", "v1", "csinodes", "CSINode", false),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", true),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", false),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", false),
    ("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass", false),
];

/// The kind with these names.
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<Kind> {
    let is_it = |kind: &Kind| {
        (kind.group, kind.version, kind.plural) == (group, version, plural)
            && kind.fields.is_empty()
    };
    let other = |&(of_group, of_version, of_plural, kind, is_namespaced)| {
        let is_it = (of_group, of_version, of_plural) == (group, version, plural);
        is_it.then(|| Kind::interned(group, version, plural, kind, is_namespaced))
    };
    Kind::all_known().find(is_it).or_else(|| OTHERS.iter().find_map(other))
}
