//! What controllers read of the objects of each kind.
//!
//! One file a kind or family. A struct has the field's names of Kubernetes, and only those fields
//! that some controller reads; the rest of the text is skipped while it is decoded.

mod claim;
mod daemon_set;
mod job;
mod metadata;
mod namespace;
mod pod;
mod replica;
mod service_account;

pub use job::{
    CronJob, CronJobSpec, CronJobStatus, ExitCodeRule, Job, JobCondition, JobPodSpec,
    JobPodTemplate, JobSpec, JobStatus, PodConditionRule, PodFailurePolicy, PodFailureRule,
    SuccessPolicy, SuccessRule, UncountedPods,
};
pub use metadata::Metadata;
pub use namespace::{Namespace, NamespaceSpec, NamespaceStatus, RootCaConfigMap};
mod node;
mod revision;
mod stateful_set;
pub use claim::PersistentVolumeClaim;
pub use daemon_set::{DaemonSet, DaemonSetSpec, DaemonSetStatus, DaemonTemplate};
pub use node::{Node, NodeSpec, Taint};
pub use pod::{
    ClaimVolume, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus, Terminated,
};
pub use replica::{
    Deployment, DeploymentSpec, ReplicaCondition, ReplicaSet, ReplicaSpec, ReplicaStatus,
    ReplicationController, RollingUpdate, Strategy, TemplateFacts, TemplateMeta,
};
pub use revision::ControllerRevision;
pub use service_account::{ServiceAccount, TokenData, TokenSecret};
pub use stateful_set::{
    ClaimTemplate, RetentionPolicy, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};

/// Implements [`crate::kept::Facts`] for a struct with a field `metadata`.
macro_rules! facts {
    ($type:ident, $kind:ident, whole: $whole:literal) => {
        impl $crate::kept::Facts for $type {
            const KIND: pintle_api_types::kind::Kind = pintle_api_types::kind::$kind;
            const IS_WHOLE: bool = $whole;
            fn metadata(&self) -> &$crate::meta::Meta {
                &self.metadata
            }
        }
    };
}
pub(crate) use facts;
