// Command golang-vectors tells what follows from the Go types of the API's objects.
//
// Input: a question a line. "types" and "mergeKeys" ask for the tables that the controllers are built
// with; a "template" or "merge" with a seed asks about a pod template or a patch that the seed makes up, and
// "printed" shows the text that the hash of that template is made of.
// Output: an answer a line. It is a program of its own because it needs few packages of Kubernetes.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// lineBytesMax is the longest line.
const lineBytesMax = 1 << 24

type question struct {
	Kind string `json:"kind"`
	Seed uint64 `json:"seed"`
}

func main() {
	// Printed times name the zone of the process; the images of Kubernetes have none.
	if err := os.Setenv("TZ", "UTC"); err != nil {
		panic(err)
	}
	_ = time.Local.String() // Reads the zone, as the first line of a log does.
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
		var answer any
		if answer, failed = answered(asked); failed == nil {
			failed = encode.Encode(answer)
		}
	}
	if err := errors.Join(failed, lines.Err(), out.Flush()); err != nil {
		fmt.Fprintf(os.Stderr, "golang-vectors: %v\n", err)
		os.Exit(1)
	}
}

func answered(asked question) (any, error) {
	switch asked.Kind {
	case "types":
		return typesTable(), nil
	case "mergeKeys":
		return mergeKeysTable(), nil
	case "template":
		return templateAnswer(asked.Seed)
	case "printed":
		return printedTemplate(asked.Seed)
	case "merge":
		return mergeAnswer(asked.Seed)
	}
	return nil, fmt.Errorf("no kind %q of question is known", asked.Kind)
}
