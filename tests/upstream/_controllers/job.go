// What upstream's Job controller gets when its tests are pointed at another program: laid into
// k8s.io/kubernetes/pkg/controller/job when the tests are built.
package job

import "fmt"

// elsewhereSettings is the variable that tells the program the waits and limits of this process, which
// tests change.
func elsewhereSettings() string {
	return fmt.Sprintf(
		"PINTLE_JOB_SETTINGS=batch_period_ms=%d,failure_backoff_ms=%d,failure_backoff_max_ms=%d,uncounted_max=%d,pods_per_sync_max=%d",
		SyncJobBatchPeriod.Milliseconds(), DefaultJobPodFailureBackOff.Milliseconds(), MaxJobPodFailureBackOff.Milliseconds(),
		MaxUncountedPods, MaxPodCreateDeletePerSync,
	)
}
