package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// roots are the objects that the controllers of workloads write, and what templates consist of.
var roots = []reflect.Type{
	reflect.TypeFor[v1.PodTemplateSpec](),
	reflect.TypeFor[appsv1.Deployment](),
	reflect.TypeFor[appsv1.ReplicaSet](),
	reflect.TypeFor[v1.ReplicationController](),
	reflect.TypeFor[appsv1.StatefulSet](),
	reflect.TypeFor[appsv1.DaemonSet](),
	reflect.TypeFor[batchv1.Job](),
	reflect.TypeFor[batchv1.CronJob](),
	reflect.TypeFor[appsv1.ControllerRevision](),
	reflect.TypeFor[v1.Pod](),
	reflect.TypeFor[v1.PersistentVolumeClaim](),
	reflect.TypeFor[v1.ServiceAccount](),
	reflect.TypeFor[v1.Secret](),
	reflect.TypeFor[v1.ConfigMap](),
	reflect.TypeFor[v1.Namespace](),
	reflect.TypeFor[v1.ResourceQuota](),
	reflect.TypeFor[v1.Node](),
}

// leaves are types that have a form of their own in JSON.
var leaves = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():    "Q",
	reflect.TypeFor[metav1.Time]():          "T",
	reflect.TypeFor[metav1.MicroTime]():     "M",
	reflect.TypeFor[metav1.Duration]():      "D",
	reflect.TypeFor[intstr.IntOrString]():   "O",
	reflect.TypeFor[metav1.FieldsV1]():      "F",
	reflect.TypeFor[runtime.RawExtension](): "R",
}

// nameOf is the package and the name of a type, without what all packages begin with.
func nameOf(t reflect.Type) string {
	path := strings.TrimPrefix(t.PkgPath(), "k8s.io/api/")
	path = strings.TrimPrefix(path, "k8s.io/apimachinery/pkg/apis/")
	return path + "." + t.Name()
}

// shapeOf is a type as a word: * a pointer, [ a slice, { a map, each before what it holds; y bytes,
// s, b, i, u, f and a for scalars and anything, a letter for a leaf, # and the name of a struct.
func shapeOf(t reflect.Type) string {
	if leaf, known := leaves[t]; known {
		return leaf
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + shapeOf(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "y"
		}
		return "[" + shapeOf(t.Elem())
	case reflect.Map:
		return "{" + shapeOf(t.Elem())
	case reflect.Struct:
		return "#" + nameOf(t)
	case reflect.String:
		return "s"
	case reflect.Bool:
		return "b"
	case reflect.Float32, reflect.Float64:
		return "f"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "u"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "i"
	case reflect.Interface:
		return "a"
	}
	panic(fmt.Sprintf("no shape for %v", t))
}

// structsOf collects the structs that types consist of, the types themselves included.
func structsOf(types []reflect.Type) []reflect.Type {
	seen := map[reflect.Type]bool{}
	var found []reflect.Type
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		if _, leaf := leaves[t]; leaf || seen[t] {
			return
		}
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(t.Elem())
		case reflect.Struct:
			seen[t] = true
			found = append(found, t)
			for i := range t.NumField() {
				visit(t.Field(i).Type)
			}
		}
	}
	for _, t := range types {
		visit(t)
	}
	slices.SortFunc(found, func(a, b reflect.Type) int { return strings.Compare(nameOf(a), nameOf(b)) })
	return found
}

// flagsOf are i for inline, e for omitempty, z for omitzero, - for none of them.
func flagsOf(field reflect.StructField) (name, flags string) {
	name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	if name == "" && field.Anonymous {
		return "-", "i"
	}
	if name == "" {
		panic(fmt.Sprintf("a field without a name in JSON: %v", field))
	}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			flags += "e"
		case "omitzero":
			flags += "z"
		case "":
		default:
			panic(fmt.Sprintf("an option that nobody knows: %v", field))
		}
	}
	if flags == "" {
		flags = "-"
	}
	return name, flags
}

// typesTable has a line for each struct, and behind it a line for each field in the order of Go.
func typesTable() string {
	var out strings.Builder
	for _, t := range structsOf(roots) {
		fmt.Fprintf(&out, "%s\t%s\n", nameOf(t), t)
		for i := range t.NumField() {
			field := t.Field(i)
			name, flags := flagsOf(field)
			fmt.Fprintf(&out, "\t%s\t%s\t%s\t%s\t%s\n", field.Name, field.Type, name, flags, shapeOf(field.Type))
		}
	}
	return out.String()
}

// mergeKeysTable has a line for each kind, and for each struct a line, behind which its lists, maps
// and structs are with how a strategic merge patch treats them.
func mergeKeysTable() string {
	var out strings.Builder
	var types []reflect.Type
	var kinds []string
	for kind, t := range scheme.Scheme.AllKnownTypes() {
		_, isObject := t.FieldByName("ObjectMeta")
		if kind.Version == runtime.APIVersionInternal || !isObject || t.Kind() != reflect.Struct {
			continue
		}
		types = append(types, t)
		kinds = append(kinds, fmt.Sprintf("%s %s\t%s\n", kind.GroupVersion(), kind.Kind, nameOf(t)))
	}
	slices.Sort(kinds)
	out.WriteString(strings.Join(kinds, ""))
	for _, t := range structsOf(types) {
		fmt.Fprintf(&out, ":%s\n", nameOf(t))
		mergeFields(&out, t)
	}
	return out.String()
}

// mergeFields writes the fields of a struct and of those inlined into it.
func mergeFields(out *strings.Builder, t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" && (field.Anonymous || strings.Contains(options, "inline")) {
			mergeFields(out, field.Type)
			continue
		}
		shape := strings.ReplaceAll(shapeOf(field.Type), "*", "")
		if len(shape) == 1 && shape != "F" && shape != "R" && shape != "D" {
			continue
		}
		fmt.Fprintf(out, "\t%s\t%s", name, shape)
		if strategy := field.Tag.Get("patchStrategy"); strategy != "" {
			fmt.Fprintf(out, "\t%s\t%s", strategy, field.Tag.Get("patchMergeKey"))
		}
		out.WriteString("\n")
	}
}
