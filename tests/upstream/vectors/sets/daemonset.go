package main

import (
	"context"
	"fmt"
	"sort"
	"time"
	_ "unsafe" // for go:linkname

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/daemon/util"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

const (
	failedWaitMin = time.Second
	failedWaitMax = 15 * time.Minute
)

//go:linkname syncDaemonSet k8s.io/kubernetes/pkg/controller/daemon.(*DaemonSetsController).syncDaemonSet
func syncDaemonSet(dsc *daemon.DaemonSetsController, ctx context.Context, key string) error

// daemonSetAnswer syncs a set that the seed makes up.
func daemonSetAnswer(seed uint64) (*answer, error) {
	w := newWorld(seed)
	set, isRollout := w.daemonSet()
	refused := []string{}
	if w.oneIn(4) {
		for i := range 12 {
			if w.oneIn(3) {
				refused = append(refused, fmt.Sprintf("delete pods pod-%d", i))
			}
		}
		if w.oneIn(3) {
			refused = append(refused, "update daemonsetsstatus ds")
		}
		sort.Strings(refused)
	}
	client := w.client(refused)
	shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	backoff := flowcontrol.NewBackOff(failedWaitMin, failedWaitMax)
	backoff.Clock = clock.Clock(testingclock.NewFakeClock(now))
	ctx := context.Background()
	controller, err := daemon.NewDaemonSetsController(ctx, shared.Apps().V1().DaemonSets(),
		shared.Apps().V1().ControllerRevisions(), shared.Core().V1().Pods(), shared.Core().V1().Nodes(),
		client, backoff)
	if err != nil {
		return nil, err
	}
	for _, object := range w.objects {
		if err := indexer(shared, object).Add(object); err != nil {
			return nil, err
		}
	}
	err = syncDaemonSet(controller, ctx, namespace+"/"+set.Name)
	told := &answer{
		Now: now.Format("2006-01-02T15:04:05Z"), Objects: w.typed(), Requests: requests(client),
		Events: []string{}, Refused: refused, IsRollout: isRollout,
	}
	if err != nil {
		told.Error = err.Error()
	}
	return told, nil
}

func indexer(shared informers.SharedInformerFactory, object runtime.Object) cache.Indexer {
	switch object.(type) {
	case *appsv1.DaemonSet:
		return shared.Apps().V1().DaemonSets().Informer().GetIndexer()
	case *appsv1.ControllerRevision:
		return shared.Apps().V1().ControllerRevisions().Informer().GetIndexer()
	case *corev1.Pod:
		return shared.Core().V1().Pods().Informer().GetIndexer()
	}
	return shared.Core().V1().Nodes().Informer().GetIndexer()
}

// daemonSet makes up a set, nodes, pods and revisions; says whether old pods are to be replaced.
func (w *world) daemonSet() (*appsv1.DaemonSet, bool) {
	set := &appsv1.DaemonSet{ObjectMeta: w.meta("ds")}
	set.Generation = int64(1 + w.rand.IntN(3))
	if !w.oneIn(5) {
		set.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "1"}
	}
	spec := &set.Spec
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	spec.Template = w.template(pick(w, "one", "two"))
	spec.MinReadySeconds = pick(w, int32(0), 0, 30)
	spec.RevisionHistoryLimit = ptr.To(int32(w.rand.IntN(3)))
	w.placement(&spec.Template.Spec)
	switch w.rand.IntN(5) {
	case 0:
		spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	default:
		unavailable := pick(w, intstr.FromInt32(1), intstr.FromInt32(0), intstr.FromString("50%"))
		surge := pick(w, intstr.FromInt32(0), intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromString("40%"))
		spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
			MaxUnavailable: &unavailable, MaxSurge: &surge,
		}
	}
	legacyscheme.Scheme.Default(set)
	hashes := w.daemonRevisions(set)
	set.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: int64(w.rand.IntN(3)), DesiredNumberScheduled: int32(w.rand.IntN(5)),
		NumberReady: int32(w.rand.IntN(4)),
	}
	if w.oneIn(12) {
		at := metav1.NewTime(now)
		set.DeletionTimestamp = &at
	}
	w.objects = append(w.objects, set)
	nodes := 1 + w.rand.IntN(5)
	for i := range nodes {
		w.node(fmt.Sprintf("node-%d", i))
	}
	w.daemonPods(set, hashes, nodes)
	return set, true
}

// placement makes up which nodes the pods fit.
func (w *world) placement(spec *corev1.PodSpec) {
	spec.HostNetwork = w.oneIn(3)
	if w.oneIn(5) {
		spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if w.oneIn(10) {
		spec.NodeName = "node-0"
	}
	if w.oneIn(4) {
		spec.Tolerations = []corev1.Toleration{{
			Key:      pick(w, "k", "", "other", corev1.TaintNodeNotReady),
			Operator: corev1.TolerationOpExists,
			Effect:   pick(w, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute),
		}}
	}
	if w.oneIn(5) {
		operator := pick(w, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists,
			corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt)
		requirement := corev1.NodeSelectorRequirement{Key: "size", Operator: operator}
		switch operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			requirement.Values = []string{"1", "2"}
		case corev1.NodeSelectorOpGt:
			requirement.Values = []string{"1"}
		}
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}},
				},
			},
		}}
	}
}

func (w *world) node(name string) {
	node := &corev1.Node{ObjectMeta: w.meta(name)}
	node.Namespace = ""
	node.Labels = map[string]string{}
	if !w.oneIn(3) {
		node.Labels["disk"] = "ssd"
	}
	if w.oneIn(2) {
		node.Labels["size"] = fmt.Sprint(w.rand.IntN(4))
	}
	if w.oneIn(3) {
		node.Spec.Taints = []corev1.Taint{{
			Key: pick(w, "k", corev1.TaintNodeNotReady, corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable),
			Effect: pick(w, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute,
				corev1.TaintEffectPreferNoSchedule),
		}}
	}
	w.objects = append(w.objects, node)
}

// daemonRevisions makes up revisions of the set; returns their hashes.
func (w *world) daemonRevisions(set *appsv1.DaemonSet) []string {
	hashes := []string{"gone"}
	for i, image := range []string{"one", "two", "three", "four"}[:w.rand.IntN(5)] {
		old := set.DeepCopy()
		old.Spec.Template.Spec.Containers[0].Image = image
		name := "ds-" + image
		revision := &appsv1.ControllerRevision{ObjectMeta: w.meta(name), Revision: int64(i + 1)}
		revision.Labels = map[string]string{"app": "web"}
		if !w.oneIn(8) {
			revision.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = image
		}
		revision.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, daemonSetKind)}
		revision.Data.Raw = templatePatch(&old.Spec.Template)
		w.objects = append(w.objects, revision)
		hashes = append(hashes, image)
	}
	return hashes
}

// daemonPods makes up pods of the set, some on nodes that are gone, some not bound yet.
func (w *world) daemonPods(set *appsv1.DaemonSet, hashes []string, nodes int) {
	for i := range w.rand.IntN(2 * nodes) {
		pod := &corev1.Pod{ObjectMeta: w.meta(fmt.Sprintf("pod-%d", i))}
		pod.Labels = map[string]string{
			"app": "web", appsv1.DefaultDaemonSetUniqueLabelKey: pick(w, hashes...),
			"pod-template-generation": pick(w, "0", "0", "1"),
		}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, daemonSetKind)}
		pod.Spec = w.template("one").Spec
		extra := 0
		if w.oneIn(10) {
			extra = 1
		}
		node := fmt.Sprintf("node-%d", w.rand.IntN(nodes+extra))
		pod.Spec.NodeName = node
		w.setStatus(pod)
		if w.oneIn(5) {
			pod.Spec.NodeName = ""
			pod.Spec.Affinity = util.ReplaceDaemonSetPodNodeNameNodeAffinity(nil, node)
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		w.objects = append(w.objects, pod)
	}
}
