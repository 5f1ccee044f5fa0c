package elsewhere

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	restclient "k8s.io/client-go/rest"
)

// Program is the controller manager that tests are pointed at; empty for upstream's own controllers.
var Program = os.Getenv("PINTLE_CONTROLLERS")

// server is the newest API server of this process: tests start one at a time, and a controller's
// client does not tell its own.
var server atomic.Pointer[testServer]

type testServer struct {
	config *restclient.Config
	// tokenKey is the file that it signs tokens with; empty if it has none of its own.
	tokenKey string
}

// workersOf are the flags for how many syncs of a controller run at once.
var workersOf = map[string]string{
	"cronjob-controller":               "concurrent-cron-job-syncs",
	"daemonset-controller":             "concurrent-daemonset-syncs",
	"deployment-controller":            "concurrent-deployment-syncs",
	"garbage-collector-controller":     "concurrent-gc-syncs",
	"job-controller":                   "concurrent-job-syncs",
	"namespace-controller":             "concurrent-namespace-syncs",
	"replicaset-controller":            "concurrent-replicaset-syncs",
	"replicationcontroller-controller": "concurrent-rc-syncs",
	"resourcequota-controller":         "concurrent-resource-quota-syncs",
	"serviceaccount-token-controller":  "concurrent-serviceaccount-token-syncs",
	"statefulset-controller":           "concurrent-statefulset-syncs",
}

// Remember keeps how to reach an API server that a test has started, and the file of its key.
func Remember(config *restclient.Config, tokenKey string) {
	server.Store(&testServer{config: restclient.CopyConfig(config), tokenKey: tokenKey})
}

// TokenKey is the argument that names the key for tokens.
func TokenKey() string {
	if found := server.Load(); found != nil {
		return "--service-account-private-key-file=" + found.tokenKey
	}
	return ""
}

// Runs runs a controller in the program until the context ends. Without a program it returns false
// at once, and upstream's own controller has to run. More is said to the program by flags, and by
// variables of its environment.
func Runs(ctx context.Context, controller string, workers int, more ...string) bool {
	if Program == "" {
		return false
	}
	var flags, variables []string
	for _, one := range more {
		if strings.HasPrefix(one, "--") {
			flags = append(flags, one)
		} else {
			variables = append(variables, one)
		}
	}
	if flag, ok := workersOf[controller]; ok {
		flags = append(flags, fmt.Sprintf("--%s=%d", flag, workers))
	}
	if err := run(ctx, controller, flags, variables); err != nil && ctx.Err() == nil {
		// The test fails by itself, and those after it go on.
		fmt.Fprintf(os.Stderr, "PINTLE_CONTROLLERS=%s: %v\n", Program, err)
	}
	return true
}

func run(ctx context.Context, controller string, flags, variables []string) error {
	found := server.Load()
	if found == nil {
		return fmt.Errorf("no API server is remembered")
	}
	dir, err := os.MkdirTemp("", "pintle-elsewhere")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := WriteKubeconfig(found.config, kubeconfig); err != nil {
		return err
	}
	port := FreePort()
	begin(controller, port)
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--controllers=" + controller,
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--authorization-always-allow-paths=/metrics,/readyz,/debug/*",
		// Clients of tests are limited by their tests alone.
		"--kube-api-qps=5000",
		"--kube-api-burst=5000",
	}
	args = append(append(args, flags...), Gates()...)
	// What is asked of the program after the test's end of it is asked before ours.
	living, kill := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		end(controller, port)
		kill()
	})
	return Run(living, Program, args, variables...)
}

// count is where a program serves that runs a controller, and what programs counted that ended.
type count struct {
	port  int
	ended map[string]float64
}

var counts = struct {
	sync.Mutex
	of map[string]*count
}{of: map[string]*count{}}

// ResetCounts forgets what programs counted that have ended.
func ResetCounts() {
	counts.Lock()
	defer counts.Unlock()
	for _, one := range counts.of {
		one.ended = map[string]float64{}
	}
}

// Count is the value of a counter with these label values since the last reset, of all programs
// that ran the controller; 0 for one that nothing was counted with.
func Count(controller, metric string, labels []string) float64 {
	counts.Lock()
	defer counts.Unlock()
	one := counts.of[controller]
	if one == nil {
		return 0
	}
	sum := 0.0
	for _, all := range []map[string]float64{one.ended, read(one.port)} {
		for series, value := range all {
			if is(series, metric, labels) {
				sum += value
			}
		}
	}
	return sum
}

// is tells whether a series is that of a metric with these label values, in any order.
func is(series, metric string, labels []string) bool {
	rest, ok := strings.CutPrefix(series, metric+"{")
	if !ok {
		return false
	}
	var values []string
	for _, pair := range strings.Split(strings.TrimSuffix(rest, "}"), ",") {
		if _, value, ok := strings.Cut(pair, "="); ok {
			values = append(values, strings.Trim(value, `"`))
		}
	}
	labels = slices.Clone(labels)
	slices.Sort(labels)
	slices.Sort(values)
	return slices.Equal(labels, values)
}

// read is all counters of a program, by series; none if it does not serve.
func read(port int) map[string]float64 {
	all := map[string]float64{}
	answer, err := Get(port, "/metrics")
	if err != nil {
		return all
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		series, text, ok := strings.Cut(lines.Text(), "} ")
		if value, err := strconv.ParseFloat(text, 64); ok && err == nil {
			all[series+"}"] = value
		}
	}
	return all
}

// begin notes where a program serves; end adds what it counted to what others did.
func begin(controller string, port int) {
	counts.Lock()
	defer counts.Unlock()
	if counts.of[controller] == nil {
		counts.of[controller] = &count{ended: map[string]float64{}}
	}
	counts.of[controller].port = port
}

func end(controller string, port int) {
	last := read(port)
	counts.Lock()
	defer counts.Unlock()
	for series, value := range last {
		counts.of[controller].ended[series] += value
	}
}

// Shows is whether a page below /debug/controllers/NAME/ of the program has this text.
func Shows(controller, page, text string) bool {
	counts.Lock()
	one := counts.of[controller]
	counts.Unlock()
	if one == nil {
		return false
	}
	answer, err := Get(one.port, "/debug/controllers/"+controller+"/"+page)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return err == nil && strings.Contains(string(body), text)
}
