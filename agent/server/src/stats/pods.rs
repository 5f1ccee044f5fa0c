//! What each pod takes of memory, disk and process numbers, for eviction to weigh.
//!
//! Input: a snapshot, the sweeper, the volumes' counter, the runtime's word on writable layers.
//! Output: `PodUse` by uid. Nothing is read unless somebody asks, and everything that a pod can make
//! slow has a thread of its own or a place in the pool. What is not known is absent.
// k8s: pkg/kubelet/eviction/helpers.go podDiskUsage, podMemoryUsage

