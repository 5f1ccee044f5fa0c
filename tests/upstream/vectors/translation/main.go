// Command translation-vectors translates random volumes of in-tree plugins to CSI by upstream's library.
//
// Arguments: "translation", how many lines, and the first seed. Output: a line for each seed: a
// PersistentVolume or a volume of a pod, and the PersistentVolume that upstream makes of it, or its
// error. Left out is what upstream panics on: a storage policy of a pod's vSphere volume.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// answer is a line.
type answer struct {
	Seed      uint64               `json:"seed"`
	Namespace string               `json:"namespace,omitempty"`
	Volume    *v1.PersistentVolume `json:"volume,omitempty"`
	Inline    *v1.Volume           `json:"inline,omitempty"`
	CSI       *v1.PersistentVolume `json:"csi,omitempty"`
	Error     string               `json:"error,omitempty"`
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "translation-vectors: %v\n", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 3 || args[0] != "translation" {
		return errors.New("usage: translation-vectors translation COUNT SEED")
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
		if err := encode.Encode(answered(seed + at)); err != nil {
			return err
		}
	}
	return out.Flush()
}

func answered(seed uint64) answer {
	c := newChance(seed)
	told := answer{Seed: seed}
	translator := csitranslation.New()
	var err error
	if c.oneIn(3) {
		told.Inline = c.inline()
		told.Namespace = pick(c, "", "default", "team-a")
		told.CSI, err = translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), told.Inline, told.Namespace)
	} else {
		told.Volume = c.volume()
		told.CSI, err = translator.TranslateInTreePVToCSI(klog.Background(), told.Volume)
	}
	if err != nil {
		told.Error = err.Error()
	}
	return told
}
