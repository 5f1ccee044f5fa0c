// Package suites keeps the test programs, which nothing else imports, in this module's go.sum.
package suites

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo/command"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
	_ "k8s.io/kubernetes/test/images/agnhost/netexec"
	_ "k8s.io/kubernetes/test/integration/scheduler_perf"
	_ "k8s.io/sample-apiserver/pkg/cmd/server"
)
