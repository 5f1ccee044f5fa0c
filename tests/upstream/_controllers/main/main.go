// Writes vectors: main -what job|cron|schedule|collector -n COUNT -seed SEED.
package main

import (
	"flag"
	"os"
	_ "time/tzdata"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"pintle.dev/tests/upstream/controllers/cronjob"
	"pintle.dev/tests/upstream/controllers/garbagecollector"
	"pintle.dev/tests/upstream/controllers/job"
)

func main() {
	n := flag.Int("n", 100, "")
	seed := flag.Int64("seed", 1, "")
	what := flag.String("what", "job", "")
	klog.LogToStderr(false)
	klog.SetOutput(nullW{})
	utilruntime.ErrorHandlers = nil
	flag.Parse()
	switch *what {
	case "job":
		job.WriteVectors(os.Stdout, *seed, *n)
	case "cron":
		cronjob.WriteCrons(os.Stdout, *seed, *n)
	case "collector":
		garbagecollector.WriteCollections(os.Stdout, *seed, *n)
	case "schedule":
		cronjob.WriteSchedules(os.Stdout, *seed, *n)
	}
}

type nullW struct{}

func (nullW) Write(b []byte) (int, error) { return len(b), nil }
