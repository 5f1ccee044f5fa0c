// Command metadata-vectors runs upstream's controllers that care for objects of every kind.
//
// Arguments: "quota" or "namespace", how many lines, and the first seed. Output: a line for each
// seed: what the seed made up, and what one sync against upstream's fake clients wrote.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

const usage = "usage: metadata-vectors quota|namespace COUNT SEED"

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	// Errors that are reported besides logs go nowhere either.
	utilruntime.ErrorHandlers = nil
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "metadata-vectors: %v\n", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 3 {
		return errors.New(usage)
	}
	count, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	encode := json.NewEncoder(out)
	for at := range count {
		told, err := answered(args[0], seed+at)
		if err != nil {
			return err
		}
		if err := encode.Encode(told); err != nil {
			return err
		}
	}
	return out.Flush()
}

func answered(kind string, seed uint64) (any, error) {
	switch kind {
	case "quota":
		return quotaAnswer(seed)
	case "namespace":
		return namespaceAnswer(seed)
	}
	return nil, errors.New(usage)
}

// chance makes up values from a seed.
type chance struct{ rand *rand.Rand }

func newChance(seed uint64) chance { return chance{rand.New(rand.NewPCG(seed, 0))} }

// oneIn is true once in n times.
func (c chance) oneIn(n int) bool { return c.rand.IntN(n) == 0 }

// upTo is one of 0 to n-1.
func (c chance) upTo(n int) int { return c.rand.IntN(n) }

func pick[T any](c chance, of ...T) T { return of[c.rand.IntN(len(of))] }
