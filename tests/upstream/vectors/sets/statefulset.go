package main

import (
	"context"
	"fmt"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controller/history"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/util/consistency"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/ptr"
)

// eventsMax is how many events a sync records at most.
const eventsMax = 1000

// statefulSetAnswer syncs a set that the seed makes up.
func statefulSetAnswer(seed uint64) (*answer, error) {
	w := newWorld(seed)
	hasGate := w.oneIn(2)
	gate := fmt.Sprintf("%s=%v", features.MaxUnavailableStatefulSet, hasGate)
	if err := utilfeature.DefaultMutableFeatureGate.Set(gate); err != nil {
		return nil, err
	}
	set, pods := w.statefulSet()
	refused := w.refusedOf(pods)
	client := w.client(refused)
	informers := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	for _, object := range w.objects {
		var err error
		switch object := object.(type) {
		case *appsv1.StatefulSet:
			err = informers.Apps().V1().StatefulSets().Informer().GetIndexer().Add(object)
		case *appsv1.ControllerRevision:
			err = informers.Apps().V1().ControllerRevisions().Informer().GetIndexer().Add(object)
		case *corev1.Pod:
			err = informers.Core().V1().Pods().Informer().GetIndexer().Add(object)
		case *corev1.PersistentVolumeClaim:
			err = informers.Core().V1().PersistentVolumeClaims().Informer().GetIndexer().Add(object)
		}
		if err != nil {
			return nil, err
		}
	}
	recorder := record.NewFakeRecorder(eventsMax)
	store := consistency.NewNoopConsistencyStore()
	control := statefulset.NewDefaultStatefulSetControl(
		statefulset.NewStatefulPodControl(client, informers.Core().V1().Pods().Lister(),
			informers.Core().V1().PersistentVolumeClaims().Lister(), recorder, store),
		statefulset.NewRealStatefulSetStatusUpdater(client, informers.Apps().V1().StatefulSets().Lister(), store),
		history.NewHistory(client, informers.Apps().V1().ControllerRevisions().Lister(), nil))
	_, err := control.UpdateStatefulSet(context.Background(), set, pods, now)
	told := &answer{
		Now: now.Format("2006-01-02T15:04:05Z"), HasGate: hasGate, Objects: w.typed(),
		Requests: requests(client), Events: drain(recorder), Refused: refused,
	}
	if err != nil {
		told.Error = err.Error()
	}
	return told, nil
}

func drain(recorder *record.FakeRecorder) []string {
	events := []string{}
	for {
		select {
		case event := <-recorder.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func (w *world) template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// statefulSet makes up a set, its pods, revisions and claims.
func (w *world) statefulSet() (*appsv1.StatefulSet, []*corev1.Pod) {
	set := &appsv1.StatefulSet{ObjectMeta: w.meta("web")}
	set.Generation = int64(1 + w.rand.IntN(3))
	set.Annotations = map[string]string{"note": "<kept>"}
	spec := &set.Spec
	spec.Replicas = ptr.To(int32(w.rand.IntN(6)))
	spec.ServiceName = pick(w, "svc", "")
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	spec.Template = w.template(pick(w, "one", "two"))
	spec.PodManagementPolicy = pick(w, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
	spec.MinReadySeconds = pick(w, int32(0), 0, 30)
	spec.RevisionHistoryLimit = ptr.To(int32(w.rand.IntN(3)))
	if w.oneIn(4) {
		spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(w.rand.IntN(3))}
	}
	switch w.rand.IntN(5) {
	case 0:
		spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	case 1:
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
	default:
		limit := pick(w, intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("50%"))
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{
			Partition: ptr.To(int32(w.rand.IntN(4))), MaxUnavailable: &limit,
		}
	}
	for _, name := range []string{"data", "log"}[:w.rand.IntN(3)] {
		claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if w.oneIn(2) {
			claim.Labels = map[string]string{"own": "label"}
		}
		spec.VolumeClaimTemplates = append(spec.VolumeClaimTemplates, claim)
	}
	retain, remove := appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: pick(w, retain, remove), WhenScaled: pick(w, retain, remove),
	}
	legacyscheme.Scheme.Default(set)
	if w.oneIn(12) {
		at := metav1.NewTime(now)
		set.DeletionTimestamp = &at
	}
	names := w.statefulRevisions(set)
	set.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: int64(w.rand.IntN(3)),
		Replicas:           int32(w.rand.IntN(5)), CurrentReplicas: int32(w.rand.IntN(4)),
		ReadyReplicas: int32(w.rand.IntN(4)),
	}
	if len(names) > 0 {
		set.Status.CurrentRevision = pick(w, names...)
		set.Status.UpdateRevision = names[len(names)-1]
	}
	if w.oneIn(3) {
		set.Status.CollisionCount = ptr.To(int32(w.rand.IntN(2)))
	}
	w.objects = append(w.objects, set)
	return set, w.statefulPods(set, names)
}

// statefulRevisions makes up revisions of the set; returns their names.
func (w *world) statefulRevisions(set *appsv1.StatefulSet) []string {
	var names []string
	for i, image := range []string{"one", "two", "three", "four"}[:w.rand.IntN(5)] {
		old := set.DeepCopy()
		old.Spec.Template = w.template(image)
		legacyscheme.Scheme.Default(old)
		if w.oneIn(4) {
			// An earlier release printed less.
			old.Spec.Template.Spec.SchedulerName = ""
		}
		name := fmt.Sprintf("web-%s", image)
		revision := &appsv1.ControllerRevision{ObjectMeta: w.meta(name), Revision: int64(i + 1)}
		revision.Labels = map[string]string{"app": "web"}
		revision.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, statefulSetKind)}
		revision.Data.Raw = templatePatch(&old.Spec.Template)
		w.objects = append(w.objects, revision)
		names = append(names, name)
	}
	return names
}

// statefulPods makes up pods and claims of the set.
func (w *world) statefulPods(set *appsv1.StatefulSet, revisions []string) []*corev1.Pod {
	var pods []*corev1.Pod
	for ordinal := range 8 {
		name := fmt.Sprintf("web-%d", ordinal)
		pod := &corev1.Pod{ObjectMeta: w.meta(name)}
		pod.Labels = map[string]string{
			"app": "web", appsv1.StatefulSetPodNameLabel: name, appsv1.PodIndexLabel: fmt.Sprint(ordinal),
		}
		if len(revisions) > 0 {
			pod.Labels[appsv1.StatefulSetRevisionLabel] = pick(w, revisions...)
		}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, statefulSetKind)}
		pod.Spec = w.template("one").Spec
		if w.oneIn(10) {
			pod.Labels[appsv1.StatefulSetPodNameLabel] = "other"
		}
		isThere := w.rand.IntN(8) >= 2 && (ordinal < 4 || w.oneIn(2))
		for _, template := range set.Spec.VolumeClaimTemplates {
			if !w.oneIn(12) {
				volume := corev1.Volume{Name: template.Name}
				volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: fmt.Sprintf("%s-%s", template.Name, name),
				}
				pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
			}
			if !w.oneIn(4) {
				w.claim(set, pod, template.Name)
			}
		}
		w.setStatus(pod)
		if isThere {
			w.objects = append(w.objects, pod)
			pods = append(pods, pod)
		}
	}
	return pods
}

// claim makes up a claim of a pod with some owners.
func (w *world) claim(set *appsv1.StatefulSet, pod *corev1.Pod, template string) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(template + "-" + pod.Name)}
	owner := metav1.NewControllerRef(pod, podKind)
	switch w.rand.IntN(7) {
	case 0:
		owner.UID = "stale"
	case 1:
		owner = metav1.NewControllerRef(set, statefulSetKind)
	case 2:
		owner = metav1.NewControllerRef(set, statefulSetKind)
		owner.Controller = nil
	case 3:
		owner = &metav1.OwnerReference{APIVersion: "v1", Kind: "Other", Name: "o", UID: "o", Controller: ptr.To(true)}
	case 4:
	default:
		owner = nil
	}
	if owner != nil {
		claim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if w.oneIn(15) {
		at := metav1.NewTime(now)
		claim.DeletionTimestamp = &at
	}
	w.objects = append(w.objects, claim)
}

// refusedOf chooses requests that the API server refuses.
func (w *world) refusedOf(pods []*corev1.Pod) []string {
	refused := []string{}
	if !w.oneIn(3) {
		return refused
	}
	for ordinal := range 8 {
		name := fmt.Sprintf("web-%d", ordinal)
		for _, request := range []string{
			"create pods " + name, "update pods " + name, "delete pods " + name,
			"create persistentvolumeclaims data-" + name, "update persistentvolumeclaims data-" + name,
		} {
			if w.oneIn(4) {
				refused = append(refused, request)
			}
		}
	}
	if w.oneIn(4) {
		refused = append(refused, "update statefulsetsstatus web")
	}
	sort.Strings(refused)
	return refused
}
