//! Feature gates of Kubernetes 1.36 and their effect on the scheduler.
//!
//! Output: [`GATES`]: for each name, is it known, may it be switched, does it have an effect?

use pintle_config::component_gates::{self, COUNT};
use pintle_config::gates::FeatureGate;
use pintle_config::status::Status::{self, Done as DONE};

const NOT_YET: Status = Status::NotYet("the feature is not built");
const ALWAYS: Status = Status::Never("built, and always on: there is no older way to go back to");

/// Every gate, by name.
pub const GATES: &[FeatureGate] = &ALL;

const ALL: [FeatureGate; COUNT] = component_gates::with(&[
    ("CBORServingAndStorage", DONE),
    ("ClearingNominatedNodeNameAfterBinding", ALWAYS),
    ("ComponentFlagz", DONE),
    ("ComponentStatusz", DONE),
    ("DRAAdminAccess", ALWAYS),
    ("DRAConsumableCapacity", ALWAYS),
    ("DRADeviceBindingConditions", ALWAYS),
    ("DRADeviceTaintRules", DONE),
    ("DRADeviceTaints", ALWAYS),
    ("DRAExtendedResource", ALWAYS),
    ("DRAListTypeAttributes", DONE),
    ("DRANodeAllocatableResources", DONE),
    ("DRAPartitionableDevices", ALWAYS),
    ("DRAPrioritizedList", ALWAYS),
    ("DRAResourceClaimDeviceStatus", ALWAYS),
    ("DRASchedulerFilterTimeout", ALWAYS),
    ("DRAWorkloadResourceClaims", DONE),
    ("DynamicResourceAllocation", ALWAYS),
    ("GangScheduling", DONE),
    ("GenericWorkload", DONE),
    ("ImageVolume", ALWAYS),
    ("InPlacePodLevelResourcesVerticalScaling", ALWAYS),
    ("InPlacePodVerticalScaling", ALWAYS),
    ("MatchLabelKeysInPodAffinity", ALWAYS),
    ("MatchLabelKeysInPodTopologySpread", DONE),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", DONE),
    ("MutableCSINodeAllocatableCount", NOT_YET),
    ("NodeDeclaredFeatures", ALWAYS),
    ("NodeInclusionPolicyInPodTopologySpread", ALWAYS),
    ("NominatedNodeNameForExpectation", NOT_YET),
    ("OpportunisticBatching", ALWAYS),
    ("PodLevelResources", ALWAYS),
    ("PodObservedGenerationTracking", DONE),
    ("PodSchedulingReadiness", ALWAYS),
    ("RecoverVolumeExpansionFailure", NOT_YET),
    ("SchedulerAsyncAPICalls", NOT_YET),
    ("SchedulerAsyncPreemption", ALWAYS),
    ("SchedulerPopFromBackoffQ", ALWAYS),
    ("SchedulerQueueingHints", ALWAYS),
    ("SeparateTaintEvictionController", ALWAYS),
    ("SidecarContainers", ALWAYS),
    ("StorageCapacityScoring", NOT_YET),
    ("TaintTolerationComparisonOperators", DONE),
    ("TopologyAwareWorkloadScheduling", DONE),
    ("VolumeLimitScaling", NOT_YET),
    ("WorkloadAwarePreemption", DONE),
    ("WorkloadWithJob", NOT_YET),
]);
