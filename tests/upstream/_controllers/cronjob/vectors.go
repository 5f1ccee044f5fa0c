// Random CronJobs and schedules, and what upstream makes of them: lines for
// controllers/loops/src/cron_job/tests/{vectors,schedules}.jsonl. Written for the package
// pkg/controller/cronjob of Kubernetes 1.36.3, used as job/vectors.go; run it with TZ=UTC.
// A search for the next time that does not end within two seconds is reported and left out:
// upstream's stands still where a zone skipped a day.

package cronjob

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	batchv1listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/util/parsers"
	"k8s.io/utils/ptr"
)

type sched struct {
	Spec  string      `json:"spec"`
	Error string      `json:"error,omitempty"`
	From  time.Time   `json:"from"`
	Next  []time.Time `json:"next"`
}

var zones = []string{"", "UTC", "America/New_York", "Europe/Berlin", "Europe/London", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Tehran", "Africa/Cairo", "America/Havana", "Atlantic/Azores", "Antarctica/Troll", "Asia/Beirut", "Pacific/Chatham", "America/St_Johns"}

func field(r *rand.Rand, lo, hi int, names []string) string {
	v := func() string {
		n := lo + r.Intn(hi-lo+1)
		if names != nil && r.Intn(3) == 0 {
			return names[n-lo]
		}
		return fmt.Sprint(n)
	}
	one := func() string {
		switch r.Intn(10) {
		case 0, 1, 2, 3:
			return "*"
		case 4:
			return "*/" + fmt.Sprint(1+r.Intn(hi))
		case 5:
			a, b := lo+r.Intn(hi-lo+1), lo+r.Intn(hi-lo+1)
			if a > b && r.Intn(10) > 0 {
				a, b = b, a
			}
			s := fmt.Sprintf("%d-%d", a, b)
			if r.Intn(3) == 0 {
				s += fmt.Sprintf("/%d", 1+r.Intn(5))
			}
			return s
		case 6:
			return v() + "/" + fmt.Sprint(1+r.Intn(7))
		case 7:
			return "?"
		default:
			return v()
		}
	}
	s := one()
	for r.Intn(6) == 0 {
		s += "," + one()
	}
	return s
}

var months = strings.Split("jan,FEB,mar,Apr,may,jun,jul,aug,sep,oct,nov,dec", ",")
var days = strings.Split("sun,Mon,tue,wed,THU,fri,sat", ",")

func spec(r *rand.Rand) string {
	var s string
	switch r.Intn(14) {
	case 0:
		s = []string{"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually", "@every 1h30m", "@every 90s", "@every 1ms", "@every 24h0m1.5s", "@never", "@every x", "@every -5m"}[r.Intn(14)]
	case 1:
		s = []string{"", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 7", "5-1 * * * *", "*/0 * * * *", "1-2-3 * * * *", "1/2/3 * * * *", "x * * * *", "-1 * * * *", "59 23 31 2 *", ", * * * *", "+5 * * * *", "TZ=0", "TZ=Nowhere * * * * *", "TZ=utc * * * * *", "CRON_TZ=Asia/Tokyo 0 6 * * ?", "99999999999999999999 * * * *", "*-5 * * * *", "0 0 29 2 *", " @every 1h", "jan * * jan *", "0 0 1 JANUARY *", "5, * * * *", "0 0 * * mon-fri", "0 0 * * fri-mon", "*/70 * * * *", "1.5 * * * *"}[r.Intn(33)]
		return s
	case 2, 3, 4:
		// around clock changes
		s = fmt.Sprintf("%d %d %s * %s", r.Intn(60), r.Intn(5), field(r, 1, 31, nil), field(r, 0, 6, days))
	case 5:
		s = fmt.Sprintf("*/%d %s * * *", 1+r.Intn(40), field(r, 0, 23, nil))
	default:
		s = strings.Join([]string{field(r, 0, 59, nil), field(r, 0, 23, nil), field(r, 1, 31, nil), field(r, 1, 12, months), field(r, 0, 6, days)}, " ")
	}
	if z := zones[r.Intn(len(zones))]; z != "" {
		s = "TZ=" + z + " " + s
	}
	return s
}

func WriteSchedules(out io.Writer, seed int64, n int) {
	r := rand.New(rand.NewSource(seed))
	enc := json.NewEncoder(out)
	for ; n > 0; n-- {
		v := sched{Spec: spec(r), Next: []time.Time{}}
		v.From = time.Unix(946684800+r.Int63n(30*365*86400), r.Int63n(2)*500000000).UTC()
		if r.Intn(2) == 0 { // close to a clock change of some zone
			m := []time.Month{3, 3, 4, 10, 10, 11, 11, 2}[r.Intn(8)]
			v.From = time.Date(2005+r.Intn(22), m, 1+r.Intn(31), r.Intn(24), r.Intn(60), 0, 0, time.UTC)
		}
		s, err := parsers.ParseCronScheduleWithPanicRecovery(v.Spec)
		if err != nil {
			v.Error = err.Error()
		} else {
			t := v.From
			hang := false
			for k := 0; k < 5; k++ {
				ch := make(chan time.Time, 1)
				go func(t time.Time) { ch <- s.Next(t) }(t)
				select {
				case t = <-ch:
				case <-time.After(2 * time.Second):
					fmt.Fprintln(os.Stderr, "HANG", v.Spec, t)
					hang = true
				}
				if hang {
					break
				}
				v.Next = append(v.Next, t)
				if t.IsZero() {
					break
				}
			}
			if hang {
				continue
			}
		}
		enc.Encode(v)
	}
}

type cronWant struct {
	Requests []string          `json:"requests"` // in order
	Creates  []json.RawMessage `json:"creates"`
	Status   json.RawMessage   `json:"status,omitempty"`
	Events   []string          `json:"events"`
	Failed   bool              `json:"failed"`
	AfterMs  int64             `json:"afterMs"`
}
type cronVector struct {
	CronJob     *batchv1.CronJob `json:"cronJob"`
	Jobs        []*batchv1.Job   `json:"jobs"`
	Live        []*batchv1.Job   `json:"live"` // only the API server has them
	Now         time.Time        `json:"now"`
	GetFails    bool             `json:"getFails"`
	DeleteFails []string         `json:"deleteFails"`
	Create      string           `json:"create"` // "", fails, terminating
	Conflict    bool             `json:"conflict"`
	Want        cronWant         `json:"want"`
}

type ctl struct {
	v *cronVector
	w *cronWant
}

func (c *ctl) find(name string) *batchv1.Job {
	for _, l := range [][]*batchv1.Job{c.v.Jobs, c.v.Live} {
		for _, j := range l {
			if j.Name == name {
				return j.DeepCopy()
			}
		}
	}
	return nil
}

var jr = schema.GroupResource{Group: "batch", Resource: "jobs"}

func (c *ctl) GetJob(ns, name string) (*batchv1.Job, error) {
	c.w.Requests = append(c.w.Requests, "get "+name)
	if c.v.GetFails {
		return nil, errors.NewInternalError(fmt.Errorf("get"))
	}
	if j := c.find(name); j != nil {
		return j, nil
	}
	return nil, errors.NewNotFound(jr, name)
}
func (c *ctl) CreateJob(ns string, job *batchv1.Job) (*batchv1.Job, error) {
	c.w.Requests = append(c.w.Requests, "create "+job.Name)
	b, _ := json.Marshal(job)
	c.w.Creates = append(c.w.Creates, b)
	switch c.v.Create {
	case "fails":
		return nil, errors.NewInternalError(fmt.Errorf("create"))
	case "terminating":
		e := errors.NewForbidden(jr, job.Name, fmt.Errorf("x"))
		e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		return nil, e
	}
	if c.find(job.Name) != nil {
		return nil, errors.NewAlreadyExists(jr, job.Name)
	}
	j := job.DeepCopy()
	j.UID, j.ResourceVersion, j.Namespace = "new-uid", "99", ns
	return j, nil
}
func (c *ctl) DeleteJob(ns, name string) error {
	c.w.Requests = append(c.w.Requests, "delete "+name)
	if has(c.v.DeleteFails, name) {
		return errors.NewInternalError(fmt.Errorf("delete"))
	}
	return nil
}
func has(l []string, s string) bool {
	for _, x := range l {
		if x == s {
			return true
		}
	}
	return false
}
func (c *ctl) UpdateStatus(ctx context.Context, cj *batchv1.CronJob) (*batchv1.CronJob, error) {
	c.w.Requests = append(c.w.Requests, "update")
	c.w.Status, _ = json.Marshal(cj.Status)
	if c.v.Conflict {
		return nil, errors.NewConflict(jr, cj.Name, fmt.Errorf("x"))
	}
	return cj, nil
}
func (c *ctl) GetCronJob(ctx context.Context, ns, name string) (*batchv1.CronJob, error) {
	c.w.Requests = append(c.w.Requests, "read "+name)
	return c.v.CronJob.DeepCopy(), nil
}

func runCron(v *cronVector) cronWant {
	w := cronWant{Requests: []string{}, Creates: []json.RawMessage{}, Events: []string{}}
	idx := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	jobs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, idx)
	cjs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, idx)
	for _, j := range v.Jobs {
		jobs.Add(j.DeepCopy())
	}
	cjs.Add(v.CronJob.DeepCopy())
	rec := record.NewFakeRecorder(1000)
	c := &ctl{v, &w}
	jm := &ControllerV2{recorder: rec, jobControl: c, cronJobControl: c, jobLister: batchv1listers.NewJobLister(jobs), cronJobLister: batchv1listers.NewCronJobLister(cjs), now: func() time.Time { return v.Now }}
	after, err := jm.sync(context.Background(), v.CronJob.Namespace+"/"+v.CronJob.Name)
	w.Failed = err != nil
	w.AfterMs = -1
	if after != nil {
		w.AfterMs = after.Milliseconds()
	}
	close(rec.Events)
	for e := range rec.Events {
		w.Events = append(w.Events, e)
	}
	return w
}

func makeCron(r *rand.Rand) *cronVector {
	chance := func(p int) bool { return r.Intn(100) < p }
	base := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC).Add(time.Duration(r.Intn(48*60)) * time.Minute)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(base.Add(d)) }
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: "ns", UID: "cron-uid", ResourceVersion: "7", CreationTimestamp: at(-time.Duration(r.Intn(200)) * time.Hour)}}
	cj.Kind, cj.APIVersion = "CronJob", "batch/v1"
	v := &cronVector{CronJob: cj, Jobs: []*batchv1.Job{}, Live: []*batchv1.Job{}, DeleteFails: []string{}}
	v.Now = base.Add(time.Duration(r.Intn(60000)) * time.Millisecond)
	s := &cj.Spec
	s.Schedule = []string{"* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "@every 7m", "@hourly", "0 0 * * *", "bad", "59 23 31 2 *", "TZ=Asia/Tokyo 0 * * * *", "15 6-16/4 * * 1-5"}[r.Intn(11)]
	if chance(25) {
		s.TimeZone = ptr.To([]string{"Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC", "No/Where", "Europe/London"}[r.Intn(6)])
	}
	if chance(30) {
		s.StartingDeadlineSeconds = ptr.To(int64([]int{0, 10, 60, 300, 100000}[r.Intn(5)]))
	}
	s.ConcurrencyPolicy = []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}[r.Intn(3)]
	s.Suspend = ptr.To(chance(8))
	if chance(60) {
		s.SuccessfulJobsHistoryLimit = ptr.To(int32(r.Intn(3)))
	}
	if chance(60) {
		s.FailedJobsHistoryLimit = ptr.To(int32(r.Intn(3)))
	}
	s.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "i"}}
	s.JobTemplate.Labels = map[string]string{"a": "b"}
	if chance(40) {
		s.JobTemplate.Annotations = map[string]string{"x": "y"}
	}
	if chance(5) {
		cj.DeletionTimestamp = ptr.To(at(0))
	}
	if chance(70) {
		cj.Status.LastScheduleTime = ptr.To(metav1.NewTime(base.Add(-time.Duration(r.Intn([]int{3, 10, 100, 20000}[r.Intn(4)])) * time.Minute)))
	}
	if chance(40) {
		cj.Status.LastSuccessfulTime = ptr.To(at(-time.Duration(r.Intn(30)) * time.Minute))
	}
	sch, err := parsers.ParseCronScheduleWithPanicRecovery(formatSchedule(cj, nil))
	for k := r.Intn(5); k > 0; k-- {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cron-%d", k), Namespace: "ns", UID: types.UID(fmt.Sprintf("uid-%d", k)), ResourceVersion: fmt.Sprint(10 + k), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, controllerKind)}}}
		j.Kind, j.APIVersion = "Job", "batch/v1"
		if chance(90) {
			j.Status.StartTime = ptr.To(at(-time.Duration(r.Intn(5)) * time.Minute))
		}
		ended := true
		switch r.Intn(3) {
		case 0:
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
			j.Status.CompletionTime = ptr.To(at(-time.Duration(r.Intn(30)) * time.Minute))
		case 1:
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		default:
			ended = false
		}
		if err == nil && chance(20) {
			// the very job that is due
			if _, t, _, e := mostRecentScheduleTime(cj, v.Now, sch, true); e == nil && t != nil {
				j.Name = getJobName(cj, *t)
			}
		}
		if chance(6) {
			j.OwnerReferences[0].UID = "other"
		}
		listed := chance(85) != ended || chance(30)
		if listed {
			cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{Kind: "Job", APIVersion: "batch/v1", Name: j.Name, Namespace: "ns", UID: j.UID, ResourceVersion: j.ResourceVersion})
		}
		switch r.Intn(10) {
		case 0:
			v.Live = append(v.Live, j)
		case 1:
		default:
			v.Jobs = append(v.Jobs, j)
		}
		if chance(5) {
			v.DeleteFails = append(v.DeleteFails, j.Name)
		}
	}
	names := map[string]bool{}
	for _, l := range [][]*batchv1.Job{v.Jobs, v.Live} {
		for _, j := range l {
			if names[j.Name] {
				return makeCron(r)
			}
			names[j.Name] = true
		}
	}
	v.GetFails = chance(4)
	v.Conflict = chance(4)
	if chance(8) {
		v.Create = []string{"fails", "terminating"}[r.Intn(2)]
	}
	return v
}

// WriteCrons writes n syncs.
func WriteCrons(out io.Writer, seed int64, n int) {
	r := rand.New(rand.NewSource(seed))
	enc := json.NewEncoder(out)
	for n > 0 {
		v := makeCron(r)
		w := runCron(v)
		same := true
		for k := 0; k < 30 && same; k++ {
			same = reflect.DeepEqual(w, runCron(v))
		}
		if !same {
			continue
		}
		sort.Strings(v.DeleteFails)
		v.Want = w
		enc.Encode(v)
		n--
	}
}
