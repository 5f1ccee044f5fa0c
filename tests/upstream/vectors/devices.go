package vectors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// selectorsKept is how many compiled selectors are remembered.
const selectorsKept = 256

// deviceWorld is a line: a node, what drivers offer, what is taken, and the claims of some pods. Lists
// says that attributes may have several values.
type deviceWorld struct {
	Seed    uint64                          `json:"seed"`
	Lists   bool                            `json:"lists,omitempty"`
	Node    *v1.Node                        `json:"node"`
	Classes []*resourceapi.DeviceClass      `json:"classes"`
	Slices  []*resourceapi.ResourceSlice    `json:"slices"`
	Taken   []*resourceapi.AllocationResult `json:"taken"`
	Pods    [][]*resourceapi.ResourceClaim  `json:"pods"`
	Answers []deviceAnswer                  `json:"answers"`
}

// deviceAnswer is what a pod's claims get: devices, an error of everybody's, or nothing for a reason
// of the node's, which may be empty.
type deviceAnswer struct {
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Error       string                         `json:"error,omitempty"`
	OnNode      string                         `json:"onNode,omitempty"`
}

type classLister []*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range l {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclass"), name)
}

// DevicesMain answers worlds of devices, one a line, with what the real allocator gives each pod.
func DevicesMain() int {
	features := dynamicresources.AllocatorFeatures(feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	return answerLines("device-vectors", func(line []byte) (any, error) {
		var world deviceWorld
		if err := json.Unmarshal(line, &world); err != nil {
			return nil, fmt.Errorf("a line that is no world: %w", err)
		}
		world.answer(features)
		return &world, nil
	})
}

func (w *deviceWorld) answer(features structured.Features) {
	ctx := context.Background()
	features.ListTypeAttributes = w.Lists
	compiled := cel.NewCache(selectorsKept, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	})
	for _, claims := range w.Pods {
		var answer deviceAnswer
		allocator, err := structured.NewAllocator(ctx, features, w.state(), classLister(w.Classes), w.Slices, compiled)
		if err == nil {
			answer.Allocations, err = allocator.Allocate(ctx, w.Node, claims)
		}
		switch {
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			answer.OnNode = err.Error()
		case err != nil:
			answer.Error = err.Error()
		}
		w.Answers = append(w.Answers, answer)
	}
}

// state is what claims have taken, in the form that the allocator wants.
func (w *deviceWorld) state() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, taken := range w.Taken {
		for _, result := range taken.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}
