package elsewhere

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	// What it counted is read before it ends.
	living, kill := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		end(controller, port)
		kill()
	})
	return Run(living, Program, args, variables...)
}

// count is what programs that run a controller have counted since the last reset.
type count struct {
	// newest is the port of the program that was started last.
	newest int
	// living has, by port, what each program that runs had counted before.
	living map[int]map[string]float64
	// ended is what programs counted that have ended.
	ended map[string]float64
}

var counts = struct {
	sync.Mutex
	of map[string]*count
}{of: map[string]*count{}}

// ResetCounts has all counts begin at 0 again.
func ResetCounts() {
	counts.Lock()
	defer counts.Unlock()
	for _, one := range counts.of {
		one.ended = map[string]float64{}
		for port := range one.living {
			one.living[port] = read(port)
		}
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
	all := maps.Clone(one.ended)
	for port, before := range one.living {
		add(all, read(port), before)
	}
	sum := 0.0
	for series, value := range all {
		if is(series, metric, labels) {
			sum += value
		}
	}
	return sum
}

// add adds what was counted since before.
func add(all, now, before map[string]float64) {
	for series, value := range now {
		all[series] += value - before[series]
	}
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

// begin notes where a program serves; end keeps what it counted, and is called while it still runs.
func begin(controller string, port int) {
	counts.Lock()
	defer counts.Unlock()
	if counts.of[controller] == nil {
		counts.of[controller] = &count{living: map[int]map[string]float64{}, ended: map[string]float64{}}
	}
	one := counts.of[controller]
	one.newest, one.living[port] = port, nil
}

func end(controller string, port int) {
	counts.Lock()
	defer counts.Unlock()
	one := counts.of[controller]
	add(one.ended, read(port), one.living[port])
	delete(one.living, port)
}

// showTimeMax is how long a page may show what is gone already: the program has watches of its own.
const showTimeMax = 3 * time.Second

// KeepsShowing is whether a page shows this text also after a while.
func KeepsShowing(controller, page, text string) bool {
	for begun := time.Now(); time.Since(begun) < showTimeMax; time.Sleep(50 * time.Millisecond) {
		if !Shows(controller, page, text) {
			return false
		}
	}
	return true
}

// Shows is whether a page below /debug/controllers/NAME/ of the program has this text.
func Shows(controller, page, text string) bool {
	counts.Lock()
	one := counts.of[controller]
	counts.Unlock()
	if one == nil {
		return false
	}
	answer, err := Get(one.newest, "/debug/controllers/"+controller+"/"+page)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return err == nil && strings.Contains(string(body), text)
}
