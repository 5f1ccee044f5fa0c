// What upstream's test server of the scheduler gets when its tests are pointed at another program:
// laid into k8s.io/kubernetes/cmd/kube-scheduler/app/testing when the tests are built.
package testing

import (
	"context"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeschedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/pkg/elsewhere"
	"k8s.io/kubernetes/pkg/scheduler"
)

// runHereOrElsewhere serves until the context ends, from this process or from the program, on the
// port and with the folder for certificates that the test has chosen. The test asks over IPv6.
func runHereOrElsewhere(ctx context.Context, config *kubeschedulerconfig.CompletedConfig, sched *scheduler.Scheduler, flags []string, dir string, port int) error {
	if scheduler.ElsewhereProgram == "" {
		return app.Run(ctx, config, sched)
	}
	_ = config.SecureServing.Listener.Close()
	args := append([]string{}, flags...)
	args = append(args, fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+dir, "--authorization-always-allow-paths=/healthz")
	return elsewhere.Run(ctx, scheduler.ElsewhereProgram, append(args, elsewhere.Gates()...))
}
