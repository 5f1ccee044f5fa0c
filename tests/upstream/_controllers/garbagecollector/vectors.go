// Random owners and dependents, and what upstream's collector does with each node of its graph: lines
// for controllers/loops/tests/metadata_vectors/collector.jsonl. Written for the package
// pkg/controller/garbagecollector of Kubernetes 1.36.3, because it calls what that package keeps to
// itself. Events build the graph; then each node is examined on its own against an API server whose
// objects never change, so that no examination depends on another.

package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// vector is what one seed came to.
type vector struct {
	Events []change `json:"events"`
	// Live are the objects that the API server has.
	Live []*metav1.PartialObjectMetadata `json:"live"`
	// PatchCodes and DeleteCodes are the statuses of answers by name, where these are no successes.
	PatchCodes  map[string]int `json:"patchCodes"`
	DeleteCodes map[string]int `json:"deleteCodes"`
	// Queued are the nodes that the events have examined, sorted.
	Queued []string `json:"queued"`
	// Orphaned are those whose dependents are to be orphaned.
	Orphaned []string `json:"orphaned"`
	// Attempts are what examinations came to.
	Attempts []attempt `json:"attempts"`
}

// change is an event of an object: "set" or "delete".
type change struct {
	Type   string                        `json:"type"`
	Object *metav1.PartialObjectMetadata `json:"object"`
}

// attempt is the examination of one node.
type attempt struct {
	UID      string    `json:"uid"`
	IsOrphan bool      `json:"isOrphan"`
	Requests []written `json:"requests"`
	// Result is "done", "gone", "unmapped" or "failed".
	Result string `json:"result"`
	// Woken are dependents that are to be examined next.
	Woken []string `json:"woken"`
}

// written is a request that writes.
type written struct {
	Verb   string          `json:"verb"`
	Plural string          `json:"plural"`
	Place  string          `json:"place"`
	Form   string          `json:"form,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
}

// found are the kinds that the API server has, and how they are called there.
var found = []struct {
	kind    schema.GroupVersionKind
	plural  string
	isInAll bool
}{
	{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", false},
	{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "pods", false},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "replicasets", false},
	{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", true},
}

// queue remembers what is added and hands out nothing.
type queue struct {
	workqueue.TypedRateLimitingInterface[*node]
	lock sync.Mutex
	uids map[string]bool
}

func (q *queue) Add(n *node) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.uids[string(n.identity.UID)] = true
}
func (q *queue) AddRateLimited(n *node)            { q.Add(n) }
func (q *queue) AddAfter(n *node, _ time.Duration) { q.Add(n) }

func (q *queue) take() []string {
	q.lock.Lock()
	defer q.lock.Unlock()
	uids := []string{}
	for uid := range q.uids {
		uids = append(uids, uid)
	}
	q.uids = map[string]bool{}
	sort.Strings(uids)
	return uids
}

type mapper struct{ meta.RESTMapper }

func (mapper) Reset() {}

// WriteCollections writes lines.
func WriteCollections(out io.Writer, seed int64, count int) {
	encode := json.NewEncoder(out)
	for at := range count {
		if err := encode.Encode(newVector(uint64(seed) + uint64(at))); err != nil {
			panic(err)
		}
	}
}

func newVector(seed uint64) *vector {
	w := &objects{rand: rand.New(rand.NewPCG(seed, 0))}
	told := &vector{
		Events: []change{}, Live: []*metav1.PartialObjectMetadata{},
		PatchCodes: map[string]int{}, DeleteCodes: map[string]int{}, Attempts: []attempt{},
	}
	w.makeUp(told)
	client := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	server := &server{told: told}
	client.PrependReactor("*", "*", server.react)
	toDelete, toOrphan := &queue{uids: map[string]bool{}}, &queue{uids: map[string]bool{}}
	resources := meta.NewDefaultRESTMapper(nil)
	for _, one := range found {
		scope := meta.RESTScopeNamespace
		if one.isInAll {
			scope = meta.RESTScopeRoot
		}
		plural := one.kind.GroupVersion().WithResource(one.plural)
		resources.AddSpecific(one.kind, plural, plural, scope)
	}
	builder := &GraphBuilder{
		restMapper: mapper{resources}, metadataClient: client, eventRecorder: &record.FakeRecorder{},
		graphChanges:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[*event]()),
		uidToNode:       &concurrentUIDToNode{uidToNode: map[types.UID]*node{}},
		attemptToDelete: toDelete, attemptToOrphan: toOrphan, absentOwnerCache: NewReferenceCache(500),
	}
	gc := &GarbageCollector{
		restMapper: mapper{resources}, metadataClient: client, attemptToDelete: toDelete, attemptToOrphan: toOrphan,
		dependencyGraphBuilder: builder, absentOwnerCache: builder.absentOwnerCache,
	}
	for _, one := range told.Events {
		observed := &event{eventType: addEvent, obj: one.Object, gvk: one.Object.GroupVersionKind()}
		if one.Type == "delete" {
			observed.eventType = deleteEvent
		} else if old := w.last[one.Object.UID]; old != nil {
			observed.eventType, observed.oldObj = updateEvent, old
		}
		builder.graphChanges.Add(observed)
		w.last[one.Object.UID] = one.Object
		for builder.graphChanges.Len() > 0 {
			builder.processGraphChanges(klog.Background())
		}
	}
	told.Queued, told.Orphaned = toDelete.take(), toOrphan.take()
	for _, uid := range builder.uids() {
		node, _ := builder.uidToNode.Read(types.UID(uid))
		told.Attempts = append(told.Attempts, server.examine(gc, node, toDelete))
		if contains(told.Orphaned, uid) {
			told.Attempts = append(told.Attempts, server.orphan(gc, node))
		}
	}
	builder.graphChanges.ShutDown()
	return told
}

func contains(all []string, one string) bool {
	at := sort.SearchStrings(all, one)
	return at < len(all) && all[at] == one
}

func (gb *GraphBuilder) uids() []string {
	uids := []string{}
	for uid := range gb.uidToNode.uidToNode {
		uids = append(uids, string(uid))
	}
	sort.Strings(uids)
	return uids
}

func (s *server) examine(gc *GarbageCollector, item *node, woken *queue) attempt {
	s.requests = []written{}
	err := gc.attemptToDeleteItem(context.Background(), item)
	result := "done"
	var unmapped *restMappingError
	switch {
	case errors.Is(err, enqueuedVirtualDeleteEventErr):
		result = "gone"
	case errors.As(err, &unmapped):
		result = "unmapped"
	case err != nil && !errors.Is(err, namespacedOwnerOfClusterScopedObjectErr):
		result = "failed"
	}
	return attempt{UID: string(item.identity.UID), Requests: s.requests, Result: result, Woken: woken.take()}
}

func (s *server) orphan(gc *GarbageCollector, item *node) attempt {
	s.requests = []written{}
	result := "done"
	if gc.attemptToOrphanWorker(klog.Background(), item) == requeueItem {
		result = "failed"
	}
	// Dependents are patched side by side.
	sort.SliceStable(s.requests, func(i, j int) bool { return s.requests[i].Place < s.requests[j].Place })
	return attempt{
		UID: string(item.identity.UID), IsOrphan: true, Requests: s.requests, Result: result, Woken: []string{},
	}
}

// server answers requests.
type server struct {
	told     *vector
	lock     sync.Mutex
	requests []written
}

func (s *server) react(action core.Action) (bool, runtime.Object, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	named := action.(interface{ GetName() string }).GetName()
	plural := action.GetResource().Resource
	one := written{Verb: action.GetVerb(), Plural: plural, Place: action.GetNamespace() + "/" + named}
	var live *metav1.PartialObjectMetadata
	for _, object := range s.told.Live {
		if pluralOf(object) == plural && object.Namespace == action.GetNamespace() && object.Name == named {
			live = object
		}
	}
	code := 0
	switch action := action.(type) {
	case core.PatchActionImpl:
		one.Body, one.Form = json.RawMessage(action.GetPatch()), "strategic"
		code = s.told.PatchCodes[named]
		if action.GetPatchType() == types.MergePatchType {
			one.Form = "merge"
			if code == 415 {
				code = 0
			}
		}
		s.requests = append(s.requests, one)
	case core.DeleteActionImpl:
		body, err := json.Marshal(action.GetDeleteOptions())
		if err != nil {
			panic(err)
		}
		one.Body = body
		s.requests = append(s.requests, one)
		code = s.told.DeleteCodes[named]
	}
	if live == nil {
		code = 404
	}
	if code == 0 {
		return true, live.DeepCopy(), nil
	}
	reasons := map[int]metav1.StatusReason{
		403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict,
		415: metav1.StatusReasonUnsupportedMediaType,
	}
	return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: fmt.Sprint(code),
	}}
}

func pluralOf(object *metav1.PartialObjectMetadata) string {
	for _, one := range found {
		if one.kind == object.GroupVersionKind() {
			return one.plural
		}
	}
	panic(object.Kind)
}

// objects makes up objects.
type objects struct {
	rand    *rand.Rand
	version int
	all     []*metav1.PartialObjectMetadata
	last    map[types.UID]*metav1.PartialObjectMetadata
}

func (w *objects) oneIn(n int) bool { return w.rand.IntN(n) == 0 }

func (w *objects) makeUp(told *vector) {
	w.last = map[types.UID]*metav1.PartialObjectMetadata{}
	count := 2 + w.rand.IntN(5)
	for i := range count {
		object := &metav1.PartialObjectMetadata{}
		one := found[w.rand.IntN(len(found))]
		object.SetGroupVersionKind(one.kind)
		object.Name, object.UID = fmt.Sprintf("o%d", i), types.UID(fmt.Sprintf("u%d", i))
		if !one.isInAll {
			object.Namespace = "n"
			if w.oneIn(6) {
				object.Namespace = "m"
			}
		}
		w.all = append(w.all, object)
	}
	states := make([]*metav1.PartialObjectMetadata, count)
	for i, object := range w.all {
		states[i] = w.state(object)
	}
	for _, i := range w.rand.Perm(count) {
		if !w.oneIn(7) {
			told.Events = append(told.Events, change{"set", states[i]})
		}
	}
	for range w.rand.IntN(3) {
		i := w.rand.IntN(count)
		isThere := false
		for _, one := range told.Events {
			isThere = isThere || one.Object.UID == w.all[i].UID && one.Type == "set"
		}
		if !isThere {
			continue
		}
		if w.oneIn(2) {
			told.Events = append(told.Events, change{"delete", states[i]})
			break
		}
		states[i] = w.state(w.all[i])
		told.Events = append(told.Events, change{"set", states[i]})
	}
	for i, object := range w.all {
		live := states[i].DeepCopy()
		switch w.rand.IntN(8) {
		case 0, 1:
			continue
		case 2:
			live.UID = types.UID("another-" + object.Name)
		case 3:
			live = w.state(object)
		}
		told.Live = append(told.Live, live)
		if w.oneIn(5) {
			told.PatchCodes[object.Name] = []int{403, 404, 415, 415}[w.rand.IntN(4)]
		}
		if w.oneIn(6) {
			told.DeleteCodes[object.Name] = []int{403, 404, 409}[w.rand.IntN(3)]
		}
	}
}

// state makes up the owners and finalizers of an object.
func (w *objects) state(object *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	state := object.DeepCopy()
	w.version++
	state.ResourceVersion = fmt.Sprint(w.version)
	for _, finalizer := range []string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents, "example.com/x"} {
		if w.oneIn(4) {
			state.Finalizers = append(state.Finalizers, finalizer)
		}
	}
	if w.oneIn(3) {
		at := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		state.DeletionTimestamp = &at
	}
	for range max(0, w.rand.IntN(5)-1) {
		owner := w.owner()
		isDouble := false
		for _, known := range state.OwnerReferences {
			isDouble = isDouble || known.UID == owner.UID
		}
		if !isDouble && owner.UID != object.UID {
			state.OwnerReferences = append(state.OwnerReferences, owner)
		}
	}
	return state
}

func (w *objects) owner() metav1.OwnerReference {
	if w.oneIn(8) {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "u-gone"}
	}
	if w.oneIn(20) {
		return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "widget", UID: "u-widget"}
	}
	to := w.all[w.rand.IntN(len(w.all))]
	owner := metav1.OwnerReference{APIVersion: to.APIVersion, Kind: to.Kind, Name: to.Name, UID: to.UID}
	switch w.rand.IntN(16) {
	case 0:
		owner.Name = strings.ToUpper(owner.Name)
	case 1:
		owner.Kind, owner.APIVersion = "Pod", "v1"
	}
	switch w.rand.IntN(4) {
	case 0, 1:
		owner.BlockOwnerDeletion = ptr.To(true)
	case 2:
		owner.BlockOwnerDeletion = ptr.To(false)
	}
	return owner
}
