package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// devices is the name of an extended resource that a class has without saying so.
const devices = "deviceclass.resource.kubernetes.io/"

// pod makes up a pod; some run, some have ended, some are being deleted or resized.
func (w *world) pod(name string) {
	pod := &corev1.Pod{ObjectMeta: w.meta(name)}
	pod.Status.Phase = pick(w.chance, corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning,
		corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown, "")
	for i := range 1 + w.upTo(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, w.container(fmt.Sprintf("c%d", i)))
	}
	for i := range w.upTo(3) {
		container := w.container(fmt.Sprintf("i%d", i))
		if w.oneIn(2) {
			container.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	}
	if w.oneIn(5) {
		pod.Spec.Overhead = corev1.ResourceList{"cpu": w.amount("cpu"), "memory": w.amount("memory")}
	}
	if w.oneIn(5) {
		pod.Spec.Resources = ptr.To(w.resources("cpu", "memory", "hugepages-2Mi"))
	}
	if w.oneIn(5) {
		w.resize(pod)
	}
	if w.oneIn(4) {
		pod.Spec.ActiveDeadlineSeconds = ptr.To(int64(w.upTo(100)))
	}
	if w.oneIn(2) {
		pod.Spec.PriorityClassName = pick(w.chance, "high", "low", "middle")
	}
	if w.oneIn(5) {
		pod.Spec.Affinity = w.affinity()
	}
	if w.oneIn(6) {
		// Past the end of the grace period by both clocks that upstream reads, or without an end.
		at := metav1.NewTime(now.Add(-time.Hour))
		pod.DeletionTimestamp = &at
		if !w.oneIn(3) {
			pod.DeletionGracePeriodSeconds = ptr.To(int64(30))
		}
	}
	if w.oneIn(5) {
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: fmt.Sprintf("devices-%d", w.upTo(3)),
		}
	}
	if w.oneIn(3) {
		pod.Status.QOSClass = pick(w.chance, corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed)
	}
	w.add("pods", pod)
}

func (w *world) container(name string) corev1.Container {
	container := corev1.Container{Name: name}
	if !w.oneIn(4) {
		container.Resources = w.resources("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu",
			devices+"gold", "example.com/other")
	}
	return container
}

func (w *world) resources(names ...corev1.ResourceName) corev1.ResourceRequirements {
	resources := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, name := range names {
		if w.oneIn(2) {
			resources.Requests[name] = w.amount(name)
		}
		if w.oneIn(3) {
			resources.Limits[name] = w.amount(name)
		}
	}
	return resources
}

func (w *world) amount(name corev1.ResourceName) resource.Quantity {
	switch name {
	case "cpu":
		if w.isMixed && w.oneIn(8) {
			return resource.MustParse("1e1")
		}
		return resource.MustParse(pick(w.chance, "100m", "1", "0.5", "1500m", "2", "0", "250m"))
	case "memory", "ephemeral-storage", "hugepages-2Mi":
		if w.isMixed {
			return resource.MustParse(pick(w.chance, "1Gi", "64Mi", "1G", "100M", "1000", "0.1Gi", "1e6", "1500m"))
		}
		if w.isBinary {
			return resource.MustParse(pick(w.chance, "1Gi", "64Mi", "1.5Gi", "2Mi", "100Ki"))
		}
		return resource.MustParse(pick(w.chance, "1G", "100M", "1000", "1500m", "0"))
	}
	return resource.MustParse(pick(w.chance, "1", "2", "4"))
}

// resize has containers of the pod be resized: what they have differs from what they want.
func (w *world) resize(pod *corev1.Pod) {
	status := func(name string) corev1.ContainerStatus {
		has := corev1.ContainerStatus{Name: name}
		if w.oneIn(3) {
			has.AllocatedResources = corev1.ResourceList{"cpu": w.amount("cpu"), "memory": w.amount("memory")}
		}
		if !w.oneIn(3) {
			has.Resources = ptr.To(w.resources("cpu", "memory"))
		}
		return has
	}
	for _, container := range pod.Spec.Containers {
		if !w.oneIn(4) {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status(container.Name))
		}
	}
	for _, container := range pod.Spec.InitContainers {
		if w.oneIn(2) {
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status(container.Name))
		}
	}
	if w.oneIn(2) {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type:   corev1.PodResizePending,
			Status: corev1.ConditionTrue,
			Reason: pick(w.chance, corev1.PodReasonInfeasible, corev1.PodReasonDeferred),
		}}
	}
}

func (w *world) affinity() *corev1.Affinity {
	term := corev1.PodAffinityTerm{TopologyKey: "zone"}
	switch w.upTo(3) {
	case 0:
		term.Namespaces = []string{"other"}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{}
	}
	required := []corev1.PodAffinityTerm{term}
	preferred := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}
	switch w.upTo(4) {
	case 0:
		return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: required}}
	case 1:
		return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: preferred}}
	case 2:
		return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: preferred}}
}

// deviceClaim makes up a claim of devices; some were made for the extended resources of a pod.
func (w *world) deviceClaim(name string) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: w.meta(name)}
	if w.oneIn(2) {
		pod := fmt.Sprintf("pod-%d", w.upTo(3))
		owner := metav1.OwnerReference{
			APIVersion: pick(w.chance, "v1", "v1", "v1", "example.com/v1"), Kind: "Pod", Name: pod,
			UID: types.UID("uid-" + pod), Controller: ptr.To(!w.oneIn(8)),
		}
		if w.oneIn(8) {
			owner.UID = "uid-of-another"
		}
		claim.OwnerReferences = []metav1.OwnerReference{owner}
		claim.Annotations = map[string]string{
			resourceapi.ExtendedResourceClaimAnnotation: pick(w.chance, "true", "true", "true", "false"),
		}
	}
	for i := range w.upTo(4) {
		request := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i)}
		switch w.upTo(5) {
		case 0:
		case 1:
			for j := range 1 + w.upTo(3) {
				mode, count := w.allocation()
				request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
					Name: fmt.Sprint(j), DeviceClassName: pick(w.chance, "gold", "plain"), AllocationMode: mode, Count: count,
				})
			}
		default:
			mode, count := w.allocation()
			request.Exactly = &resourceapi.ExactDeviceRequest{
				DeviceClassName: pick(w.chance, "gold", "plain"), AllocationMode: mode, Count: count,
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, request)
	}
	w.add("resourceclaims", claim)
}

// allocation makes up how many devices are asked for.
func (w *world) allocation() (resourceapi.DeviceAllocationMode, int64) {
	switch w.upTo(6) {
	case 0:
		return resourceapi.DeviceAllocationModeAll, 0
	case 1:
		return "Unknown", 3
	}
	return resourceapi.DeviceAllocationModeExactCount, int64(w.upTo(4))
}
