package main

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// namespace is the quota's; there are objects in another one, too.
const namespace = "n"

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// kinds are those of the objects, by their plurals.
var kinds = map[string]schema.GroupVersionKind{
	"configmaps":             {Version: "v1", Kind: "ConfigMap"},
	"deviceclasses":          {Group: "resource.k8s.io", Version: "v1", Kind: "DeviceClass"},
	"jobs":                   {Group: "batch", Version: "v1", Kind: "Job"},
	"persistentvolumeclaims": {Version: "v1", Kind: "PersistentVolumeClaim"},
	"pods":                   {Version: "v1", Kind: "Pod"},
	"replicationcontrollers": {Version: "v1", Kind: "ReplicationController"},
	"resourceclaims":         {Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
	"resourcequotas":         {Version: "v1", Kind: "ResourceQuota"},
	"secrets":                {Version: "v1", Kind: "Secret"},
	"services":               {Version: "v1", Kind: "Service"},
}

// plurals are those of kinds, in an order.
var plurals = []string{
	"configmaps", "deviceclasses", "jobs", "persistentvolumeclaims", "pods", "replicationcontrollers",
	"resourceclaims", "resourcequotas", "secrets", "services",
}

// limited are names in a quota; those at the end are counted by nothing.
var limited = []corev1.ResourceName{
	"pods", "count/pods", "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory",
	"requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
	"hugepages-2Mi", "requests.hugepages-2Mi", "requests.example.com/gpu",
	"requests.deviceclass.resource.kubernetes.io/gold", "requests.deviceclass.resource.kubernetes.io/plain",
	"gold.deviceclass.resource.k8s.io/devices", "plain.deviceclass.resource.k8s.io/devices",
	"count/resourceclaims.resource.k8s.io", "services", "services.nodeports", "services.loadbalancers",
	"count/services", "persistentvolumeclaims", "requests.storage", "count/persistentvolumeclaims",
	"fast.storageclass.storage.k8s.io/requests.storage",
	"fast.storageclass.storage.k8s.io/persistentvolumeclaims",
	"configmaps", "count/configmaps", "secrets", "count/secrets", "resourcequotas",
	"count/resourcequotas", "replicationcontrollers", "count/replicationcontrollers", "count/jobs.batch",
	"requests.example.com/other", "example.com/gpu", "count/widgets.example.com", "limits.example.com/gpu",
}

// world makes up a cluster from a seed.
type world struct {
	chance
	version  int
	objects  []known
	unlisted []string
	isMixed  bool
	// isBinary says which notation amounts have where there is but one.
	isBinary bool
}

func newWorld(seed uint64) *world {
	w := &world{chance: newChance(seed), version: 100, unlisted: []string{}}
	w.isMixed, w.isBinary = w.oneIn(4), w.oneIn(2)
	return w
}

func (w *world) meta(name string) metav1.ObjectMeta {
	w.version++
	created := metav1.NewTime(now.Add(-time.Duration(w.upTo(4)) * time.Hour))
	place := namespace
	if w.oneIn(8) {
		place = "other"
	}
	return metav1.ObjectMeta{
		Name: name, Namespace: place, UID: types.UID("uid-" + name),
		ResourceVersion: fmt.Sprint(w.version), CreationTimestamp: created,
	}
}

func (w *world) add(plural string, object runtime.Object) {
	w.objects = append(w.objects, known{plural, object})
}

// cluster makes up a quota and what it counts.
func (w *world) cluster() {
	w.classes()
	for i := range w.upTo(6) {
		w.pod(fmt.Sprintf("pod-%d", i))
	}
	for i := range w.upTo(4) {
		w.service(fmt.Sprintf("service-%d", i))
	}
	for i := range w.upTo(4) {
		w.volumeClaim(fmt.Sprintf("volume-%d", i))
	}
	for i := range w.upTo(4) {
		w.deviceClaim(fmt.Sprintf("devices-%d", i))
	}
	for i := range w.upTo(3) {
		w.add("configmaps", &corev1.ConfigMap{ObjectMeta: w.meta(fmt.Sprintf("config-%d", i))})
	}
	for i := range w.upTo(3) {
		w.add("secrets", &corev1.Secret{ObjectMeta: w.meta(fmt.Sprintf("secret-%d", i))})
	}
	for i := range w.upTo(3) {
		w.add("jobs", &batchv1.Job{ObjectMeta: w.meta(fmt.Sprintf("job-%d", i))})
	}
	if w.oneIn(2) {
		w.add("replicationcontrollers", &corev1.ReplicationController{ObjectMeta: w.meta("rc")})
	}
	if w.oneIn(6) {
		w.unlisted = append(w.unlisted, pick(w.chance, "configmaps", "jobs", "pods", "services", "secrets",
			"persistentvolumeclaims", "resourceclaims"))
	}
	w.quota()
}

// quota makes up the quota, of which some were counted before.
func (w *world) quota() {
	quota := &corev1.ResourceQuota{ObjectMeta: w.meta("q")}
	quota.Namespace = namespace
	quota.Spec.Hard = w.limits(1 + w.upTo(10))
	for range w.upTo(3) {
		if w.oneIn(2) {
			break
		}
		quota.Spec.Scopes = append(quota.Spec.Scopes, pick(w.chance, corev1.ResourceQuotaScopeTerminating,
			corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
			corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
			corev1.ResourceQuotaScopeCrossNamespacePodAffinity, corev1.ResourceQuotaScopeVolumeAttributesClass))
	}
	if w.oneIn(4) {
		quota.Spec.ScopeSelector = &corev1.ScopeSelector{}
		for range 1 + w.upTo(2) {
			quota.Spec.ScopeSelector.MatchExpressions = append(
				quota.Spec.ScopeSelector.MatchExpressions, w.requirement())
		}
	}
	switch w.upTo(4) {
	case 0:
	case 1:
		quota.Status.Hard, quota.Status.Used = quota.Spec.Hard.DeepCopy(), corev1.ResourceList{}
		for name := range quota.Spec.Hard {
			quota.Status.Used[name] = resource.MustParse("1")
		}
	default:
		quota.Status.Hard, quota.Status.Used = w.limits(w.upTo(6)), w.limits(w.upTo(6))
	}
	w.add("resourcequotas", quota)
	if w.oneIn(3) {
		w.add("resourcequotas", &corev1.ResourceQuota{ObjectMeta: w.meta("q2")})
	}
}

// limits makes up a list; an empty one is none, as JSON knows no difference.
func (w *world) limits(count int) corev1.ResourceList {
	if count == 0 {
		return nil
	}
	limits := corev1.ResourceList{}
	for range count {
		limits[pick(w.chance, limited...)] = resource.MustParse(pick(w.chance, "0", "1", "4", "10", "100", "2Gi", "1500m"))
	}
	return limits
}

func (w *world) requirement() corev1.ScopedResourceSelectorRequirement {
	scope := pick(w.chance, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ResourceQuotaScopeBestEffort)
	required := corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}
	if scope == corev1.ResourceQuotaScopeBestEffort {
		return required
	}
	required.Operator = pick(w.chance, corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn,
		corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist)
	switch required.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		required.Values = []string{pick(w.chance, "high", "low"), "middle"}
	}
	return required
}

func (w *world) classes() {
	if w.oneIn(3) {
		return
	}
	gold := &resourceapi.DeviceClass{ObjectMeta: w.meta("gold")}
	gold.Namespace = ""
	if !w.oneIn(4) {
		gold.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	}
	w.add("deviceclasses", gold)
	if w.oneIn(2) {
		plain := &resourceapi.DeviceClass{ObjectMeta: w.meta("plain")}
		plain.Namespace = ""
		w.add("deviceclasses", plain)
	}
}

func (w *world) service(name string) {
	service := &corev1.Service{ObjectMeta: w.meta(name)}
	service.Spec.Type = pick(w.chance, "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	for i := range w.upTo(4) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprint(i), Port: int32(80 + i), NodePort: pick(w.chance, int32(0), int32(30000+i)),
		})
	}
	if w.oneIn(2) {
		service.Spec.AllocateLoadBalancerNodePorts = ptr.To(w.oneIn(2))
	}
	w.add("services", service)
}

func (w *world) volumeClaim(name string) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(name)}
	switch w.upTo(4) {
	case 0:
		claim.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: pick(w.chance, "fast", "slow")}
	case 1, 2:
		claim.Spec.StorageClassName = ptr.To(pick(w.chance, "fast", "slow", ""))
	}
	if !w.oneIn(6) {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: w.storage()}
	}
	if w.oneIn(3) {
		claim.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: w.storage()}
	}
	if w.oneIn(3) {
		claim.Spec.VolumeAttributesClassName = ptr.To(pick(w.chance, "high", "low", ""))
	}
	if w.oneIn(4) {
		claim.Status.CurrentVolumeAttributesClassName = ptr.To(pick(w.chance, "high", "middle"))
	}
	if w.oneIn(4) {
		claim.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{
			TargetVolumeAttributesClassName: pick(w.chance, "", "low", "high"),
			Status:                          corev1.PersistentVolumeClaimModifyVolumePending,
		}
	}
	w.add("persistentvolumeclaims", claim)
}

func (w *world) storage() resource.Quantity {
	if w.isMixed {
		return resource.MustParse(pick(w.chance, "1Gi", "2Gi", "1G", "1500m", "1e9", "0.5Gi", "1.3Gi", "10"))
	}
	if w.isBinary {
		return resource.MustParse(pick(w.chance, "1Gi", "2Gi", "0.5Gi", "512Mi", "1Ti"))
	}
	return resource.MustParse(pick(w.chance, "1G", "2500M", "1500m", "1", "999"))
}
