package vectors

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
)

// choices is how often a node is chosen, so that all that are equally good are seen: upstream takes
// one of them by chance.
const choices = 200

// attempt is what preemption comes to where no node is feasible.
type attempt struct {
	Eligible        bool               `json:"eligible"`
	EligibleMessage string             `json:"eligible_message,omitempty"`
	Potential       []string           `json:"potential_nodes"`
	Candidates      map[string]victims `json:"candidates"`
	Rejected        map[string]status  `json:"rejected"`
	Tied            []string           `json:"tied"`
	Errors          string             `json:"preemption_error,omitempty"`
	PostFilter      *status            `json:"postfilter,omitempty"`
}

type victims struct {
	Pods       []string `json:"victims"`
	Violations int64    `json:"pdb_violations"`
}

// preempt runs upstream's dry run over all nodes that might be made free, and its choice.
func (d *decider) preempt(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes int, rejected *framework.NodeToStatus) (*attempt, error) {
	plugin, ok := d.instances[defaultpreemption.Name].(*defaultpreemption.DefaultPreemption)
	if !ok {
		return nil, fmt.Errorf("no %s", defaultpreemption.Name)
	}
	found := &attempt{Candidates: map[string]victims{}, Rejected: map[string]status{}, Potential: []string{}, Tied: []string{}}
	nominated := rejected.Get(pod.Status.NominatedNodeName)
	found.Eligible, found.EligibleMessage = plugin.PodEligibleToPreemptOthers(ctx, pod, nominated)
	if !found.Eligible {
		return found, nil
	}
	lister := d.snapshot.NodeInfos()
	potential, err := rejected.NodesForStatusCode(lister, fwk.Unschedulable)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(potential, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	for _, node := range potential {
		found.Potential = append(found.Potential, node.Node().Name)
	}
	if len(potential) == 0 {
		return found, nil
	}
	candidates, statuses, err := plugin.Evaluator.DryRunPreemption(ctx, state, pod, potential, d.budgets, 0, int32(len(potential)))
	if err != nil {
		found.Errors = err.Error()
	}
	statuses.ForEachExplicitNode(func(name string, s *fwk.Status) { found.Rejected[name] = statusOf(s) })
	for _, c := range candidates {
		named := victims{Violations: c.Victims().NumPDBViolations}
		for _, victim := range c.Victims().Pods {
			named.Pods = append(named.Pods, victim.Namespace+"/"+victim.Name)
		}
		found.Candidates[c.Name()] = named
	}
	if len(candidates) == 0 {
		if err == nil {
			found.PostFilter = notHelped(pod, nodes, statuses)
		}
		return found, nil
	}
	for range choices {
		if name := plugin.Evaluator.SelectCandidate(ctx, candidates).Name(); !slices.Contains(found.Tied, name) {
			found.Tied = append(found.Tied, name)
		}
	}
	slices.Sort(found.Tied)
	return found, nil
}

// notHelped is what is told where there is no candidate, in the place where recordings have it.
func notHelped(pod *v1.Pod, nodes int, statuses *framework.NodeToStatus) *status {
	statuses.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
	told := framework.FitError{
		Pod:         pod,
		NumAllNodes: nodes,
		Diagnosis:   framework.Diagnosis{NodeToStatus: statuses},
	}
	return &status{Status: fwk.Unschedulable.String(), Plugin: defaultpreemption.Name, Reasons: []string{"", "preemption: " + told.Error()}}
}

// nobody is a nominator of no pod.
type nobody struct{}

func (nobody) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (nobody) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (nobody) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (nobody) NominatedPodsForNode(string) []fwk.PodInfo                     { return nil }
