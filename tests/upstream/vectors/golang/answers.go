package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/controller"
	_ "k8s.io/kubernetes/pkg/controller/daemon" // getPatch, see below
	"k8s.io/kubernetes/pkg/controller/deployment/util"
	"k8s.io/kubernetes/pkg/controller/history"
	_ "k8s.io/kubernetes/pkg/controller/statefulset" // getPatch, see below
	"k8s.io/utils/dump"
	kjson "sigs.k8s.io/json"

	_ "unsafe" // The controllers' functions that are not exported.
)

//go:linkname daemonSetPatch k8s.io/kubernetes/pkg/controller/daemon.getPatch
func daemonSetPatch(set *appsv1.DaemonSet) ([]byte, error)

//go:linkname statefulSetPatch k8s.io/kubernetes/pkg/controller/statefulset.getPatch
func statefulSetPatch(set *appsv1.StatefulSet) ([]byte, error)

// template is an answer about a pod template and about another one that is nearly the same.
type template struct {
	Template       json.RawMessage `json:"template"`
	Hash           string          `json:"hash"`
	CollisionCount int32           `json:"collisionCount"`
	CollisionHash  string          `json:"collisionHash"`
	Typed          string          `json:"typed"`
	DaemonSet      string          `json:"daemonSet"`
	StatefulSet    string          `json:"statefulSet"`
	RevisionHash   string          `json:"revisionHash"`
	ProbedHash     string          `json:"probedHash"`
	Other          json.RawMessage `json:"other"`
	Equal          bool            `json:"equal"`
	EqualHashed    bool            `json:"equalHashed"`
}

// decoded reads a template as clients do.
func decoded(text []byte) (*v1.PodTemplateSpec, error) {
	var found v1.PodTemplateSpec
	return &found, kjson.UnmarshalCaseSensitivePreserveInts(text, &found)
}

func printedTemplate(seed uint64) (any, error) {
	d := newDice(seed, seed%4 != 0)
	text, err := json.Marshal(d.value(reflect.TypeFor[v1.PodTemplateSpec](), 0))
	if err != nil {
		return nil, err
	}
	pod, err := decoded(text)
	return dump.ForHash(*pod), err
}

func templateAnswer(seed uint64) (any, error) {
	d := newDice(seed, seed%4 != 0)
	made := d.value(reflect.TypeFor[v1.PodTemplateSpec](), 0)
	text, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	pod, err := decoded(text)
	if err != nil {
		return nil, fmt.Errorf("template %d: %w: %s", seed, err, text)
	}
	answer := template{Template: text, Hash: controller.ComputeHash(pod, nil), CollisionCount: int32(d.Uint32())}
	answer.CollisionHash = controller.ComputeHash(pod, &answer.CollisionCount)
	typed, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	answer.Typed = string(typed)
	patch, err := daemonSetPatch(&appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: *pod}})
	if err != nil {
		return nil, err
	}
	answer.DaemonSet = string(patch)
	patch, err = statefulSetPatch(&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: *pod}})
	if err != nil {
		return nil, err
	}
	answer.StatefulSet = string(patch)
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: patch}}
	answer.RevisionHash = history.HashControllerRevision(revision, nil)
	answer.ProbedHash = history.HashControllerRevision(revision, &answer.CollisionCount)
	d.changes = d.chance(50)
	other := d.respelled(made, reflect.TypeFor[v1.PodTemplateSpec]())
	if answer.Other, err = json.Marshal(other); err != nil {
		return nil, err
	}
	otherPod, err := decoded(answer.Other)
	if err != nil {
		return nil, fmt.Errorf("template %d: %w: %s", seed, err, answer.Other)
	}
	answer.Equal = util.EqualIgnoreHash(pod, otherPod)
	answer.EqualHashed = semanticEqual(pod, otherPod)
	return &answer, nil
}

// respellings are texts of equal quantities and times.
var respellings = [][]string{
	{"1", "1000m", "1.0", "+1"}, {"0.5", "500m"}, {"1Gi", "1024Mi", "1073741824"}, {"1k", "1000", "1e3"}, {"0", "0m", "-0"},
	{"64Mi", "65536Ki"}, {"100m", "0.1"}, {"1.5Gi", "1536Mi"},
}

// respelled is a copy that mostly says the same in other words, and sometimes does not.
func (d *dice) respelled(value any, t reflect.Type) any {
	if code, leaf := leaves[t]; leaf {
		if text, isText := value.(string); isText && code == "Q" {
			for _, same := range respellings {
				if slices.Contains(same, text) {
					return pick(d, same)
				}
			}
		}
		if text, isText := value.(string); isText && code == "T" && d.chance(50) {
			return strings.Replace(text, "Z", "+00:00", 1)
		}
		return value
	}
	if t.Kind() == reflect.Pointer {
		return d.respelled(value, t.Elem())
	}
	if d.changes && value != nil && d.chance(3) {
		return d.value(t, depthMax-2)
	}
	switch typed := value.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return value
		}
		copied := []any{}
		for _, item := range typed {
			copied = append(copied, d.respelled(item, t.Elem()))
		}
		return copied
	case map[string]any:
		copied := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(typed)) {
			inner := elementOf(t, key)
			if inner == nil {
				copied[key] = typed[key]
				continue
			}
			isEmptyList := reflect.ValueOf(typed[key]).Kind() == reflect.Slice && reflect.ValueOf(typed[key]).Len() == 0
			if isEmptyList && d.chance(50) {
				continue
			}
			copied[key] = d.respelled(typed[key], inner)
		}
		if labels, has := copied["labels"].(map[string]any); has && d.chance(30) {
			labels["pod-template-hash"] = d.text()
		}
		return copied
	}
	return value
}

// elementOf is the type of a field in JSON or of a map's values.
func elementOf(t reflect.Type, key string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == key {
			return field.Type
		}
		if name == "" {
			if found := elementOf(field.Type, key); found != nil {
				return found
			}
		}
	}
	return nil
}
