package vectors

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	coredefaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// knownWithin is how long the plugin may take to hear of all claims.
const knownWithin = 10 * time.Second

// allocatableWorld is a line: a node, the pods on it, what drivers offer, claims, and pods without a node,
// each a case of its own.
type allocatableWorld struct {
	Seed    uint64                       `json:"seed"`
	Node    *v1.Node                     `json:"node"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Pods    []*v1.Pod                    `json:"pods"`
	Cases   []*allocatableCase           `json:"cases"`
}

// allocatableCase is a pod, what DynamicResources says of it on the node, and what it counts for there.
type allocatableCase struct {
	Pod      *v1.Pod                                 `json:"pod"`
	Code     string                                  `json:"code"`
	Reasons  []string                                `json:"reasons"`
	Statuses []v1.NodeAllocatableResourceClaimStatus `json:"statuses"`
	Counts   counted                                 `json:"counts"`
}

// counted is what a pod adds to the sums of its node.
type counted struct {
	CPU        int64                     `json:"cpu"`
	Memory     int64                     `json:"memory"`
	Ephemeral  int64                     `json:"ephemeral"`
	Scalars    map[v1.ResourceName]int64 `json:"scalars"`
	NonZeroCPU int64                     `json:"nonzeroCpu"`
	NonZeroMem int64                     `json:"nonzeroMemory"`
}

// AllocatableMain answers worlds whose devices take of their node, one a line, with what the real plugin
// says of each pod.
func AllocatableMain() int {
	gates := map[string]bool{string(features.DRANodeAllocatableResources): true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		panic(err)
	}
	metrics.Register()
	return answerLines("allocatable-vectors", func(line []byte) (any, error) {
		var world allocatableWorld
		if err := json.Unmarshal(line, &world); err != nil {
			return nil, fmt.Errorf("a line that is no world: %w", err)
		}
		if err := world.answer(); err != nil {
			return nil, fmt.Errorf("world %d: %w", world.Seed, err)
		}
		return &world, nil
	})
}

func (w *allocatableWorld) answer() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &cluster{Nodes: []*v1.Node{w.Node}, Pods: w.Pods}
	for _, o := range w.Classes {
		c.more = append(c.more, o)
	}
	for _, o := range w.Slices {
		c.more = append(c.more, o)
	}
	for _, o := range w.Claims {
		c.more = append(c.more, o)
	}
	c.setDefaults()
	profile, err := profileOf("")
	if err != nil {
		return err
	}
	d, err := newDecider(ctx, c, profile)
	if err != nil {
		return err
	}
	if err := w.isKnown(d.devices.ResourceClaims()); err != nil {
		return err
	}
	plugin, ok := d.instances[names.DynamicResources].(*dynamicresources.DynamicResources)
	if !ok {
		return fmt.Errorf("%s is another plugin", names.DynamicResources)
	}
	nodes, err := d.snapshot.NodeInfos().List()
	if err != nil {
		return err
	}
	for _, a := range w.Cases {
		coredefaults.SetObjectDefaults_Pod(a.Pod)
		if err := a.ask(ctx, plugin, nodes); err != nil {
			return err
		}
	}
	return nil
}

// isKnown waits until the plugin has heard of all claims and their devices.
func (w *allocatableWorld) isKnown(tracker fwk.ResourceClaimTracker) error {
	taken := map[structured.DeviceID]bool{}
	for _, claim := range w.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.ShareID == nil {
				taken[structured.MakeDeviceID(result.Driver, result.Pool, result.Device)] = true
			}
		}
	}
	for until := time.Now().Add(knownWithin); time.Now().Before(until); time.Sleep(time.Millisecond) {
		claims, err := tracker.List()
		if err != nil {
			return err
		}
		state, err := tracker.GatherAllocatedState()
		if err == nil && len(claims) == len(w.Claims) && len(state.AllocatedDevices) == len(taken) {
			return nil
		}
	}
	return fmt.Errorf("the plugin never heard of all claims")
}

func (a *allocatableCase) ask(ctx context.Context, plugin *dynamicresources.DynamicResources, nodes []fwk.NodeInfo) error {
	state := framework.NewCycleState()
	_, s := plugin.PreFilter(ctx, state, a.Pod, nodes)
	if s.IsSuccess() {
		s = plugin.Filter(ctx, state, a.Pod, nodes[0])
	}
	said := statusOf(s)
	a.Code, a.Reasons = said.Status, said.Reasons
	pod := a.Pod.DeepCopy()
	if s.IsSuccess() {
		logger := klog.FromContext(ctx)
		a.Statuses = dynamicresources.ExtractPodNodeAllocatableResourceClaimStatus(logger, state, nodes[0].Node().Name)
	}
	pod.Status.NodeAllocatableResourceClaimStatuses = a.Statuses
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	takes := info.CalculateResource()
	a.Counts = counted{
		CPU:        takes.Resource.GetMilliCPU(),
		Memory:     takes.Resource.GetMemory(),
		Ephemeral:  takes.Resource.GetEphemeralStorage(),
		Scalars:    takes.Resource.GetScalarResources(),
		NonZeroCPU: takes.Non0CPU,
		NonZeroMem: takes.Non0Mem,
	}
	return nil
}
