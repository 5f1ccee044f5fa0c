// Command sets-vectors syncs StatefulSets and DaemonSets with upstream's own controllers.
//
// Input: a question a line: "statefulset" or "daemonset", and a seed that makes up a set, its pods,
// revisions, claims and nodes. Output: an answer a line: these objects, and the requests and events
// of one sync against upstream's fake client.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/klog/v2"
)

// lineBytesMax is the longest line.
const lineBytesMax = 1 << 20

type question struct {
	Kind string `json:"kind"`
	Seed uint64 `json:"seed"`
}

// answer is what one sync read and did.
type answer struct {
	// Now is when it began.
	Now string `json:"now"`
	// HasGate says whether MaxUnavailableStatefulSet is on.
	HasGate bool `json:"hasGate"`
	// Objects are those that the caches have.
	Objects []any `json:"objects"`
	// Requests are those that write.
	Requests []request `json:"requests"`
	// Events have the form of the fake recorder: level, reason, message.
	Events []string `json:"events"`
	// Error is why the sync failed.
	Error string `json:"error"`
	// IsRollout says whether which pods are chosen may depend on the order of a map.
	IsRollout bool `json:"isRollout"`
	// Refused are requests that the API server refused: verb, resource and name.
	Refused []string `json:"refused"`
}

type request struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Sub      string `json:"sub"`
	Name     string `json:"name"`
	Body     any    `json:"body"`
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	out := bufio.NewWriter(os.Stdout)
	encode := json.NewEncoder(out)
	var failed error
	for failed == nil && lines.Scan() {
		var asked question
		if failed = json.Unmarshal(lines.Bytes(), &asked); failed != nil {
			break
		}
		var told *answer
		if told, failed = answered(asked); failed == nil {
			failed = encode.Encode(told)
		}
	}
	if err := errors.Join(failed, lines.Err(), out.Flush()); err != nil {
		fmt.Fprintf(os.Stderr, "sets-vectors: %v\n", err)
		os.Exit(1)
	}
}

func answered(asked question) (*answer, error) {
	switch asked.Kind {
	case "statefulset":
		return statefulSetAnswer(asked.Seed)
	case "daemonset":
		return daemonSetAnswer(asked.Seed)
	}
	return nil, fmt.Errorf("no kind %q of question is known", asked.Kind)
}
