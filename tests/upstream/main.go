// Command upstream is every component of a Kubernetes cluster in one program. The name it is called
// under chooses the component, so one link step and one file in the cache serve all of them.
// Beside them, `scheduler-vectors` asks the scheduling framework alone, `device-vectors` the allocator of
// devices, `selector-vectors` its expressions, `allocatable-vectors` the plugin of devices that take of their
// node, `volume-vectors` the plugins of volumes, `reading-vectors` the kubelet's readers of files.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"pintle.dev/tests/upstream/vectors"

	// What upstream's own mains link for their side effects: the JSON log format and the metrics
	// of the client and of the build.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	if name == "scheduler-vectors" {
		os.Exit(vectors.Main())
	}
	if name == "device-vectors" {
		os.Exit(vectors.DevicesMain())
	}
	if name == "selector-vectors" {
		os.Exit(vectors.SelectorsMain())
	}
	if name == "allocatable-vectors" {
		os.Exit(vectors.AllocatableMain())
	}
	if name == "volume-vectors" {
		os.Exit(vectors.VolumesMain())
	}
	if name == "reading-vectors" {
		os.Exit(vectors.ReadingMain())
	}
	command, known := components[name]
	if !known {
		names := []string{"etcd", "scheduler-vectors", "device-vectors", "allocatable-vectors", "selector-vectors", "volume-vectors", "reading-vectors"}
		for each := range components {
			names = append(names, each)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "upstream: called as %q; link it under one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
