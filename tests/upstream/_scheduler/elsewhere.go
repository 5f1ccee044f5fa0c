// What upstream's scheduler gets when its tests are pointed at another program: laid into
// k8s.io/kubernetes/pkg/scheduler when the tests are built, never built here.
//
// Where PINTLE_SCHEDULER names a program, a scheduler that a test starts keeps its caches, which
// tests look at, and decides nothing: the program does, with the same configuration in a file, the
// same credentials and the same feature gates. Without the variable everything is upstream's.
package scheduler

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/elsewhere"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/utils/ptr"
)

// ElsewhereProgram is the scheduler that tests are pointed at; empty for upstream's own.
var ElsewhereProgram = os.Getenv("PINTLE_SCHEDULER")

// elsewhereReadyMax is how long the program has until it knows the cluster, elsewhereLook how often
// it is asked.
const (
	elsewhereReadyMax = 30 * time.Second
	elsewhereLook     = 20 * time.Millisecond
)

// elsewheres has what each scheduler of this process was made with: *Scheduler to *elsewhereScheduler.
var elsewheres sync.Map

// elsewhereScheduler is a scheduler of a test, and the port that the program serves in its place.
type elsewhereScheduler struct {
	options schedulerOptions
	port    int
	ended   chan struct{}
}

func (sched *Scheduler) rememberElsewhere(options schedulerOptions) {
	if ElsewhereProgram != "" {
		elsewheres.Store(sched, &elsewhereScheduler{options: options, port: elsewhere.FreePort(), ended: make(chan struct{})})
	}
}

// decideHereOrElsewhere decides until the context ends, in this process or in the program.
func (sched *Scheduler) decideHereOrElsewhere(ctx context.Context) {
	if ElsewhereProgram == "" {
		wait.UntilWithContext(ctx, sched.ScheduleOne, 0)
		return
	}
	found, _ := elsewheres.Load(sched)
	other := found.(*elsewhereScheduler)
	go sched.drainElsewhere(klog.FromContext(ctx))
	defer close(other.ended)
	if err := other.run(ctx); err != nil && ctx.Err() == nil {
		// The test fails by itself, and those after it go on.
		fmt.Fprintf(os.Stderr, "PINTLE_SCHEDULER=%s: %v\n", ElsewhereProgram, err)
	}
}

// Start runs the scheduler; when it returns, the program that decides in its place has listed all
// that there is, as the scheduler's own informers have: what a test makes next is news to it.
func (sched *Scheduler) Start(ctx context.Context) {
	go sched.Run(ctx)
	found, ok := elsewheres.Load(sched)
	if !ok {
		return
	}
	other := found.(*elsewhereScheduler)
	for deadline := time.Now().Add(elsewhereReadyMax); time.Now().Before(deadline); {
		if answer, err := other.get("/readyz"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-other.ended:
			return
		case <-time.After(elsewhereLook):
		}
	}
}

// get asks the program.
func (other *elsewhereScheduler) get(path string) (*http.Response, error) {
	return elsewhere.Get(other.port, path)
}

// drainElsewhere takes pods out of the queue of this process, which nobody else does.
func (sched *Scheduler) drainElsewhere(logger klog.Logger) {
	for {
		pod, err := sched.NextPod(logger)
		if err != nil || pod == nil || pod.Pod == nil {
			return
		}
		sched.SchedulingQueue.Done(pod.Pod.UID)
	}
}

func (other *elsewhereScheduler) run(ctx context.Context) error {
	if names := len(other.options.frameworkOutOfTreeRegistry); names > 0 {
		return fmt.Errorf("the test has %d plugins in its own process, where no other program can call them", names)
	}
	dir, err := os.MkdirTemp("", "pintle-elsewhere")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := elsewhere.WriteKubeconfig(other.options.kubeConfig, kubeconfig); err != nil {
		return err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := other.writeConfig(config, kubeconfig); err != nil {
		return err
	}
	if kept := os.Getenv("PINTLE_SCHEDULER_CONFIGS"); kept != "" {
		text, _ := os.ReadFile(config)
		_ = os.WriteFile(filepath.Join(kept, fmt.Sprintf("%d-%d.yaml", os.Getpid(), other.port)), text, 0o644)
	}
	args := []string{
		"--config=" + config,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", other.port),
		"--authorization-always-allow-paths=/metrics,/readyz",
	}
	return elsewhere.Run(ctx, ElsewhereProgram, append(args, elsewhere.Gates()...))
}

// writeConfig writes what the options say as the file that a scheduler is started with.
func (other *elsewhereScheduler) writeConfig(path, kubeconfig string) error {
	var versioned configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&versioned)
	config := schedulerapi.KubeSchedulerConfiguration{}
	if err := scheme.Scheme.Convert(&versioned, &config, nil); err != nil {
		return err
	}
	options := other.options
	config.Profiles = options.profiles
	config.Extenders = options.extenders
	config.Parallelism = options.parallelism
	config.PercentageOfNodesToScore = ptr.To(options.percentageOfNodesToScore)
	// A file cannot ask for no backoff at all, which options can.
	config.PodInitialBackoffSeconds = max(options.podInitialBackoffSeconds, 1)
	config.PodMaxBackoffSeconds = max(options.podMaxBackoffSeconds, 1)
	config.LeaderElection.LeaderElect = false
	config.ClientConnection.Kubeconfig = kubeconfig
	// Clients of tests are limited by their tests alone.
	config.ClientConnection.QPS, config.ClientConnection.Burst = 5000, 5000
	info, ok := apiruntime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), apiruntime.ContentTypeYAML)
	if !ok {
		return fmt.Errorf("configurations have no YAML")
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion).Encode(&config, file)
}

// HasElsewhere is whether the program knows at least so many `nodes` or `pods`; true without one.
func (sched *Scheduler) HasElsewhere(kind string, count int) bool {
	known, isElsewhere := sched.countElsewhere(kind)
	return !isElsewhere || known >= count
}

// IsElsewhere is whether the program knows just so many; true without one.
func (sched *Scheduler) IsElsewhere(kind string, count int) bool {
	known, isElsewhere := sched.countElsewhere(kind)
	return !isElsewhere || known == count
}

func (sched *Scheduler) countElsewhere(kind string) (int, bool) {
	found, ok := elsewheres.Load(sched)
	if !ok {
		return 0, false
	}
	answer, err := found.(*elsewhereScheduler).get("/metrics")
	if err != nil {
		return -1, true
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "scheduler_cache_size{") && strings.Contains(line, fmt.Sprintf("type=%q", kind)) {
			count, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
			if err == nil {
				return count, true
			}
		}
	}
	return -1, true
}
