//! Support of each feature gate of Kubernetes 1.36 in the controller manager.
//!
//! Output: [`GATES`], which says whether a name is known, may be switched, and has an effect.

use pintle_config::component_gates::{self, COUNT};
use pintle_config::gates::FeatureGate;
use pintle_config::status::Status::{self, Done as DONE};

const NOT_YET: Status = Status::NotYet("the feature is not built");
const ALWAYS: Status =
    Status::Never("the lease is released whenever the process ends in good order");
/// Consistency with own writes has no switch.
const CONSISTENT: Status = Status::Never("every controller waits for its own writes, by version");

/// Every gate, by name.
pub const GATES: &[FeatureGate] = &ALL;

const ALL: [FeatureGate; COUNT] = component_gates::with(&[
    ("CBORServingAndStorage", DONE),
    ("ClusterTrustBundle", NOT_YET),
    ("ComponentFlagz", DONE),
    ("ComponentStatusz", DONE),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", ALWAYS),
    ("CoordinatedLeaderElection", NOT_YET),
    ("DRADeviceTaints", NOT_YET),
    ("DRAResourcePoolStatus", NOT_YET),
    ("GenericWorkload", NOT_YET),
    ("MaxUnavailableStatefulSet", DONE),
    ("MutableSchedulingDirectivesForSuspendedJobs", DONE),
    ("PodCertificateRequest", NOT_YET),
    ("SELinuxChangePolicy", NOT_YET),
    ("StaleControllerConsistencyDaemonSet", CONSISTENT),
    ("StaleControllerConsistencyJob", CONSISTENT),
    ("StaleControllerConsistencyReplicaSet", CONSISTENT),
    ("StaleControllerConsistencyStatefulSet", CONSISTENT),
    ("StorageVersionAPI", NOT_YET),
    ("StorageVersionMigrator", NOT_YET),
]);
