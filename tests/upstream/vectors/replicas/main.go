// Command replicas tells what upstream's controllers of Deployments and ReplicaSets do in one sync.
//
// Input: "deployment" or "replicaset", how many seeds, and the first of them, 0 unless given. Output: a JSON line a seed with random
// objects and what upstream's sync function wrote with a fake client. Syncs in which a second passes
// are left out. Built with -ldflags=-checklinkname=0, because the sync functions are not exported.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) != 3 && len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: replicas deployment|replicaset COUNT [FIRST]")
		os.Exit(2)
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	first := 0
	if len(os.Args) == 4 {
		if first, err = strconv.Atoi(os.Args[3]); err != nil {
			panic(err)
		}
	}
	lines := bufio.NewWriter(os.Stdout)
	for seed := first; seed < first+count; seed++ {
		now := time.Now()
		random := rand.New(rand.NewSource(int64(seed)))
		line := any(nil)
		if os.Args[1] == "deployment" {
			line = deploymentLine(random, now)
		} else {
			line = setLine(random, now)
		}
		text, err := json.Marshal(line)
		if err != nil {
			panic(err)
		}
		if time.Now().Unix() != now.Unix() {
			continue
		}
		fmt.Fprintf(lines, "%s\n", text)
	}
	if err := lines.Flush(); err != nil {
		panic(err)
	}
}

// copyOf keeps objects as they were before a sync.
func copyOf[T any](value T) T {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var before T
	if err := json.Unmarshal(text, &before); err != nil {
		panic(err)
	}
	return before
}

func deploymentLine(random *rand.Rand, now time.Time) vectorOfDeployment {
	vector := makeVectorOfDeployment(random, now.Unix())
	vector.Nanos = time.Now().Nanosecond()
	before := copyOf(vector)
	before.Want = syncOneOfDeployment(&vector)
	return before
}

func setLine(random *rand.Rand, now time.Time) vectorOfSet {
	vector := makeVectorOfSet(random, now.Unix())
	vector.Nanos = time.Now().Nanosecond()
	before := copyOf(vector)
	before.Want = syncOneOfSet(&vector)
	return before
}
