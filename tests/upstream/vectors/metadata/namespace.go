package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"
	"k8s.io/utils/ptr"
)

// deletedNamespace is a namespace, what is in it, how the API server answers, and what a sync did.
type deletedNamespace struct {
	// Now is when it began.
	Now string `json:"now"`
	// Namespace is the object.
	Namespace *corev1.Namespace `json:"namespace"`
	// Conflicts is how many replacements of the namespace end in one.
	Conflicts int `json:"conflicts"`
	// IsNew says that the namespace has another UID after a conflict.
	IsNew bool `json:"isNew"`
	// FailedGroups are groups that cannot be discovered.
	FailedGroups []string `json:"failedGroups"`
	// Kinds are those that are discovered.
	Kinds []namespacedKind `json:"kinds"`
	// Requests are those that write, sorted.
	Requests []string `json:"requests"`
	// Conditions are those that were written last; null if none were.
	Conditions []corev1.NamespaceCondition `json:"conditions"`
	// Estimate is after how many seconds the rest may be gone; 0 when nothing remains.
	Estimate int64 `json:"estimate"`
	// IsFailed says whether the sync failed.
	IsFailed bool `json:"isFailed"`
}

// namespacedKind is a kind, its objects in the namespace, and how requests for it end.
type namespacedKind struct {
	Group  string   `json:"group"`
	Plural string   `json:"plural"`
	Verbs  []string `json:"verbs"`
	Items  []item   `json:"items"`
	// Code is the status of the answer when the collection is deleted, 0 when that succeeds.
	Code int `json:"code"`
	// ListCode is the same for lists.
	ListCode int `json:"listCode"`
	// DeleteCode is the same for the deletion of the last object.
	DeleteCode int `json:"deleteCode"`
}

// item is an object in the namespace.
type item struct {
	Name       string   `json:"name"`
	Finalizers []string `json:"finalizers"`
	// Stays says that it is there after its deletion although it has no finalizer.
	Stays bool `json:"stays"`
	// Phase and Grace are those of a pod.
	Phase string `json:"phase"`
	Grace int64  `json:"grace"`
}

// grouped are the kinds that may be discovered.
var grouped = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "services"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "events.k8s.io", Version: "v1", Resource: "events"},
}

// namespaceAnswer deletes the content of a namespace that a seed makes up.
func namespaceAnswer(seed uint64) (*deletedNamespace, error) {
	c := newChance(seed)
	told := &deletedNamespace{FailedGroups: []string{}, Requests: []string{}}
	began := time.Now().UTC().Truncate(time.Second)
	told.Now = began.Format("2006-01-02T15:04:05Z")
	told.makeUp(c, began)
	server := &namespaceServer{told: told, namespace: told.Namespace.DeepCopy(), conflicts: told.Conflicts}
	server.kinds = map[string]*namespacedKind{}
	for _, kind := range told.Kinds {
		kind.Items = append([]item{}, kind.Items...)
		server.kinds[kind.Plural] = &kind
	}
	client := &fake.Clientset{}
	client.AddReactor("*", "*", server.react)
	content := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	content.PrependReactor("*", "*", server.react)
	ctx := context.Background()
	deleter := deletion.NewNamespacedResourcesDeleter(ctx, client.CoreV1().Namespaces(), content,
		client.CoreV1(), told.discover, corev1.FinalizerKubernetes)
	err := deleter.Delete(ctx, namespace)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		told.Estimate = remaining.Estimate
	} else {
		told.IsFailed = err != nil
	}
	sort.Strings(told.Requests)
	return told, nil
}

func (told *deletedNamespace) makeUp(c chance, began time.Time) {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, UID: "uid", ResourceVersion: "1",
	}}
	if !c.oneIn(20) {
		// An estimate is over after its time; what is near that is not asked.
		at := metav1.NewTime(began.Add(-pick(c, 0, 0, 1000*time.Second)))
		object.DeletionTimestamp = &at
	}
	object.Status.Phase = pick(c, corev1.NamespaceActive, corev1.NamespaceTerminating, corev1.NamespaceTerminating)
	switch c.upTo(8) {
	case 0:
	case 1:
		object.Spec.Finalizers = []corev1.FinalizerName{"example.com/b", corev1.FinalizerKubernetes, "example.com/a"}
	default:
		object.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	}
	if c.oneIn(2) {
		object.Status.Conditions = oldConditions(c)
	}
	told.Namespace = object
	if c.oneIn(4) {
		told.Conflicts, told.IsNew = c.upTo(4), c.oneIn(6)
	}
	if c.oneIn(5) {
		told.FailedGroups = []string{"metrics.example.com"}
	}
	for _, of := range grouped {
		if !c.oneIn(5) {
			told.Kinds = append(told.Kinds, makeUpKind(c, of))
		}
	}
	// Without any kind upstream's process ends.
	if len(told.Kinds) == 0 {
		told.Kinds = append(told.Kinds, makeUpKind(c, grouped[1]))
	}
}

func oldConditions(c chance) []corev1.NamespaceCondition {
	before := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	conditions := []corev1.NamespaceCondition{{Type: "Other", Status: corev1.ConditionTrue, LastTransitionTime: before}}
	for _, kind := range []corev1.NamespaceConditionType{
		corev1.NamespaceContentRemaining, corev1.NamespaceDeletionContentFailure, corev1.NamespaceFinalizersRemaining,
		corev1.NamespaceDeletionDiscoveryFailure,
	} {
		if c.oneIn(2) {
			conditions = append(conditions, corev1.NamespaceCondition{
				Type: kind, Status: pick(c, corev1.ConditionTrue, corev1.ConditionFalse), Reason: "Old",
				Message: "old", LastTransitionTime: before,
			})
		}
	}
	return conditions
}

func makeUpKind(c chance, of schema.GroupVersionResource) namespacedKind {
	kind := namespacedKind{Group: of.Group, Plural: of.Resource, Items: []item{}}
	kind.Verbs = []string{"create", "delete", "deletecollection", "get", "list", "watch"}
	switch c.upTo(8) {
	case 0:
		kind.Verbs = []string{"create", "delete", "get", "list"}
	case 1:
		kind.Verbs = []string{"create", "get", "list"}
	case 2:
		kind.Verbs = []string{"create", "delete", "get"}
	}
	for i := range max(0, c.upTo(6)-2) {
		one := item{Name: fmt.Sprintf("%s-%d", of.Resource, i), Finalizers: []string{}}
		switch c.upTo(6) {
		case 0:
			one.Finalizers = []string{pick(c, "example.com/a", "foregroundDeletion")}
		case 1:
			one.Finalizers = []string{"example.com/a", "example.com/b"}
		case 2:
			one.Stays = c.oneIn(2)
		}
		if of.Resource == "pods" {
			one.Phase = pick(c, "Running", "Running", "Pending", "Succeeded", "Failed")
			one.Grace = int64(pick(c, 0, 30, 60))
			one.Stays = one.Stays || (one.Grace > 0 && !c.oneIn(3))
		}
		kind.Items = append(kind.Items, one)
	}
	if c.oneIn(6) {
		kind.Code = pick(c, 403, 404, 405, 500)
	}
	if c.oneIn(10) {
		kind.ListCode = pick(c, 403, 404, 405, 500)
	}
	if c.oneIn(6) {
		kind.DeleteCode = pick(c, 403, 404, 500)
	}
	return kind
}

// discover returns the kinds as discovery does.
func (told *deletedNamespace) discover() ([]*metav1.APIResourceList, error) {
	lists := map[string]*metav1.APIResourceList{}
	found := []*metav1.APIResourceList{}
	for _, kind := range told.Kinds {
		version := schema.GroupVersion{Group: kind.Group, Version: "v1"}.String()
		if lists[version] == nil {
			lists[version] = &metav1.APIResourceList{GroupVersion: version}
			found = append(found, lists[version])
		}
		lists[version].APIResources = append(lists[version].APIResources, metav1.APIResource{
			Name: kind.Plural, Namespaced: true, Kind: kind.Plural, Verbs: kind.Verbs,
		})
	}
	if len(told.FailedGroups) == 0 {
		return found, nil
	}
	failed := map[schema.GroupVersion]error{}
	for _, group := range told.FailedGroups {
		failed[schema.GroupVersion{Group: group, Version: "v1beta1"}] = errors.New("it is down")
	}
	return found, &discovery.ErrGroupDiscoveryFailed{Groups: failed}
}

// namespaceServer answers requests.
type namespaceServer struct {
	told      *deletedNamespace
	namespace *corev1.Namespace
	conflicts int
	kinds     map[string]*namespacedKind
}

func (s *namespaceServer) react(action core.Action) (bool, runtime.Object, error) {
	if action.GetResource().Resource == "namespaces" {
		object, err := s.reactNamespace(action)
		return true, object, err
	}
	kind := s.kinds[action.GetResource().Resource]
	switch action := action.(type) {
	case core.ListActionImpl:
		if err := refused(kind.ListCode, kind.Plural); err != nil {
			// The fake client of metadata takes no list beside an error.
			return true, nil, err
		}
		if action.Kind.Kind == "Pod" {
			return true, kind.pods(), nil
		}
		return true, kind.list(), nil
	case core.DeleteAction:
		s.note("delete", action, action.GetName())
		code := 0
		if at := len(kind.Items) - 1; at >= 0 && kind.Items[at].Name == action.GetName() {
			code = kind.DeleteCode
		}
		if err := refused(code, kind.Plural); err != nil {
			return true, nil, err
		}
		kind.remove(func(one item) bool { return one.Name == action.GetName() })
		return true, nil, nil
	}
	s.note(action.GetVerb(), action, "")
	if err := refused(kind.Code, kind.Plural); err != nil {
		return true, nil, err
	}
	kind.remove(func(item) bool { return true })
	return true, nil, nil
}

func (s *namespaceServer) note(verb string, action core.Action, name string) {
	text := fmt.Sprintf("%s %s %s", verb, action.GetResource().Resource, name)
	s.told.Requests = append(s.told.Requests, strings.TrimSpace(text))
}

func (s *namespaceServer) reactNamespace(action core.Action) (runtime.Object, error) {
	update, isUpdate := action.(core.UpdateAction)
	if !isUpdate && action.GetVerb() != "create" {
		return s.namespace.DeepCopy(), nil
	}
	var object *corev1.Namespace
	if isUpdate {
		object = update.GetObject().(*corev1.Namespace)
	} else {
		object = action.(core.CreateAction).GetObject().(*corev1.Namespace)
	}
	finalizers := []string{}
	for _, finalizer := range object.Spec.Finalizers {
		finalizers = append(finalizers, string(finalizer))
	}
	s.told.Requests = append(s.told.Requests, fmt.Sprintf("update namespaces/%s %s %s",
		action.GetSubresource(), object.Status.Phase, strings.Join(finalizers, ",")))
	if s.conflicts > 0 {
		s.conflicts--
		if s.told.IsNew {
			s.namespace.UID = "another"
		}
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "namespaces"}, namespace, errors.New("it changed"))
	}
	if action.GetSubresource() == "status" {
		s.namespace.Status = *object.Status.DeepCopy()
		s.told.Conditions = s.namespace.Status.Conditions
	}
	return s.namespace.DeepCopy(), nil
}

// remove deletes objects; some stay.
func (kind *namespacedKind) remove(isMeant func(item) bool) {
	left := []item{}
	for _, one := range kind.Items {
		if !isMeant(one) || one.Stays || len(one.Finalizers) > 0 {
			left = append(left, one)
		}
	}
	kind.Items = left
}

func (kind *namespacedKind) list() *metav1.List {
	list := &metav1.List{}
	for _, one := range kind.Items {
		list.Items = append(list.Items, runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Name: one.Name, Namespace: namespace, Finalizers: one.Finalizers},
		}})
	}
	return list
}

func (kind *namespacedKind) pods() *corev1.PodList {
	list := &corev1.PodList{}
	for _, one := range kind.Items {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: one.Name, Namespace: namespace, Finalizers: one.Finalizers}}
		pod.Status.Phase, pod.Spec.TerminationGracePeriodSeconds = corev1.PodPhase(one.Phase), ptr.To(one.Grace)
		list.Items = append(list.Items, pod)
	}
	return list
}

// refused is the error of a status; none for 0.
func refused(code int, plural string) error {
	if code == 0 {
		return nil
	}
	reasons := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:    metav1.StatusReasonMethodNotAllowed,
		http.StatusInternalServerError: metav1.StatusReasonInternalError,
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code],
		Message: fmt.Sprintf("%s: %d", plural, code),
	}}
}
