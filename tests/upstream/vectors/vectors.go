// Package vectors lets the real scheduling framework decide about clusters that somebody made up.
//
// Input: a JSON object a line: a cluster's objects, a KubeSchedulerConfiguration and pods without a
// node, each a case of its own against the same cluster. Output: the same line with the objects as
// the API server would have defaulted them, and for each case what every plugin said, in the form of
// tests/recorded/SCHEDULER-VECTORS.md. Nothing is placed; all nodes are filtered and scored.
package vectors

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	appsdefaults "k8s.io/kubernetes/pkg/apis/apps/v1"
	coredefaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// lineBytesMax is the longest line.
const lineBytesMax = 1 << 28

// cluster is a line; Cases are pods in the input and answers in the output.
type cluster struct {
	Seed                   uint64                        `json:"seed"`
	Config                 string                        `json:"config"`
	Nodes                  []*v1.Node                    `json:"nodes,omitempty"`
	Pods                   []*v1.Pod                     `json:"pods,omitempty"`
	Namespaces             []*v1.Namespace               `json:"namespaces,omitempty"`
	Services               []*v1.Service                 `json:"services,omitempty"`
	ReplicaSets            []*appsv1.ReplicaSet          `json:"replicasets,omitempty"`
	StatefulSets           []*appsv1.StatefulSet         `json:"statefulsets,omitempty"`
	ReplicationControllers []*v1.ReplicationController   `json:"replicationcontrollers,omitempty"`
	Budgets                []*policy.PodDisruptionBudget `json:"poddisruptionbudgets,omitempty"`
	// Preempt asks what preemption would do for pods that fit nowhere.
	Preempt bool      `json:"preempt,omitempty"`
	Cases   []*answer `json:"cases"`
	// more is what else the API server has.
	more []runtime.Object
}

// answer is a case.
type answer struct {
	Scenario     string                      `json:"scenario"`
	Pod          *v1.Pod                     `json:"pod"`
	PreFilter    preFilter                   `json:"prefilter"`
	Skipped      []string                    `json:"skipped_filter_plugins"`
	Filter       map[string]status           `json:"filter"`
	Feasible     int                         `json:"feasible"`
	SkippedScore []string                    `json:"skipped_score_plugins"`
	Raw          map[string]map[string]int64 `json:"raw"`
	Normalized   map[string]map[string]int64 `json:"normalized"`
	Weighted     map[string]map[string]int64 `json:"weighted"`
	Total        map[string]int64            `json:"total"`
	Message      *string                     `json:"message,omitempty"`
	Error        *string                     `json:"error,omitempty"`
	*attempt
}

type preFilter struct {
	Status  string   `json:"status"`
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"`
	Nodes   []string `json:"nodes"`
}

type status struct {
	Status  string   `json:"status"`
	Plugin  string   `json:"plugin,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	Absent  bool     `json:"absent,omitempty"`
}

// Main answers the lines of the standard input and returns the exit code.
func Main() int {
	metrics.Register()
	return answerLines("scheduler-vectors", answered)
}

// answerLines writes an answer for each line of the standard input, and returns the exit code.
func answerLines(program string, answer func(line []byte) (any, error)) int {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	out := bufio.NewWriter(os.Stdout)
	encode := json.NewEncoder(out)
	var failed error
	for failed == nil && lines.Scan() {
		var found any
		if found, failed = answer(lines.Bytes()); failed == nil {
			failed = encode.Encode(found)
		}
	}
	if err := errors.Join(failed, lines.Err(), out.Flush()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return 1
	}
	return 0
}

func answered(line []byte) (any, error) {
	var c cluster
	if err := json.Unmarshal(line, &c); err != nil {
		return nil, fmt.Errorf("a line that is no cluster: %w", err)
	}
	c.setDefaults()
	profile, err := profileOf(c.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %d: %w", c.Seed, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d, err := newDecider(ctx, &c, profile)
	if err != nil {
		return nil, fmt.Errorf("cluster %d: %w", c.Seed, err)
	}
	for _, a := range c.Cases {
		if err := d.decide(ctx, a); err != nil {
			return nil, fmt.Errorf("cluster %d, %s: %w", c.Seed, a.Scenario, err)
		}
	}
	return &c, nil
}

// setDefaults does to every object what the API server does.
func (c *cluster) setDefaults() {
	for _, o := range c.Nodes {
		coredefaults.SetObjectDefaults_Node(o)
	}
	for _, o := range c.Pods {
		coredefaults.SetObjectDefaults_Pod(o)
	}
	for _, o := range c.Namespaces {
		coredefaults.SetObjectDefaults_Namespace(o)
	}
	for _, o := range c.Services {
		coredefaults.SetObjectDefaults_Service(o)
	}
	for _, o := range c.ReplicaSets {
		appsdefaults.SetObjectDefaults_ReplicaSet(o)
	}
	for _, o := range c.StatefulSets {
		appsdefaults.SetObjectDefaults_StatefulSet(o)
	}
	for _, o := range c.ReplicationControllers {
		coredefaults.SetObjectDefaults_ReplicationController(o)
	}
	for _, a := range c.Cases {
		coredefaults.SetObjectDefaults_Pod(a.Pod)
	}
}

// profileOf reads a configuration as kube-scheduler does; an empty one is the default.
func profileOf(text string) (*config.KubeSchedulerProfile, error) {
	if text == "" {
		text = `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}`
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("the configuration: %w", err)
	}
	read, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("the configuration is a %T", object)
	}
	// Only kube-scheduler's command sets these.
	read.DebuggingConfiguration.EnableProfiling = false
	if err := validation.ValidateKubeSchedulerConfiguration(read); err != nil {
		return nil, fmt.Errorf("the configuration: %w", err)
	}
	return &read.Profiles[0], nil
}

// decider is the framework of one profile over one cluster.
type decider struct {
	framework framework.Framework
	snapshot  *internalcache.Snapshot
	instances map[string]fwk.Plugin
	devices   fwk.SharedDRAManager
	budgets   []*policy.PodDisruptionBudget
	preempts  bool
}

func newDecider(ctx context.Context, c *cluster, profile *config.KubeSchedulerProfile) (*decider, error) {
	client := fake.NewSimpleClientset(c.listed()...)
	factory := informers.NewSharedInformerFactory(client, 0)
	d := &decider{snapshot: internalcache.NewEmptySnapshot(), instances: map[string]fwk.Plugin{}, budgets: c.Budgets, preempts: c.Preempt}
	cache := internalcache.New(ctx, nil, false)
	devices, err := newDRAManager(ctx, client, factory)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	d.devices = devices
	made, err := frameworkruntime.NewFramework(ctx, d.registry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(d.snapshot),
		frameworkruntime.WithPodNominator(nobody{}),
		frameworkruntime.WithSharedDRAManager(devices),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithPodGroupManager(cache),
	)
	if err != nil {
		return nil, fmt.Errorf("the framework: %w", err)
	}
	d.framework = made
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	logger := klog.FromContext(ctx)
	for _, node := range c.Nodes {
		cache.AddNode(logger, node)
	}
	for _, pod := range c.Pods {
		if err := cache.AddPod(logger, pod); err != nil {
			return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return d, cache.UpdateSnapshot(logger, d.snapshot)
}

// newDRAManager knows of the devices and claims that the API server has.
func newDRAManager(ctx context.Context, client *fake.Clientset, factory informers.SharedInformerFactory) (fwk.SharedDRAManager, error) {
	resources := factory.Resource().V1()
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), resources.ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := tracker.StartTracker(ctx, tracker.Options{SliceInformer: resources.ResourceSlices(), KubeClient: client})
	if err != nil {
		return nil, err
	}
	return dynamicresources.NewDRAManager(ctx, claims, slices, factory), nil
}

// listed is what plugins ask the API server for.
func (c *cluster) listed() []runtime.Object {
	objects := append([]runtime.Object{}, c.more...)
	for _, o := range c.Namespaces {
		objects = append(objects, o)
	}
	for _, o := range c.Services {
		objects = append(objects, o)
	}
	for _, o := range c.ReplicaSets {
		objects = append(objects, o)
	}
	for _, o := range c.StatefulSets {
		objects = append(objects, o)
	}
	for _, o := range c.ReplicationControllers {
		objects = append(objects, o)
	}
	return objects
}

// registry makes the plugins of the tree and keeps each one that is made.
func (d *decider) registry() frameworkruntime.Registry {
	registry := plugins.NewInTreeRegistry()
	for name, factory := range registry {
		registry[name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			made, err := factory(ctx, args, handle)
			d.instances[name] = made
			return made, err
		}
	}
	return registry
}

// decide runs a pod through the extension points up to the scores.
func (d *decider) decide(ctx context.Context, a *answer) error {
	nodes, err := d.snapshot.NodeInfos().List()
	if err != nil {
		return err
	}
	state := framework.NewCycleState()
	result, s, rejectors := d.framework.RunPreFilterPlugins(ctx, state, a.Pod)
	said := statusOf(s)
	a.PreFilter = preFilter{Status: said.Status, Plugin: said.Plugin, Reasons: said.Reasons}
	a.Skipped = sorted(state.GetSkipFilterPlugins())
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	if s.Code() == fwk.Error {
		a.fails(s)
		return nil
	}
	if !s.IsSuccess() {
		diagnosis.PreFilterMsg = s.Message()
		a.unschedulable(len(nodes), diagnosis)
		return nil
	}
	if !result.AllNodes() {
		a.PreFilter.Nodes = sorted(result.NodeNames)
		absent := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sorted(rejectors))
		diagnosis.NodeToStatus.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, absent))
	}
	a.Filter = map[string]status{}
	var feasible []fwk.NodeInfo
	for _, node := range nodes {
		name := node.Node().Name
		if !result.AllNodes() && !result.NodeNames.Has(name) {
			absent := statusOf(diagnosis.NodeToStatus.AbsentNodesStatus())
			absent.Absent = true
			a.Filter[name] = absent
			continue
		}
		s := d.framework.RunFilterPlugins(ctx, state, a.Pod, node)
		if s.Code() == fwk.Error {
			a.fails(s)
			return nil
		}
		if s.IsSuccess() {
			feasible = append(feasible, node)
		} else {
			diagnosis.NodeToStatus.Set(name, s)
		}
		a.Filter[name] = statusOf(s)
	}
	a.Feasible = len(feasible)
	if len(feasible) == 0 {
		a.unschedulable(len(nodes), diagnosis)
		if d.preempts {
			a.attempt, err = d.preempt(ctx, state, a.Pod, len(nodes), diagnosis.NodeToStatus)
		}
		return err
	}
	return d.score(ctx, state, a, feasible)
}

func (d *decider) score(ctx context.Context, state fwk.CycleState, a *answer, nodes []fwk.NodeInfo) error {
	if s := d.framework.RunPreScorePlugins(ctx, state, a.Pod, nodes); !s.IsSuccess() {
		a.fails(s)
		return nil
	}
	a.SkippedScore = sorted(state.GetSkipScorePlugins())
	a.Raw, a.Normalized = map[string]map[string]int64{}, map[string]map[string]int64{}
	a.Weighted, a.Total = map[string]map[string]int64{}, map[string]int64{}
	for _, enabled := range d.framework.ListPlugins().Score.Enabled {
		if state.GetSkipScorePlugins().Has(enabled.Name) {
			continue
		}
		plugin, ok := d.instances[enabled.Name].(fwk.ScorePlugin)
		if !ok {
			return fmt.Errorf("%s does not score", enabled.Name)
		}
		scores := make(fwk.NodeScoreList, len(nodes))
		for i, node := range nodes {
			score, s := plugin.Score(ctx, state, a.Pod, node)
			if !s.IsSuccess() {
				return fmt.Errorf("%s: %w", enabled.Name, s.AsError())
			}
			scores[i] = fwk.NodeScore{Name: node.Node().Name, Score: score}
		}
		a.Raw[enabled.Name] = byNode(scores)
		if extensions := plugin.ScoreExtensions(); extensions != nil {
			if s := extensions.NormalizeScore(ctx, state, a.Pod, scores); !s.IsSuccess() {
				return fmt.Errorf("%s: %w", enabled.Name, s.AsError())
			}
		}
		a.Normalized[enabled.Name] = byNode(scores)
		a.Weighted[enabled.Name] = map[string]int64{}
	}
	weighted, s := d.framework.RunScorePlugins(ctx, state, a.Pod, nodes)
	if !s.IsSuccess() {
		a.fails(s)
		return nil
	}
	for _, node := range weighted {
		a.Total[node.Name] = node.TotalScore
		for _, score := range node.Scores {
			a.Weighted[score.Name][node.Name] = score.Score
		}
	}
	return nil
}

// statusOf is what a status says; none is a success.
func statusOf(s *fwk.Status) status {
	if s == nil {
		return status{Status: fwk.Success.String()}
	}
	return status{Status: s.Code().String(), Plugin: s.Plugin(), Reasons: s.Reasons()}
}

// sorted is never nil, which would be a null.
func sorted(names sets.Set[string]) []string {
	return append([]string{}, sets.List(names)...)
}

func byNode(scores fwk.NodeScoreList) map[string]int64 {
	found := map[string]int64{}
	for _, score := range scores {
		found[score.Name] = score.Score
	}
	return found
}

func (a *answer) fails(s *fwk.Status) {
	text := s.AsError().Error()
	a.Error = &text
}

func (a *answer) unschedulable(nodes int, diagnosis framework.Diagnosis) {
	text := (&framework.FitError{Pod: a.Pod, NumAllNodes: nodes, Diagnosis: diagnosis}).Error()
	a.Message = &text
}
