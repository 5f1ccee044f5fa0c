//! The fields of each kind's objects that controllers read.
//!
//! One file a kind or family. A struct has the field's names of Kubernetes, and only those fields
//! that some controller reads; the rest of the text is skipped while it is decoded.

mod charge;
mod claim;
mod daemon_set;
mod device;
mod job;
mod metadata;
mod namespace;
mod node;
mod pod;
mod quota;
mod replica;
mod revision;
mod service;
mod service_account;
mod stateful_set;

pub use charge::PodCharge;
pub use claim::{ClaimSpec, ClaimStatus, PersistentVolumeClaim};
pub use daemon_set::{DaemonSet, DaemonSetSpec, DaemonSetStatus, DaemonTemplate};
pub use device::{DeviceClass, DeviceClassSpec, DeviceRequest, ExactRequest, ResourceClaim};
pub use job::{
    CronJob, CronJobSpec, CronJobStatus, ExitCodeRule, Job, JobCondition, JobPodSpec,
    JobPodTemplate, JobSpec, JobStatus, PodConditionRule, PodFailurePolicy, PodFailureRule,
    SuccessPolicy, SuccessRule, UncountedPods,
};
pub use metadata::Metadata;
pub use namespace::{Namespace, NamespaceSpec, NamespaceStatus, RootCaConfigMap};
pub use node::{Node, NodeSpec, Taint};
pub use pod::{
    ClaimVolume, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus, Terminated,
};
pub use quota::{QuotaSpec, QuotaStatus, ResourceQuota, ScopeRequirement};
pub use replica::{
    Deployment, DeploymentSpec, ReplicaCondition, ReplicaSet, ReplicaSpec, ReplicaStatus,
    ReplicationController, RollingUpdate, Strategy, TemplateFacts, TemplateMeta,
};
pub use revision::ControllerRevision;
pub use service::{Service, ServicePort, ServiceSpec};
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
