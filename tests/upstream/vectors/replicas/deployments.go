package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"unsafe"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/utils/ptr"
)

type wantOfDeployment struct {
	Writes []any    `json:"writes"`
	Events []string `json:"events"`
	Failed bool     `json:"failed"`
}

type vectorOfDeployment struct {
	Now        int64              `json:"now"`
	Nanos      int                `json:"nanos"`
	Deployment *apps.Deployment   `json:"deployment"`
	Sets       []*apps.ReplicaSet `json:"sets"`
	Pods       []*v1.Pod          `json:"pods"`
	Want       wantOfDeployment   `json:"want"`
}

func template(n int) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "foo"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: fmt.Sprintf("image:%d", n)}}},
	}
}

func limit(r *rand.Rand) *intstr.IntOrString {
	if r.Intn(2) == 0 {
		return ptr.To(intstr.FromInt32(int32(r.Intn(5))))
	}
	return ptr.To(intstr.FromString(fmt.Sprintf("%d%%", r.Intn(101))))
}

func condition(r *rand.Rand, now int64) apps.DeploymentCondition {
	reasons := []string{"ReplicaSetUpdated", "NewReplicaSetAvailable", "ProgressDeadlineExceeded", "DeploymentPaused", "NewReplicaSetCreated", "DeploymentResumed"}
	status := []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown}
	at := metav1.Unix(now-int64(r.Intn(40)), 0)
	return apps.DeploymentCondition{Type: apps.DeploymentProgressing, Status: status[r.Intn(3)], Reason: reasons[r.Intn(len(reasons))],
		LastUpdateTime: at, LastTransitionTime: at, Message: "before"}
}

func count(r *rand.Rand, most int32) int32 {
	return int32(r.Intn(int(most) + 1))
}

func makeVectorOfDeployment(r *rand.Rand, now int64) vectorOfDeployment {
	wanted := int32(r.Intn(9))
	d := &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "foo", Namespace: "n", UID: "foo-uid", ResourceVersion: "5", Generation: int64(1 + r.Intn(2)),
			Annotations: map[string]string{"mine": "1"}},
		Spec: apps.DeploymentSpec{
			Replicas: &wanted, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "foo"}},
			Template: template(0), Paused: r.Intn(8) == 0, MinReadySeconds: int32(r.Intn(2) * 7),
			Strategy: apps.DeploymentStrategy{Type: apps.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: limit(r), MaxUnavailable: limit(r)}},
		},
	}
	if r.Intn(3) == 0 {
		d.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	}
	if r.Intn(3) > 0 {
		d.Spec.ProgressDeadlineSeconds = ptr.To(int32(20))
	}
	if r.Intn(3) > 0 {
		d.Spec.RevisionHistoryLimit = ptr.To(int32(r.Intn(3)))
	}
	if r.Intn(12) == 0 {
		d.DeletionTimestamp = ptr.To(metav1.Unix(now-3, 0))
	}
	if r.Intn(10) == 0 {
		d.Annotations["deprecated.deployment.rollback.to"] = fmt.Sprint(r.Intn(4))
	}
	if r.Intn(2) == 0 {
		d.Annotations["deployment.kubernetes.io/revision"] = fmt.Sprint(1 + r.Intn(3))
	}
	if r.Intn(2) == 0 {
		d.Status.Conditions = append(d.Status.Conditions, condition(r, now))
	}
	d.Status.ObservedGeneration = int64(r.Intn(3))
	d.Status.Replicas = count(r, 9)
	d.Status.UpdatedReplicas = count(r, 9)
	d.Status.ReadyReplicas = count(r, 9)
	d.Status.AvailableReplicas = count(r, 9)
	if r.Intn(3) == 0 {
		// As complete as it can be.
		d.Status = apps.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: wanted, UpdatedReplicas: wanted,
			ReadyReplicas: wanted, AvailableReplicas: wanted, Conditions: d.Status.Conditions}
	}
	if r.Intn(5) == 0 {
		d.Status.CollisionCount = ptr.To(int32(r.Intn(3)))
	}
	out := vectorOfDeployment{Now: now, Deployment: d}
	sets := r.Intn(5)
	for i := 0; i < sets; i++ {
		name := fmt.Sprintf("set-%d", i)
		size := int32(r.Intn(7))
		if r.Intn(3) == 0 {
			size = 0
		}
		rs := &apps.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID(name), ResourceVersion: fmt.Sprint(10 + i), Generation: 1,
				CreationTimestamp: metav1.Unix(now-int64(100*(i/2)+7), 0),
				Labels:            map[string]string{"app": "foo", "pod-template-hash": name},
				OwnerReferences:   []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "foo", UID: "foo-uid", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}},
			Spec: apps.ReplicaSetSpec{Replicas: &size, Template: template(r.Intn(4)), MinReadySeconds: d.Spec.MinReadySeconds,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "foo", "pod-template-hash": name}}},
		}
		rs.Spec.Template.Labels["pod-template-hash"] = name
		rs.Annotations = map[string]string{}
		if r.Intn(4) > 0 {
			rs.Annotations["mine"] = "1"
		}
		if r.Intn(4) > 0 {
			rs.Annotations["deployment.kubernetes.io/revision"] = fmt.Sprint(1 + r.Intn(4))
		}
		if r.Intn(4) > 0 {
			desired := wanted
			if r.Intn(4) == 0 {
				desired = int32(r.Intn(9))
			}
			rs.Annotations["deployment.kubernetes.io/desired-replicas"] = fmt.Sprint(desired)
			rs.Annotations["deployment.kubernetes.io/max-replicas"] = fmt.Sprint(desired + int32(r.Intn(3)))
		}
		if r.Intn(9) == 0 {
			rs.DeletionTimestamp = ptr.To(metav1.Unix(now-2, 0))
		}
		rs.Status.Replicas = size
		if r.Intn(4) == 0 {
			rs.Status.Replicas = count(r, 7)
		}
		rs.Status.ReadyReplicas = count(r, rs.Status.Replicas)
		rs.Status.AvailableReplicas = count(r, rs.Status.ReadyReplicas)
		if r.Intn(2) == 0 {
			rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = rs.Status.Replicas, rs.Status.Replicas
		}
		rs.Status.ObservedGeneration = int64(r.Intn(2))
		if r.Intn(4) > 0 {
			rs.Status.TerminatingReplicas = ptr.To(int32(r.Intn(3)))
		}
		if r.Intn(6) == 0 {
			rs.Status.Conditions = []apps.ReplicaSetCondition{{Type: apps.ReplicaSetReplicaFailure, Status: v1.ConditionTrue,
				Reason: "FailedCreate", Message: "quota", LastTransitionTime: metav1.Unix(now-9, 0)}}
		}
		out.Sets = append(out.Sets, rs)
		if r.Intn(3) == 0 {
			phases := []v1.PodPhase{v1.PodRunning, v1.PodFailed, v1.PodSucceeded, v1.PodPending}
			out.Pods = append(out.Pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + name, Namespace: "n", UID: types.UID("pod-" + name), ResourceVersion: "1",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID(name), Controller: ptr.To(true)}}},
				Status: v1.PodStatus{Phase: phases[r.Intn(4)]}})
		}
	}
	return out
}

//go:linkname syncDeployment k8s.io/kubernetes/pkg/controller/deployment.(*DeploymentController).syncDeployment
func syncDeployment(dc *deployment.DeploymentController, ctx context.Context, key string) error

func syncOneOfDeployment(v *vectorOfDeployment) wantOfDeployment {
	ctx := context.Background()
	client := fake.NewSimpleClientset()
	factory := informers.NewSharedInformerFactory(client, controller.NoResyncPeriodFunc())
	dc, err := deployment.NewDeploymentController(ctx, factory.Apps().V1().Deployments(), factory.Apps().V1().ReplicaSets(), factory.Core().V1().Pods(), client)
	if err != nil {
		panic(err)
	}
	recorder := record.NewFakeRecorder(100)
	field := reflect.ValueOf(dc).Elem().FieldByName("eventRecorder")
	*(*record.EventRecorder)(unsafe.Pointer(field.UnsafeAddr())) = recorder
	client.Tracker().Add(v.Deployment.DeepCopy())
	factory.Apps().V1().Deployments().Informer().GetIndexer().Add(v.Deployment)
	for _, rs := range v.Sets {
		client.Tracker().Add(rs.DeepCopy())
		factory.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(rs)
	}
	for _, pod := range v.Pods {
		factory.Core().V1().Pods().Informer().GetIndexer().Add(pod)
	}
	err = syncDeployment(dc, ctx, "n/foo")
	out := wantOfDeployment{Failed: err != nil, Writes: []any{}, Events: []string{}}
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case core.CreateAction:
			out.Writes = append(out.Writes, map[string]any{"verb": action.GetVerb(), "resource": a.GetResource().Resource, "sub": a.GetSubresource(), "object": a.GetObject()})
		case core.DeleteAction:
			out.Writes = append(out.Writes, map[string]any{"verb": "delete", "resource": a.GetResource().Resource, "name": a.GetName()})
		}
	}
	// Objects are pointers to what the sync changes later: they are printed now.
	text, _ := json.Marshal(out.Writes)
	json.Unmarshal(text, &out.Writes)
	close(recorder.Events)
	for event := range recorder.Events {
		out.Events = append(out.Events, event)
	}
	return out
}
