package main

import (
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"unsafe"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/utils/ptr"
)

type wantOfSet struct {
	Creates int      `json:"creates"`
	Deletes []string `json:"deletes"`
	Patches []string `json:"patches"`
	Status  any      `json:"status"`
	Failed  bool     `json:"failed"`
}

type vectorOfSet struct {
	Now         int64            `json:"now"`
	Nanos       int              `json:"nanos"`
	Set         *apps.ReplicaSet `json:"set"`
	Sibling     *apps.ReplicaSet `json:"sibling"`
	Pods        []*v1.Pod        `json:"pods"`
	CreateLimit int              `json:"createLimit"`
	DeleteFails bool             `json:"deleteFails"`
	Want        wantOfSet        `json:"want"`
}

func makeVectorOfSet(r *rand.Rand, now int64) vectorOfSet {
	wanted := int32(r.Intn(8))
	owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "d", Controller: ptr.To(true)}}
	rs := &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "rs", Namespace: "n", UID: "rs-uid", ResourceVersion: "5", Generation: 2},
		Spec: apps.ReplicaSetSpec{Replicas: &wanted, MinReadySeconds: int32(r.Intn(2) * 30), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b", "c": "d"}}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}},
		Status: apps.ReplicaSetStatus{Replicas: int32(r.Intn(8)), ObservedGeneration: int64(1 + r.Intn(2))},
	}
	sibling := rs.DeepCopy()
	sibling.Name, sibling.UID = "sibling", "sibling-uid"
	sibling.Spec.Selector.MatchLabels = map[string]string{"of": "sibling"}
	if r.Intn(2) == 0 {
		rs.OwnerReferences = owner
	}
	if r.Intn(2) == 0 {
		sibling.OwnerReferences = owner
	}
	if r.Intn(8) == 0 {
		rs.DeletionTimestamp = ptr.To(metav1.Unix(now-3, 0))
	}
	if r.Intn(3) == 0 {
		rs.Status.Conditions = []apps.ReplicaSetCondition{{Type: "ReplicaFailure", Status: v1.ConditionTrue, Reason: "FailedCreate", Message: "old", LastTransitionTime: metav1.Unix(now-99, 0)}}
	}
	out := vectorOfSet{Now: now, Set: rs, Sibling: sibling, CreateLimit: -1, DeleteFails: r.Intn(6) == 0}
	if r.Intn(3) == 0 {
		out.CreateLimit = r.Intn(5)
	}
	phases := []v1.PodPhase{v1.PodRunning, v1.PodRunning, v1.PodRunning, v1.PodPending, v1.PodUnknown, v1.PodFailed, v1.PodSucceeded}
	for i := 0; i < r.Intn(12); i++ {
		name := fmt.Sprintf("pod-%d", i)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID(fmt.Sprintf("%d-%d", r.Intn(90), i)), ResourceVersion: fmt.Sprint(20 + i),
			CreationTimestamp: metav1.Unix(now-int64(r.Intn(4000)), 0), Labels: map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs-uid", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}}}
		pod.Status.Phase = phases[r.Intn(len(phases))]
		if r.Intn(2) == 0 {
			pod.Labels["c"] = "d"
		}
		if r.Intn(3) > 0 {
			pod.Spec.NodeName = fmt.Sprintf("node-%d", r.Intn(3))
		}
		if r.Intn(3) > 0 {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Unix(now-int64(r.Intn(60)), 0)}}
		}
		pod.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
		pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", RestartCount: int32(r.Intn(2))}}
		pod.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "side", RestartCount: int32(r.Intn(2))}}
		if r.Intn(5) == 0 {
			pod.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": fmt.Sprint(r.Intn(5) - 2)}
		}
		switch r.Intn(14) {
		case 0:
			pod.DeletionTimestamp = ptr.To(metav1.Unix(now-1, 0))
		case 1:
			pod.Labels = map[string]string{"of": "sibling"}
		case 2:
			pod.OwnerReferences = nil
		case 3:
			pod.OwnerReferences[0].UID = "sibling-uid"
			pod.OwnerReferences[0].Name = "sibling"
			pod.Labels = map[string]string{"of": "sibling"}
		}
		out.Pods = append(out.Pods, pod)
	}
	return out
}

//go:linkname syncReplicaSet k8s.io/kubernetes/pkg/controller/replicaset.(*ReplicaSetController).syncReplicaSet
func syncReplicaSet(c *replicaset.ReplicaSetController, ctx context.Context, key string) error

func syncOneOfSet(v *vectorOfSet) wantOfSet {
	ctx := context.Background()
	client := fake.NewSimpleClientset()
	factory := informers.NewSharedInformerFactory(client, controller.NoResyncPeriodFunc())
	c := replicaset.NewReplicaSetController(ctx, factory.Apps().V1().ReplicaSets(), factory.Core().V1().Pods(), client, 500)
	control := reflect.ValueOf(c).Elem().FieldByName("podControl")
	(*(*controller.PodControlInterface)(unsafe.Pointer(control.UnsafeAddr()))) = controller.RealPodControl{KubeClient: client, Recorder: &record.FakeRecorder{}}
	created := 0
	client.PrependReactor("create", "pods", func(action core.Action) (bool, runtime.Object, error) {
		if v.CreateLimit >= 0 && created >= v.CreateLimit {
			return true, nil, apierrors.NewInternalError(fmt.Errorf("no more"))
		}
		created++
		pod := action.(core.CreateAction).GetObject().(*v1.Pod).DeepCopy()
		pod.Name = fmt.Sprintf("new-%d", created)
		return true, pod, nil
	})
	if v.DeleteFails {
		client.PrependReactor("delete", "pods", func(core.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(fmt.Errorf("no way"))
		})
	}
	client.PrependReactor("patch", "pods", func(core.Action) (bool, runtime.Object, error) { return true, &v1.Pod{}, nil })
	for _, rs := range []*apps.ReplicaSet{v.Set, v.Sibling} {
		client.Tracker().Add(rs.DeepCopy())
		factory.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(rs)
	}
	for _, pod := range v.Pods {
		client.Tracker().Add(pod.DeepCopy())
		factory.Core().V1().Pods().Informer().GetIndexer().Add(pod)
	}
	err := syncReplicaSet(c, ctx, "n/rs")
	out := wantOfSet{Failed: err != nil, Deletes: []string{}, Patches: []string{}}
	for _, action := range client.Actions() {
		switch action.GetVerb() {
		case "create":
			out.Creates++
		case "delete":
			out.Deletes = append(out.Deletes, action.(core.DeleteAction).GetName())
		case "patch":
			out.Patches = append(out.Patches, action.(core.PatchAction).GetName()+" "+string(action.(core.PatchAction).GetPatch()))
		case "update":
			out.Status = action.(core.UpdateAction).GetObject().(*apps.ReplicaSet).Status
		}
	}
	return out
}
