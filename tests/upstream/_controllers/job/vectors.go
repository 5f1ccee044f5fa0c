// Random Jobs, and what upstream's syncJob does with them: lines for
// controllers/loops/src/job/tests/vectors.jsonl. Written for the package pkg/controller/job of
// Kubernetes 1.36.3, because it calls what that package keeps to itself: copy the package into a
// module that requires k8s.io/kubernetes, add this file, and call WriteVectors from a program.
// A sync that comes out differently in one of forty runs depends on chance and is left out.

package job

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"sort"
	"sync"
	"time"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	batchv1listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	consistencyutil "k8s.io/kubernetes/pkg/controller/util/consistency"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

type faults struct {
	StatusConflictAt int      `json:"statusConflictAt"` // 1-based number of the update that conflicts
	PatchFails       []string `json:"patchFails"`
	PatchGone        []string `json:"patchGone"`
	DeleteFails      []string `json:"deleteFails"`
	CreateLimit      int      `json:"createLimit"` // 0: none
}
type want struct {
	Creates  []json.RawMessage `json:"creates"`
	Patches  []string          `json:"patches"`
	Deletes  []string          `json:"deletes"`
	Statuses []json.RawMessage `json:"statuses"`
	Events   []string          `json:"events"`
	Failed   bool              `json:"failed"`
	AfterMs  int64             `json:"afterMs"` // -1: none
}
type vector struct {
	Job      *batch.Job `json:"job"`
	Pods     []*v1.Pod  `json:"pods"`
	Failures int32      `json:"failures"`
	LastFail *time.Time `json:"lastFailure,omitempty"`
	Now      time.Time  `json:"now"`
	Faults   faults     `json:"faults"`
	Want     want       `json:"want"`
}

type podCtl struct {
	mu sync.Mutex
	f  faults
	w  *want
	n  int
}

func has(l []string, s string) bool {
	for _, x := range l {
		if x == s {
			return true
		}
	}
	return false
}
func (p *podCtl) CreatePods(ctx context.Context, ns string, t *v1.PodTemplateSpec, o runtime.Object, r *metav1.OwnerReference) error {
	return p.CreatePodsWithGenerateName(ctx, ns, t, o, r, "")
}
func (p *podCtl) CreatePodsWithGenerateName(ctx context.Context, ns string, t *v1.PodTemplateSpec, o runtime.Object, r *metav1.OwnerReference, g string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	if p.f.CreateLimit != 0 && p.n > p.f.CreateLimit {
		return fmt.Errorf("limit")
	}
	pod, err := controller.GetPodFromTemplate(t, o, r)
	if err != nil {
		panic(err)
	}
	if g != "" {
		pod.GenerateName = g
	}
	b, _ := json.Marshal(map[string]any{"generateName": pod.GenerateName, "labels": pod.Labels, "annotations": pod.Annotations, "finalizers": pod.Finalizers, "spec": pod.Spec, "owners": pod.OwnerReferences})
	p.w.Creates = append(p.w.Creates, b)
	return nil
}
func (p *podCtl) DeletePod(ctx context.Context, ns, name string, o runtime.Object) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w.Deletes = append(p.w.Deletes, name)
	if has(p.f.DeleteFails, name) {
		return fmt.Errorf("delete")
	}
	return nil
}
func (p *podCtl) PatchPod(ctx context.Context, ns, name string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w.Patches = append(p.w.Patches, name+" "+string(data))
	if has(p.f.PatchFails, name) {
		return fmt.Errorf("patch")
	}
	if has(p.f.PatchGone, name) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return nil
}

type queueT struct {
	workqueue.TypedRateLimitingInterface[string]
	after int64
}

func (q *queueT) AddAfter(k string, d time.Duration) {
	if q.after < 0 || d.Milliseconds() < q.after {
		q.after = d.Milliseconds()
	}
}

func runOne(v *vector) want {
	w := want{Creates: []json.RawMessage{}, Patches: []string{}, Deletes: []string{}, Statuses: []json.RawMessage{}, Events: []string{}}
	q := &queueT{after: -1}
	jobs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{controller.PodControllerIndex: func(o any) ([]string, error) {
		p := o.(*v1.Pod)
		return []string{controller.PodControllerIndexKey(p.Namespace, metav1.GetControllerOf(p))}, nil
	}})
	jobs.Add(v.Job.DeepCopy())
	for _, p := range v.Pods {
		pods.Add(p.DeepCopy())
	}
	rec := record.NewFakeRecorder(1000)
	jm := &Controller{
		podControl: &podCtl{f: v.Faults, w: &w}, expectations: controller.NewControllerExpectations(), finalizerExpectations: newUIDTrackingExpectations(),
		queue: q, recorder: rec, clock: clocktesting.NewFakeClock(v.Now), podBackoffStore: newBackoffStore(), consistencyStore: consistencyutil.NewNoopConsistencyStore(),
		jobLister: batchv1listers.NewJobLister(jobs), podIndexer: pods,
	}
	n := 0
	jm.updateStatusHandler = func(ctx context.Context, j *batch.Job) (*batch.Job, error) {
		n++
		c := j.DeepCopy()
		sortU := func(u []types.UID) { sort.Slice(u, func(a, b int) bool { return u[a] < u[b] }) }
		sortU(c.Status.UncountedTerminatedPods.Succeeded)
		sortU(c.Status.UncountedTerminatedPods.Failed)
		b, _ := json.Marshal(c.Status)
		w.Statuses = append(w.Statuses, b)
		if n == v.Faults.StatusConflictAt {
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "jobs"}, j.Name, fmt.Errorf("x"))
		}
		return j.DeepCopy(), nil
	}
	key := v.Job.Namespace + "/" + v.Job.Name
	if v.Failures > 0 {
		jm.podBackoffStore.updateBackoffRecord(backoffRecord{key: key, failuresAfterLastSuccess: v.Failures, lastFailureTime: v.LastFail})
	}
	err := jm.syncJob(context.Background(), key)
	w.Failed = err != nil
	w.AfterMs = q.after
	close(rec.Events)
	for e := range rec.Events {
		w.Events = append(w.Events, e)
	}
	sort.Strings(w.Patches)
	sort.Strings(w.Deletes)
	sort.Slice(w.Creates, func(a, b int) bool { return string(w.Creates[a]) < string(w.Creates[b]) })
	return w
}

func indexList(r *rand.Rand, n int) string {
	var o orderedIntervals
	for i := 0; i < n; i++ {
		if r.Intn(3) == 0 {
			o = o.withOrderedIndexes([]int{i})
		}
	}
	return o.String()
}

func chance(r *rand.Rand, p int) bool { return r.Intn(100) < p }

func makeVector(r *rand.Rand) *vector {
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(s int) metav1.Time { return metav1.NewTime(base.Add(time.Duration(s) * time.Second)) }
	v := &vector{Now: base.Add(100*time.Second + time.Duration(r.Intn(3))*250*time.Millisecond)}
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "ns", UID: "job-uid", ResourceVersion: "7", Generation: 1, CreationTimestamp: at(0)}}
	j.Kind, j.APIVersion = "Job", "batch/v1"
	v.Job = j
	s := &j.Spec
	s.Parallelism = ptr.To(int32(r.Intn(5)))
	indexed := chance(r, 50)
	s.CompletionMode = ptr.To(batch.NonIndexedCompletion)
	n := 0
	if indexed {
		s.CompletionMode = ptr.To(batch.IndexedCompletion)
	}
	if indexed || chance(r, 75) {
		n = 1 + r.Intn(6)
		s.Completions = ptr.To(int32(n))
	}
	s.BackoffLimit = ptr.To([]int32{0, 1, 2, 6, 6}[r.Intn(5)])
	s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	s.Template.Labels = map[string]string{"a": "b"}
	if chance(r, 20) {
		s.Template.Annotations = map[string]string{"x": "y"}
	}
	if chance(r, 20) {
		s.Template.Finalizers = []string{"example.com/f"}
	}
	s.Template.Spec.Containers = []v1.Container{{Name: "main", Image: "i"}}
	if chance(r, 20) {
		s.Template.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i", Env: []v1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: "own"}}}}
	}
	s.Template.Spec.RestartPolicy = v1.RestartPolicyNever
	if chance(r, 25) {
		s.Template.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	}
	s.Suspend = ptr.To(chance(r, 15))
	if chance(r, 8) {
		j.DeletionTimestamp = ptr.To(at(90))
		j.Finalizers = []string{"foregroundDeletion"}
	}
	switch r.Intn(3) {
	case 0:
		s.PodReplacementPolicy = ptr.To(batch.Failed)
	case 1:
		s.PodReplacementPolicy = ptr.To(batch.TerminatingOrFailed)
	}
	perIndex := indexed && chance(r, 50)
	if perIndex {
		s.BackoffLimitPerIndex = ptr.To(int32(r.Intn(3)))
		if chance(r, 70) {
			s.BackoffLimit = ptr.To(int32(2147483647))
		}
		if chance(r, 50) {
			s.MaxFailedIndexes = ptr.To(int32(r.Intn(3)))
		}
	}
	if chance(r, 35) {
		p := &batch.PodFailurePolicy{}
		acts := []batch.PodFailurePolicyAction{batch.PodFailurePolicyActionFailJob, batch.PodFailurePolicyActionIgnore, batch.PodFailurePolicyActionCount}
		if perIndex {
			acts = append(acts, batch.PodFailurePolicyActionFailIndex)
		}
		for k := r.Intn(3); k >= 0; k-- {
			rule := batch.PodFailurePolicyRule{Action: acts[r.Intn(len(acts))]}
			if chance(r, 60) {
				e := &batch.PodFailurePolicyOnExitCodesRequirement{Operator: batch.PodFailurePolicyOnExitCodesOpIn, Values: []int32{int32(1 + r.Intn(3))}}
				if chance(r, 40) {
					e.Operator = batch.PodFailurePolicyOnExitCodesOpNotIn
				}
				if chance(r, 30) {
					e.ContainerName = ptr.To([]string{"main", "init", "none"}[r.Intn(3)])
				}
				rule.OnExitCodes = e
			} else {
				rule.OnPodConditions = []batch.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}
			}
			p.Rules = append(p.Rules, rule)
		}
		s.PodFailurePolicy = p
	}
	if indexed && chance(r, 30) {
		p := &batch.SuccessPolicy{}
		for k := r.Intn(2); k >= 0; k-- {
			rule := batch.SuccessPolicyRule{}
			if chance(r, 60) {
				if l := indexList(r, n); l != "" {
					rule.SucceededIndexes = &l
				}
			}
			if rule.SucceededIndexes == nil || chance(r, 50) {
				rule.SucceededCount = ptr.To(int32(1 + r.Intn(n)))
			}
			p.Rules = append(p.Rules, rule)
		}
		s.SuccessPolicy = p
	}
	if chance(r, 20) {
		s.ActiveDeadlineSeconds = ptr.To(int64([]int{5, 50, 100, 1000}[r.Intn(4)]))
	}
	if chance(r, 3) {
		s.ManagedBy = ptr.To("example.com/other")
	}
	st := &j.Status
	if chance(r, 80) {
		st.StartTime = ptr.To(at(r.Intn(99)))
	}
	st.Active = int32(r.Intn(4))
	if chance(r, 80) {
		st.Ready = ptr.To(int32(r.Intn(3)))
	}
	if chance(r, 80) {
		st.Terminating = ptr.To(int32(r.Intn(3)))
	}
	st.Failed = int32(r.Intn(2))
	if indexed {
		st.CompletedIndexes = indexList(r, n)
		st.Succeeded = int32(parseIndexesFromString(klog.Background(), st.CompletedIndexes, n).total())
		if perIndex && chance(r, 50) {
			st.FailedIndexes = ptr.To(indexList(r, n))
		}
	} else {
		st.Succeeded = int32(r.Intn(2))
	}
	if chance(r, 80) {
		st.UncountedTerminatedPods = &batch.UncountedTerminatedPods{}
	}
	cond := func(t batch.JobConditionType, s v1.ConditionStatus, reason, msg string) {
		st.Conditions = append(st.Conditions, batch.JobCondition{Type: t, Status: s, Reason: reason, Message: msg, LastProbeTime: at(5), LastTransitionTime: at(5)})
	}
	switch r.Intn(12) {
	case 0:
		cond(batch.JobSuspended, v1.ConditionTrue, "JobSuspended", "Job suspended")
	case 1:
		cond(batch.JobSuspended, v1.ConditionFalse, "JobResumed", "Job resumed")
	case 2:
		cond(batch.JobFailureTarget, v1.ConditionTrue, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
	case 3:
		cond(batch.JobSuccessCriteriaMet, v1.ConditionTrue, "CompletionsReached", "Reached expected number of succeeded pods")
	case 4:
		cond(batch.JobFailureTarget, v1.ConditionFalse, "Manual", "m")
	}
	exit := func() int32 { return int32(r.Intn(4)) }
	for k := r.Intn(7); k > 0; k-- {
		name := fmt.Sprintf("pod-%d", k)
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(10 + k), CreationTimestamp: at(k), Labels: map[string]string{"a": "b"}, Annotations: map[string]string{}}}
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(j, controllerKind)}
		if chance(r, 4) {
			p.OwnerReferences[0].UID = "other"
		}
		if chance(r, 4) {
			p.Labels = map[string]string{"c": "d"}
		}
		if chance(r, 92) {
			p.Finalizers = []string{batch.JobTrackingFinalizer}
		}
		if indexed && chance(r, 93) {
			p.Annotations[batch.JobCompletionIndexAnnotation] = fmt.Sprint(r.Intn(n + 1))
			if perIndex {
				if chance(r, 80) {
					p.Annotations[batch.JobIndexFailureCountAnnotation] = fmt.Sprint(r.Intn(3))
				}
				if chance(r, 20) {
					p.Annotations[batch.JobIndexIgnoredFailureCountAnnotation] = fmt.Sprint(r.Intn(3))
				}
			}
		}
		if chance(r, 70) {
			p.Spec.NodeName = "node"
		}
		p.Spec.Containers = []v1.Container{{Name: "main"}}
		if chance(r, 20) {
			p.Spec.InitContainers = []v1.Container{{Name: "init"}}
			if chance(r, 50) {
				p.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
			}
		}
		p.Status.Phase = []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodRunning, v1.PodSucceeded, v1.PodFailed, v1.PodFailed}[r.Intn(6)]
		status := func(name string) v1.ContainerStatus {
			cs := v1.ContainerStatus{Name: name, RestartCount: int32(r.Intn(3) / 2 * r.Intn(3))}
			if p.Status.Phase == v1.PodSucceeded || (p.Status.Phase == v1.PodFailed && chance(r, 85)) {
				cs.State.Terminated = &v1.ContainerStateTerminated{ExitCode: exit()}
				if chance(r, 85) {
					cs.State.Terminated.FinishedAt = at(60 + r.Intn(39))
				}
			}
			return cs
		}
		if chance(r, 90) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{status("main")}
		}
		if len(p.Spec.InitContainers) > 0 {
			p.Status.InitContainerStatuses = []v1.ContainerStatus{status("init")}
		}
		if chance(r, 60) {
			c := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at(40 + k)}
			if p.Status.Phase != v1.PodRunning {
				c.Status = v1.ConditionFalse
			}
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
		if chance(r, 20) {
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue})
		}
		if chance(r, 15) {
			p.DeletionTimestamp = ptr.To(at(80 + r.Intn(40)))
			p.DeletionGracePeriodSeconds = ptr.To(int64(r.Intn(2) * 30))
		}
		if st.UncountedTerminatedPods != nil && chance(r, 25) {
			if p.Status.Phase == v1.PodSucceeded && !indexed {
				st.UncountedTerminatedPods.Succeeded = append(st.UncountedTerminatedPods.Succeeded, p.UID)
			} else if p.Status.Phase == v1.PodFailed {
				st.UncountedTerminatedPods.Failed = append(st.UncountedTerminatedPods.Failed, p.UID)
			}
		}
		if chance(r, 4) {
			v.Faults.PatchFails = append(v.Faults.PatchFails, name)
		} else if chance(r, 4) {
			v.Faults.PatchGone = append(v.Faults.PatchGone, name)
		}
		if chance(r, 4) {
			v.Faults.DeleteFails = append(v.Faults.DeleteFails, name)
		}
		v.Pods = append(v.Pods, p)
	}
	if st.UncountedTerminatedPods != nil && chance(r, 10) {
		st.UncountedTerminatedPods.Failed = append(st.UncountedTerminatedPods.Failed, "uid-gone")
	}
	if chance(r, 6) {
		v.Faults.StatusConflictAt = 1 + r.Intn(2)
	}
	if chance(r, 6) {
		v.Faults.CreateLimit = 1 + r.Intn(2)
	}
	if chance(r, 30) {
		v.Failures = int32(1 + r.Intn(4))
		v.LastFail = ptr.To(base.Add(time.Duration(50+r.Intn(50)) * time.Second))
	}
	return v
}

// WriteVectors writes n vectors whose outcome does not depend on chance.
func WriteVectors(out io.Writer, seed int64, n int) {
	r := rand.New(rand.NewSource(seed))
	enc := json.NewEncoder(out)
	for n > 0 {
		v := makeVector(r)
		w := runOne(v)
		same := true
		for k := 0; k < 40 && same; k++ {
			same = reflect.DeepEqual(w, runOne(v))
		}
		if !same {
			continue
		}
		v.Want = w
		enc.Encode(v)
		n--
	}
}
