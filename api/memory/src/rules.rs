//! Rules of the API server that differ by kind.
//!
//! Input: a kind. Output: its [`KindRules`], from one table for Kubernetes' own kinds; every other
//! kind is a custom resource. Rows cite nothing: each is a kind's `strategy.go` and `storage.go`.
// k8s: pkg/registry/*/*/strategy.go, pkg/registry/*/*/storage/storage.go

use pintle_api_types::kind::Kind;

/// Which changes raise `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GenerationRule {
    /// The kind has no generation.
    Nothing,
    /// It is 1 for ever.
    Once,
    /// Changes of the spec, or of the field of this name.
    Field(&'static str),
    /// Changes of the spec and of annotations, which a Deployment copies to its ReplicaSets.
    SpecAndAnnotations,
    /// Changes of anything but metadata and status.
    Content,
    /// Changes of anything but metadata, and of labels.
    ContentAndLabels,
}

/// The fields besides the spec that an update of the status may not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusKeeps {
    /// The kind has no such subresource.
    None,
    /// Metadata may change.
    Spec,
    /// These fields of the metadata may not change.
    Fields(&'static [&'static str]),
    /// Labels, annotations, finalizers and owners may not change, nor anything but the status.
    Everything,
}

/// The default propagation of a deletion to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependents {
    /// The garbage collector deletes them later.
    Deleted,
    /// They are orphaned.
    Orphaned,
    /// The kind is not garbage collected.
    Unsupported,
}

/// The rules of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KindRules {
    pub(crate) counts: GenerationRule,
    pub(crate) status: StatusKeeps,
    pub(crate) dependents: Dependents,
    /// The kind has the subresource `scale`.
    pub(crate) has_scale: bool,
    /// An update that states no version is allowed.
    pub(crate) updates_any_version: bool,
    /// An update of an object that is absent creates it.
    pub(crate) creates_on_update: bool,
    /// A deletion is answered with the object instead of a `Status`.
    pub(crate) answers_with_object: bool,
    /// A custom resource: kept as it is written.
    pub(crate) is_custom: bool,
    /// Numbers of the status that are written although they are 0.
    pub(crate) status_zeroes: &'static [&'static str],
}

const PLAIN: KindRules = KindRules {
    counts: GenerationRule::Nothing,
    status: StatusKeeps::None,
    dependents: Dependents::Deleted,
    has_scale: false,
    updates_any_version: true,
    creates_on_update: false,
    answers_with_object: false,
    is_custom: false,
    status_zeroes: &[],
};
const SPEC: GenerationRule = GenerationRule::Field("spec");
/// A kind with spec, status and generation.
const WORKLOAD: KindRules = KindRules { counts: SPEC, status: StatusKeeps::Spec, ..PLAIN };
const CUSTOM: KindRules = KindRules {
    counts: GenerationRule::Content,
    status: StatusKeeps::Everything,
    updates_any_version: false,
    is_custom: true,
    ..PLAIN
};
const WITH_STATUS: KindRules = KindRules { status: StatusKeeps::Spec, ..PLAIN };
const CLASS: KindRules = KindRules { answers_with_object: true, ..PLAIN };
const ROLE: KindRules = KindRules { creates_on_update: true, ..PLAIN };

/// The rules of a kind.
pub(crate) fn of(kind: Kind) -> KindRules {
    match kind.group {
        "" => core(kind.plural),
        "apps" | "batch" | "policy" | "autoscaling" => workloads(kind.plural),
        _ => others(kind),
    }
}

fn core(plural: &str) -> KindRules {
    match plural {
        "pods" => KindRules {
            status: StatusKeeps::Fields(&["ownerReferences"]),
            answers_with_object: true,
            ..WORKLOAD
        },
        "replicationcontrollers" => KindRules {
            dependents: Dependents::Orphaned,
            has_scale: true,
            status_zeroes: &["replicas"],
            ..WORKLOAD
        },
        "nodes" => WITH_STATUS,
        "namespaces" | "resourcequotas" | "persistentvolumes" | "persistentvolumeclaims" => {
            KindRules { answers_with_object: true, ..WITH_STATUS }
        }
        "services" => {
            KindRules { creates_on_update: true, answers_with_object: true, ..WITH_STATUS }
        }
        "serviceaccounts" => CLASS,
        "podtemplates" => KindRules { counts: GenerationRule::Field("template"), ..CLASS },
        "events" => {
            KindRules { dependents: Dependents::Unsupported, creates_on_update: true, ..PLAIN }
        }
        "endpoints" | "limitranges" => KindRules { creates_on_update: true, ..PLAIN },
        _ => PLAIN,
    }
}

fn workloads(plural: &str) -> KindRules {
    match plural {
        "deployments" => KindRules {
            counts: GenerationRule::SpecAndAnnotations,
            status: StatusKeeps::Fields(&["labels"]),
            has_scale: true,
            ..WORKLOAD
        },
        "replicasets" => KindRules { has_scale: true, status_zeroes: &["replicas"], ..WORKLOAD },
        "statefulsets" => KindRules {
            has_scale: true,
            status_zeroes: &["replicas", "availableReplicas"],
            ..WORKLOAD
        },
        "daemonsets" => KindRules {
            status_zeroes: &[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
            ],
            ..WORKLOAD
        },
        "jobs" => KindRules { dependents: Dependents::Orphaned, ..WORKLOAD },
        "cronjobs" => WORKLOAD,
        "poddisruptionbudgets" => KindRules {
            updates_any_version: false,
            status_zeroes: &[
                "disruptionsAllowed",
                "currentHealthy",
                "desiredHealthy",
                "expectedPods",
            ],
            ..WORKLOAD
        },
        "horizontalpodautoscalers" => {
            KindRules { status_zeroes: &["desiredReplicas"], ..WITH_STATUS }
        }
        _ => PLAIN,
    }
}

fn others(kind: Kind) -> KindRules {
    let everything = KindRules { status: StatusKeeps::Everything, ..PLAIN };
    match (kind.group, kind.plural) {
        ("coordination.k8s.io", _) => {
            KindRules { updates_any_version: false, creates_on_update: true, ..PLAIN }
        }
        ("discovery.k8s.io", _) => KindRules { counts: GenerationRule::ContentAndLabels, ..PLAIN },
        ("events.k8s.io", _) => core("events"),
        ("rbac.authorization.k8s.io", _) => ROLE,
        ("node.k8s.io", _) => KindRules { updates_any_version: false, ..ROLE },
        ("networking.k8s.io", "ingresses") => WORKLOAD,
        ("networking.k8s.io", "servicecidrs") => everything,
        ("networking.k8s.io", _) => KindRules { counts: SPEC, ..PLAIN },
        ("storage.k8s.io", "volumeattachments") => {
            KindRules { updates_any_version: false, answers_with_object: true, ..everything }
        }
        ("storage.k8s.io", "csistoragecapacities") => {
            KindRules { updates_any_version: false, ..PLAIN }
        }
        ("storage.k8s.io", "csidrivers" | "csinodes") => {
            KindRules { updates_any_version: false, ..CLASS }
        }
        ("storage.k8s.io", _) => CLASS,
        ("resource.k8s.io", "resourceclaims") => {
            KindRules { answers_with_object: true, ..everything }
        }
        ("resource.k8s.io", "devicetaintrules") => {
            KindRules { counts: SPEC, answers_with_object: true, ..everything }
        }
        ("resource.k8s.io", "resourceslices" | "deviceclasses") => {
            KindRules { counts: SPEC, ..CLASS }
        }
        ("resource.k8s.io", _) => CLASS,
        ("scheduling.k8s.io", "priorityclasses") => {
            KindRules { counts: GenerationRule::Once, ..PLAIN }
        }
        ("flowcontrol.apiserver.k8s.io", _) => WORKLOAD,
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            KindRules { counts: SPEC, updates_any_version: false, ..everything }
        }
        ("admissionregistration.k8s.io", _) => {
            KindRules { counts: GenerationRule::Content, updates_any_version: false, ..PLAIN }
        }
        ("certificates.k8s.io", "certificatesigningrequests") => WITH_STATUS,
        ("apiextensions.k8s.io" | "apiregistration.k8s.io", _) => {
            KindRules { updates_any_version: false, ..everything }
        }
        _ => CUSTOM,
    }
}

/// The first part of an object's key in etcd, which some errors name.
// k8s: pkg/kubeapiserver/default_storage_factory_builder.go SpecialDefaultResourcePrefixes
pub(crate) fn storage_prefix(kind: Kind) -> String {
    match (kind.group, kind.plural) {
        ("", "replicationcontrollers") => "controllers".to_owned(),
        ("", "endpoints") => "services/endpoints".to_owned(),
        ("", "services") => "services/specs".to_owned(),
        ("", "nodes") => "minions".to_owned(),
        ("networking.k8s.io", "ingresses") => "ingress".to_owned(),
        (group, plural) if of(kind).is_custom => format!("{group}/{plural}"),
        (_, plural) => plural.to_owned(),
    }
}
