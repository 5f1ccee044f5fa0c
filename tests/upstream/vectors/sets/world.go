package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
)

const namespace = "n"

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world makes up objects from a seed.
type world struct {
	rand    *rand.Rand
	version int
	objects []runtime.Object
}

func newWorld(seed uint64) *world {
	return &world{rand: rand.New(rand.NewPCG(seed, 0)), version: 100}
}

// oneIn is true once in n times.
func (w *world) oneIn(n int) bool { return w.rand.IntN(n) == 0 }

func pick[T any](w *world, of ...T) T { return of[w.rand.IntN(len(of))] }

func (w *world) meta(name string) metav1.ObjectMeta {
	w.version++
	created := metav1.NewTime(now.Add(-time.Duration(w.rand.IntN(5)) * time.Hour))
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: types.UID("uid-" + name),
		ResourceVersion: fmt.Sprint(w.version), CreationTimestamp: created,
	}
}

// setStatus makes a pod pending, running, ready or ended.
func (w *world) setStatus(pod *corev1.Pod) {
	switch w.rand.IntN(10) {
	case 0:
		pod.Status.Phase = corev1.PodFailed
	case 1:
		pod.Status.Phase = corev1.PodSucceeded
	case 2, 3:
		pod.Status.Phase = corev1.PodPending
	default:
		pod.Status.Phase = corev1.PodRunning
		ready := corev1.ConditionTrue
		if w.oneIn(5) {
			ready = corev1.ConditionFalse
		}
		since := metav1.NewTime(now.Add(-time.Duration(w.rand.IntN(60)) * time.Second))
		pod.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: since},
		}
	}
	if w.oneIn(8) {
		at := metav1.NewTime(now)
		pod.DeletionTimestamp = &at
	}
}

// client returns a fake client with all objects, which refuses some requests.
func (w *world) client(refused []string) *fake.Clientset {
	client := fake.NewClientset()
	for _, object := range w.objects {
		if err := client.Tracker().Add(object.DeepCopyObject()); err != nil {
			panic(err)
		}
	}
	client.PrependReactor("*", "*", func(action core.Action) (bool, runtime.Object, error) {
		known := key(action)
		if create, isCreate := action.(core.CreateAction); isCreate {
			if object := create.GetObject().(metav1.Object); object.GetName() == "" {
				w.version++
				object.SetName(fmt.Sprintf("%s%d", object.GetGenerateName(), w.version))
			}
		}
		for _, one := range refused {
			if one == known {
				of := schema.GroupResource{Resource: action.GetResource().Resource}
				return true, nil, apierrors.NewForbidden(of, "", nil)
			}
		}
		return false, nil, nil
	})
	return client
}

func key(action core.Action) string {
	told := requestOf(action)
	return fmt.Sprintf("%s %s%s %s", told.Verb, told.Resource, told.Sub, told.Name)
}

func requestOf(action core.Action) request {
	told := request{
		Verb: action.GetVerb(), Resource: action.GetResource().Resource, Sub: action.GetSubresource(),
	}
	switch action := action.(type) {
	case core.CreateActionImpl:
		object := action.GetObject().(metav1.Object)
		told.Name, told.Body = object.GetName(), action.GetObject()
	case core.UpdateActionImpl:
		told.Name, told.Body = action.GetObject().(metav1.Object).GetName(), action.GetObject()
	case core.PatchActionImpl:
		told.Name, told.Body = action.GetName(), json.RawMessage(action.GetPatch())
	case core.DeleteActionImpl:
		told.Name = action.GetName()
	}
	return told
}

// requests returns those that write.
func requests(client *fake.Clientset) []request {
	written := []request{}
	for _, action := range client.Actions() {
		switch action.GetVerb() {
		case "create", "update", "patch", "delete":
			written = append(written, requestOf(action))
		}
	}
	return written
}

// typed returns the objects with their kinds, as JSON needs them.
func (w *world) typed() []any {
	objects := []any{}
	for _, object := range w.objects {
		object = object.DeepCopyObject()
		kind := schema.GroupVersionKind{Version: "v1"}
		switch object.(type) {
		case *appsv1.StatefulSet:
			kind.Group, kind.Kind = "apps", "StatefulSet"
		case *appsv1.DaemonSet:
			kind.Group, kind.Kind = "apps", "DaemonSet"
		case *appsv1.ControllerRevision:
			kind.Group, kind.Kind = "apps", "ControllerRevision"
		case *corev1.Pod:
			kind.Kind = "Pod"
		case *corev1.PersistentVolumeClaim:
			kind.Kind = "PersistentVolumeClaim"
		case *corev1.Node:
			kind.Kind = "Node"
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		objects = append(objects, object)
	}
	return objects
}
