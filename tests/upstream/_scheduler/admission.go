// What upstream's package of the admission of pod groups lacks: it starts no etcd of its own, as the
// other packages of the scheduler's tests do. Laid into test/integration/scheduler/podgroup/admission.
package admission

import (
	"testing"

	"k8s.io/kubernetes/test/integration/framework"
)

func TestMain(m *testing.M) {
	framework.EtcdMain(m.Run)
}
