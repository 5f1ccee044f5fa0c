package elsewhere

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// ports has where the newest program serves that runs a controller: name to port.
var ports sync.Map

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
// at once, and upstream's own controller has to run.
func Runs(ctx context.Context, controller string, workers int, flags ...string) bool {
	if Program == "" {
		return false
	}
	if flag, ok := workersOf[controller]; ok {
		flags = append(flags, fmt.Sprintf("--%s=%d", flag, workers))
	}
	if err := run(ctx, controller, flags); err != nil && ctx.Err() == nil {
		// The test fails by itself, and those after it go on.
		fmt.Fprintf(os.Stderr, "PINTLE_CONTROLLERS=%s: %v\n", Program, err)
	}
	return true
}

func run(ctx context.Context, controller string, flags []string) error {
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
	ports.Store(controller, port)
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
	return Run(ctx, Program, args)
}

// Count is the value of a counter, or of the count of a histogram, of the program that runs the
// controller; 0 when it does not have it.
func Count(controller, metric string, labels map[string]string) (float64, error) {
	port, ok := ports.Load(controller)
	if !ok {
		return 0, fmt.Errorf("%s does not run elsewhere", controller)
	}
	answer, err := Get(port.(int), "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		line := lines.Text()
		rest, ok := strings.CutPrefix(line, metric)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		has := true
		for name, value := range labels {
			has = has && (strings.Contains(rest, fmt.Sprintf("{%s=%q", name, value)) || strings.Contains(rest, fmt.Sprintf(",%s=%q", name, value)))
		}
		if has {
			return strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		}
	}
	return 0, nil
}
