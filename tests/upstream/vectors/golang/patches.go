package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// semanticEqual also compares the label of the hash.
func semanticEqual(a, b any) bool {
	return apiequality.Semantic.DeepEqual(a, b)
}

// merged is an answer about two objects of a kind, and about a patch with directives.
type merged struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Original   json.RawMessage `json:"original"`
	Modified   json.RawMessage `json:"modified"`
	// TwoWay is the patch from one to the other, and TwoWayMerged what becomes of it.
	TwoWay       json.RawMessage `json:"twoWay,omitempty"`
	TwoWayMerged json.RawMessage `json:"twoWayMerged,omitempty"`
	TwoWayError  string          `json:"twoWayError,omitempty"`
	Patch        json.RawMessage `json:"patch"`
	Merged       json.RawMessage `json:"merged,omitempty"`
	Error        string          `json:"error,omitempty"`
}

// likelyKinds have most of the lists that merge.
var likelyKinds = []string{"Pod", "Deployment", "StatefulSet", "Node", "Service", "ServiceAccount", "CronJob", "PersistentVolumeClaim"}

func objectKinds() []string {
	var found []string
	for kind, t := range scheme.Scheme.AllKnownTypes() {
		if _, isObject := t.FieldByName("ObjectMeta"); isObject && kind.Version != runtime.APIVersionInternal {
			found = append(found, kind.GroupVersion().String()+" "+kind.Kind)
		}
	}
	slices.Sort(found)
	return found
}

var allKinds = objectKinds()

func kindType(of string) (version, kind string, t reflect.Type) {
	version, kind, _ = strings.Cut(of, " ")
	for known, t := range scheme.Scheme.AllKnownTypes() {
		if known.GroupVersion().String() == version && known.Kind == kind {
			return version, kind, t
		}
	}
	panic(of)
}

func mergeAnswer(seed uint64) (any, error) {
	d := newDice(seed, false)
	of := pick(d, allKinds)
	if d.chance(70) {
		wanted := pick(d, likelyKinds)
		for _, each := range allKinds {
			if version, kind, _ := strings.Cut(each, " "); kind == wanted && strings.HasSuffix(version, "v1") {
				of = each
			}
		}
	}
	version, kind, t := kindType(of)
	d.merges = true
	original := unique(d.value(t, 1))
	modified := unique(d.changed(original, t, 0))
	patch := d.patchOf(modified, t, 0)
	answer := merged{APIVersion: version, Kind: kind}
	for _, each := range []struct {
		into *json.RawMessage
		from any
	}{{&answer.Original, original}, {&answer.Modified, modified}, {&answer.Patch, patch}} {
		text, err := json.Marshal(each.from)
		if err != nil {
			return nil, err
		}
		*each.into = text
	}
	empty := reflect.New(t).Interface()
	twoWay, err := strategicpatch.CreateTwoWayMergePatch(answer.Original, answer.Modified, empty)
	if err == nil {
		answer.TwoWay = twoWay
		answer.TwoWayMerged, err = strategicpatch.StrategicMergePatch(answer.Original, twoWay, empty)
	}
	if err != nil {
		answer.TwoWayError = err.Error()
	}
	if answer.Merged, err = strategicpatch.StrategicMergePatch(answer.Original, answer.Patch, empty); err != nil {
		answer.Error, answer.Merged = err.Error(), nil
	}
	return &answer, nil
}

// unique drops scalars of a list that are there twice, which upstream treats by where memory ends.
func unique(value any) any {
	switch typed := value.(type) {
	case []any:
		found, seen := []any{}, map[string]bool{}
		for _, item := range typed {
			text := fmt.Sprintf("%T %v", item, item)
			if _, isMap := item.(map[string]any); !isMap && seen[text] {
				continue
			}
			seen[text] = true
			found = append(found, unique(item))
		}
		return found
	case map[string]any:
		for key, inner := range typed {
			typed[key] = unique(inner)
		}
	}
	return value
}

// changed is a copy with fields taken out, put in, and lists in another order.
func (d *dice) changed(value any, t reflect.Type, depth int) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if d.chance(6) && depth > 0 {
		return d.value(t, min(depth+3, depthMax))
	}
	switch typed := value.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return value
		}
		copied := []any{}
		for _, item := range typed {
			if !d.chance(20) {
				copied = append(copied, d.changed(item, t.Elem(), depth+1))
			}
		}
		if d.chance(30) {
			copied = append(copied, d.value(t.Elem(), min(depth+3, depthMax)))
		}
		if d.chance(20) {
			d.Shuffle(len(copied), func(i, j int) { copied[i], copied[j] = copied[j], copied[i] })
		}
		return copied
	case map[string]any:
		copied := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(typed)) {
			inner := elementOf(t, key)
			if inner != nil && !d.chance(6) {
				copied[key] = d.changed(typed[key], inner, depth+1)
			}
			list, isList := copied[key].([]any)
			if !isList || t.Kind() != reflect.Struct {
				continue
			}
			if mergeKey := fieldOf(t, key).Tag.Get("patchMergeKey"); mergeKey != "" && d.chance(98) {
				d.keyItems(list, elementOf(inner.Elem(), mergeKey), mergeKey)
			}
		}
		return copied
	}
	return value
}

// patchOf turns a part of an object into a patch, with directives here and there.
func (d *dice) patchOf(value any, t reflect.Type, depth int) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	typed, isMap := value.(map[string]any)
	if _, leaf := leaves[t]; leaf || !isMap {
		return value
	}
	patch := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(typed)) {
		inner := elementOf(t, key)
		if inner == nil || (d.chance(30) && depth > 0) {
			continue
		}
		list, isList := typed[key].([]any)
		switch {
		case d.chance(5):
			patch[key] = nil
		case isList && inner.Kind() == reflect.Slice && t.Kind() == reflect.Struct:
			d.listPatch(patch, key, list, fieldOf(t, key))
		default:
			patch[key] = d.patchOf(typed[key], inner, depth+1)
		}
	}
	if d.chance(4) && depth > 0 {
		patch["$patch"] = pick(d, []string{"replace", "delete", "replace", "delete", "merge"})
	}
	if d.chance(5) && depth > 0 {
		kept := []any{}
		for _, key := range slices.Sorted(maps.Keys(patch)) {
			if !strings.HasPrefix(key, "$") && d.chance(97) {
				kept = append(kept, key)
			}
		}
		patch["$retainKeys"] = kept
	}
	return patch
}

// listPatch puts a list into a patch, with its parallel lists.
func (d *dice) listPatch(patch map[string]any, key string, list []any, field reflect.StructField) {
	mergeKey, element := field.Tag.Get("patchMergeKey"), field.Type.Elem()
	items := []any{}
	for _, item := range list {
		if d.chance(15) {
			continue
		}
		inner, isMap := d.patchOf(item, element, 4).(map[string]any)
		if !isMap {
			items = append(items, item)
			continue
		}
		if whole, had := item.(map[string]any)[mergeKey]; had && d.chance(98) {
			inner[mergeKey] = whole
		}
		if d.chance(10) {
			inner["$patch"] = "delete"
		}
		items = append(items, inner)
	}
	if d.chance(3) && mergeKey != "" {
		items = append(items, map[string]any{"$patch": "replace"})
	}
	patch[key] = items
	order := []any{}
	for _, item := range list {
		if inner, isMap := item.(map[string]any); isMap {
			if of, has := inner[mergeKey]; has {
				order = append(order, map[string]any{mergeKey: of})
			}
		} else {
			order = append(order, item)
		}
	}
	if d.chance(30) && len(order) > 0 {
		if d.chance(10) {
			d.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		patch["$setElementOrder/"+key] = order
	}
	if mergeKey == "" && field.Tag.Get("patchStrategy") == "merge" && d.chance(30) && len(list) > 0 {
		patch["$deleteFromPrimitiveList/"+key] = []any{pick(d, list)}
		// Where nothing sets an order, Go adds and deletes in an order of chance.
		if _, isOrdered := patch["$setElementOrder/"+key]; !isOrdered || d.chance(50) {
			delete(patch, key)
		}
	}
}

func fieldOf(t reflect.Type, key string) reflect.StructField {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == key {
			return field
		}
		if name == "" && elementOf(field.Type, key) != nil {
			return fieldOf(field.Type, key)
		}
	}
	panic(key)
}
