package main

import (
	"context"
	"fmt"
	_ "unsafe" // for go:linkname

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	evaluator "k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	testingclock "k8s.io/utils/clock/testing"
)

// quotaStatus is what one sync read and wrote.
type quotaStatus struct {
	// Now is when it began.
	Now string `json:"now"`
	// Objects are those that the caches have.
	Objects []any `json:"objects"`
	// Unlisted are the plurals of kinds that cannot be listed.
	Unlisted []string `json:"unlisted"`
	// IsMixed says whether quantities of one resource have several notations: the notation of their
	// sum depends on the order of a map then.
	IsMixed bool `json:"isMixed"`
	// Status is what was written; null if nothing was.
	Status any `json:"status"`
	// Error is why the sync failed.
	Error string `json:"error"`
}

// counted are the kinds of which objects as such are counted, and an older name of the count.
var counted = map[schema.GroupVersionResource]corev1.ResourceName{
	{Version: "v1", Resource: "configmaps"}:             corev1.ResourceConfigMaps,
	{Version: "v1", Resource: "secrets"}:                corev1.ResourceSecrets,
	{Version: "v1", Resource: "resourcequotas"}:         corev1.ResourceQuotas,
	{Version: "v1", Resource: "replicationcontrollers"}: corev1.ResourceReplicationControllers,
	{Group: "batch", Version: "v1", Resource: "jobs"}:   "",
}

//go:linkname syncQuota k8s.io/kubernetes/pkg/controller/resourcequota.(*Controller).syncResourceQuotaFromKey
func syncQuota(rq *resourcequota.Controller, ctx context.Context, key string) error

// quotaAnswer syncs the quota of the cluster that a seed makes up.
func quotaAnswer(seed uint64) (*quotaStatus, error) {
	w := newWorld(seed)
	w.cluster()
	// Upstream adds the overhead of a pod to the quantities of its object, sometimes.
	objects := w.typed()
	indexers := w.indexers()
	client := &fake.Clientset{}
	shared := informers.NewSharedInformerFactory(client, 0)
	quotas := shared.Core().V1().ResourceQuotas()
	for _, object := range indexers["resourcequotas"].List() {
		if err := quotas.Informer().GetIndexer().Add(object); err != nil {
			return nil, err
		}
	}
	rq, err := resourcequota.NewController(context.Background(), &resourcequota.ControllerOptions{
		QuotaClient:           client.CoreV1(),
		ResourceQuotaInformer: quotas,
		ResyncPeriod:          controller.NoResyncPeriodFunc,
		Registry:              generic.NewRegistry(w.evaluators(indexers)),
	})
	if err != nil {
		return nil, err
	}
	err = syncQuota(rq, context.Background(), namespace+"/q")
	told := &quotaStatus{
		Now: now.Format("2006-01-02T15:04:05Z"), Objects: objects, Unlisted: w.unlisted, IsMixed: w.isMixed,
	}
	if err != nil {
		told.Error = err.Error()
	}
	for _, action := range client.Actions() {
		if update, isUpdate := action.(core.UpdateAction); isUpdate {
			told.Status = update.GetObject().(*corev1.ResourceQuota).Status
		}
	}
	return told, nil
}

// indexers returns the caches by the plurals of kinds.
func (w *world) indexers() map[string]cache.Indexer {
	indexers := map[string]cache.Indexer{}
	for _, plural := range plurals {
		indexers[plural] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})
	}
	for _, one := range w.objects {
		if err := indexers[one.plural].Add(one.object); err != nil {
			panic(err)
		}
	}
	return indexers
}

// evaluators are those of upstream's controller, over the world's caches.
func (w *world) evaluators(indexers map[string]cache.Indexer) []quota.Evaluator {
	list := func(of schema.GroupVersionResource) (cache.GenericLister, error) {
		for _, plural := range w.unlisted {
			if plural == of.Resource {
				return nil, fmt.Errorf("%v not yet synced", of)
			}
		}
		return cache.NewGenericLister(indexers[of.Resource], of.GroupResource()), nil
	}
	classes := extendedresourcecache.NewExtendedResourceCache(klog.Background())
	for _, one := range w.objects {
		if class, isClass := one.object.(*resourceapi.DeviceClass); isClass {
			classes.OnAdd(class, true)
		}
	}
	evaluators := []quota.Evaluator{
		evaluator.NewPodEvaluator(list, testingclock.NewFakeClock(now)),
		evaluator.NewServiceEvaluator(list),
		evaluator.NewPersistentVolumeClaimEvaluator(list),
		evaluator.NewResourceClaimEvaluator(list, classes, corev1listers.NewPodLister(indexers["pods"]), w.claimsOf),
	}
	for of, alias := range counted {
		lists := generic.ListResourceUsingListerFunc(list, of)
		evaluators = append(evaluators, generic.NewObjectCountEvaluator(of.GroupResource(), lists, alias))
	}
	return evaluators
}

// claimsOf are the claims for extended resources of a pod.
func (w *world) claimsOf(namespace string, pod types.UID) ([]*resourceapi.ResourceClaim, error) {
	found := []*resourceapi.ResourceClaim{}
	for _, one := range w.objects {
		claim, isClaim := one.object.(*resourceapi.ResourceClaim)
		if !isClaim || claim.Namespace != namespace {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(claim)
		isExtended := claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true"
		if isExtended && owner != nil && owner.Kind == "Pod" && owner.APIVersion == "v1" && owner.UID == pod {
			found = append(found, claim)
		}
	}
	return found, nil
}

// typed returns the objects with their kinds, as JSON needs them.
func (w *world) typed() []any {
	objects := []any{}
	for _, one := range w.objects {
		object := one.object.DeepCopyObject()
		object.GetObjectKind().SetGroupVersionKind(kinds[one.plural])
		objects = append(objects, object)
	}
	return objects
}

// known is an object and the plural of its kind.
type known struct {
	plural string
	object runtime.Object
}
