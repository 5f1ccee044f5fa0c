package vectors

import (
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// shapeDepthMax is deeper than any type of a file.
const shapeDepthMax = 16

// shapes are the types of files whose fields a test makes up.
var shapes = map[string]reflect.Type{
	"pod":        reflect.TypeFor[v1.Pod](),
	"kubelet":    reflect.TypeFor[kubeletv1beta1.KubeletConfiguration](),
	"kubeconfig": reflect.TypeFor[clientcmdv1.Config](),
	"providers":  reflect.TypeFor[kubeletv1.CredentialProviderConfig](),
}

// leaves are types with a form of their own.
var leaves = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  "quantity",
	reflect.TypeFor[intstr.IntOrString](): "intOrString",
	reflect.TypeFor[metav1.Time]():        "time",
	reflect.TypeFor[metav1.MicroTime]():   "time",
	reflect.TypeFor[metav1.Duration]():    "duration",
	reflect.TypeFor[metav1.FieldsV1]():    "any",
}

// shapeOf is a word for a leaf, {"list": shape}, {"map": shape} or {"fields": {name: shape}}.
func shapeOf(t reflect.Type, depth int) any {
	if leaf, known := leaves[t]; known {
		return leaf
	}
	if depth > shapeDepthMax {
		return "any"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shapeOf(t.Elem(), depth)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return map[string]any{"list": shapeOf(t.Elem(), depth+1)}
	case reflect.Map:
		return map[string]any{"map": shapeOf(t.Elem(), depth+1)}
	case reflect.Struct:
		fields := map[string]any{}
		fieldsOf(t, depth, fields)
		return map[string]any{"fields": fields}
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Float32, reflect.Float64:
		return "float"
	case reflect.Interface:
		return "any"
	}
	return "int"
}

func fieldsOf(t reflect.Type, depth int, into map[string]any) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
			fieldsOf(field.Type, depth, into)
		case name != "":
			into[name] = shapeOf(field.Type, depth+1)
		}
	}
}

func shapeNamed(name string) (any, error) {
	t, known := shapes[name]
	if !known {
		return nil, fmt.Errorf("no shape %q is known", name)
	}
	return shapeOf(t, 0), nil
}
