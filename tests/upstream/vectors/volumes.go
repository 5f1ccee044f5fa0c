package vectors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	coredefaults "k8s.io/kubernetes/pkg/apis/core/v1"
	storagedefaults "k8s.io/kubernetes/pkg/apis/storage/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// volumeWorld is a line: nodes, pods on them, everything of volumes, and pods without a node.
type volumeWorld struct {
	Seed        uint64                          `json:"seed"`
	Config      string                          `json:"config"`
	Nodes       []*v1.Node                      `json:"nodes"`
	Pods        []*v1.Pod                       `json:"pods"`
	Claims      []*v1.PersistentVolumeClaim     `json:"claims"`
	Volumes     []*v1.PersistentVolume          `json:"volumes"`
	Classes     []*storagev1.StorageClass       `json:"classes"`
	CSINodes    []*storagev1.CSINode            `json:"csinodes"`
	Drivers     []*storagev1.CSIDriver          `json:"drivers"`
	Capacities  []*storagev1.CSIStorageCapacity `json:"capacities"`
	Attachments []*storagev1.VolumeAttachment   `json:"attachments"`
	Cases       []*volumeCase                   `json:"cases"`
}

// volumeCase is a pod, what is said of it and of each node, and the volumes that it would have there.
type volumeCase struct {
	Pod       *v1.Pod                  `json:"pod"`
	PreFilter preFilter                `json:"prefilter"`
	Filter    map[string]status        `json:"filter"`
	Chosen    map[string]chosenVolumes `json:"chosen"`
	Scored    bool                     `json:"scored"`
}

// chosenVolumes are volumes with their claims, and claims for which one would be made.
type chosenVolumes struct {
	Bindings   [][2]string `json:"bindings"`
	Provisions []string    `json:"provisions"`
}

// VolumesMain answers worlds of volumes, one a line, with what the real plugins say of each pod.
func VolumesMain() int {
	metrics.Register()
	client, profiles := fake.NewSimpleClientset(), map[string]*config.KubeSchedulerProfile{}
	return answerLines("volume-vectors", func(line []byte) (any, error) {
		var w volumeWorld
		if err := json.Unmarshal(line, &w); err != nil {
			return nil, fmt.Errorf("a line that is no world: %w", err)
		}
		profile := profiles[w.Config]
		if profile == nil {
			read, err := profileOf(w.Config)
			if err != nil {
				return nil, fmt.Errorf("world %d: %w", w.Seed, err)
			}
			profile, profiles[w.Config] = read, read
		}
		if err := w.answer(client, profile); err != nil {
			return nil, fmt.Errorf("world %d: %w", w.Seed, err)
		}
		return &w, nil
	})
}

func (w *volumeWorld) answer(client kubernetes.Interface, profile *config.KubeSchedulerProfile) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.setDefaults()
	// Nothing watches: what the plugins list is put there.
	factory := informers.NewSharedInformerFactory(client, 0)
	if err := w.fill(factory); err != nil {
		return err
	}
	snapshot, listed := internalcache.NewEmptySnapshot(), internalcache.New(ctx, nil, false)
	made, err := frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithPodGroupManager(listed),
	)
	if err != nil {
		return fmt.Errorf("the framework: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, node := range w.Nodes {
		listed.AddNode(logger, node)
	}
	for _, pod := range w.Pods {
		if err := listed.AddPod(logger, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	if err := listed.UpdateSnapshot(logger, snapshot); err != nil {
		return err
	}
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		return err
	}
	for _, c := range w.Cases {
		if err := c.decide(ctx, made, nodes); err != nil {
			return fmt.Errorf("pod %s: %w", c.Pod.Name, err)
		}
	}
	return nil
}

// setDefaults does to every object what the API server does.
func (w *volumeWorld) setDefaults() {
	for _, o := range w.Nodes {
		coredefaults.SetObjectDefaults_Node(o)
	}
	for _, o := range w.Pods {
		coredefaults.SetObjectDefaults_Pod(o)
	}
	for _, o := range w.Claims {
		coredefaults.SetObjectDefaults_PersistentVolumeClaim(o)
	}
	for _, o := range w.Volumes {
		coredefaults.SetObjectDefaults_PersistentVolume(o)
	}
	for _, o := range w.Classes {
		storagedefaults.SetObjectDefaults_StorageClass(o)
	}
	for _, o := range w.Drivers {
		storagedefaults.SetObjectDefaults_CSIDriver(o)
	}
	for _, c := range w.Cases {
		coredefaults.SetObjectDefaults_Pod(c.Pod)
	}
}

// fill puts the objects where the informers would.
func (w *volumeWorld) fill(factory informers.SharedInformerFactory) error {
	core, storage := factory.Core().V1(), factory.Storage().V1()
	return errors.Join(
		put(core.PersistentVolumeClaims().Informer(), w.Claims),
		put(core.PersistentVolumes().Informer(), w.Volumes),
		put(storage.StorageClasses().Informer(), w.Classes),
		put(storage.CSINodes().Informer(), w.CSINodes),
		put(storage.CSIDrivers().Informer(), w.Drivers),
		put(storage.CSIStorageCapacities().Informer(), w.Capacities),
		put(storage.VolumeAttachments().Informer(), w.Attachments),
	)
}

func put[T any](informer cache.SharedIndexInformer, objects []T) error {
	for _, o := range objects {
		if err := informer.GetIndexer().Add(o); err != nil {
			return err
		}
	}
	return nil
}

// decide asks of a pod up to whether it is scored.
func (c *volumeCase) decide(ctx context.Context, f framework.Framework, nodes []fwk.NodeInfo) error {
	state := framework.NewCycleState()
	result, s, _ := f.RunPreFilterPlugins(ctx, state, c.Pod)
	said := statusOf(s)
	c.PreFilter = preFilter{Status: said.Status, Plugin: said.Plugin, Reasons: said.Reasons}
	if !s.IsSuccess() {
		return nil
	}
	if !result.AllNodes() {
		c.PreFilter.Nodes = sorted(result.NodeNames)
	}
	c.Filter = map[string]status{}
	var feasible []fwk.NodeInfo
	for _, node := range nodes {
		s := f.RunFilterPlugins(ctx, state, c.Pod, node)
		c.Filter[node.Node().Name] = statusOf(s)
		if s.IsSuccess() {
			feasible = append(feasible, node)
		}
	}
	var err error
	if c.Chosen, err = chosenIn(state); err != nil {
		return err
	}
	if s := f.RunPreScorePlugins(ctx, state, c.Pod, feasible); !s.IsSuccess() {
		return s.AsError()
	}
	scores := slices.ContainsFunc(f.ListPlugins().PreScore.Enabled, func(p config.Plugin) bool { return p.Name == volumebinding.Name })
	c.Scored = scores && !state.GetSkipScorePlugins().Has(volumebinding.Name)
	return nil
}

// chosenIn reads what VolumeBinding keeps of each node, which nobody else is meant to see.
func chosenIn(state fwk.CycleState) (map[string]chosenVolumes, error) {
	found := map[string]chosenVolumes{}
	data, err := state.Read(volumebinding.Name)
	if err != nil {
		// The plugin is not in the profile.
		return found, nil
	}
	nodes := reflect.ValueOf(data).Elem().FieldByName("podVolumesByNode")
	if !nodes.IsValid() {
		return nil, fmt.Errorf("%T has no volumes by node", data)
	}
	for node := nodes.MapRange(); node.Next(); {
		volumes, chosen := node.Value().Elem(), chosenVolumes{Bindings: [][2]string{}, Provisions: []string{}}
		bindings := volumes.FieldByName("StaticBindings")
		for i := range bindings.Len() {
			binding := bindings.Index(i).Elem()
			chosen.Bindings = append(chosen.Bindings, [2]string{keyOf(binding.FieldByName("pv")), keyOf(binding.FieldByName("pvc"))})
		}
		provisions := volumes.FieldByName("DynamicProvisions")
		for i := range provisions.Len() {
			chosen.Provisions = append(chosen.Provisions, keyOf(provisions.Index(i).Elem().FieldByName("PVC")))
		}
		found[node.Key().String()] = chosen
	}
	return found, nil
}

func keyOf(object reflect.Value) string {
	of := object.Elem().FieldByName("ObjectMeta")
	read := metav1.ObjectMeta{Namespace: of.FieldByName("Namespace").String(), Name: of.FieldByName("Name").String()}
	return cache.MetaObjectToName(&read).String()
}
