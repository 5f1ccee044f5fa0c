package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
)

// depthMax is how deep a made-up object is.
const depthMax = 9

// dice makes up objects as JSON, from the types of Go.
type dice struct {
	*rand.Rand
	// hostile makes up what the API server would not store: nulls, empty lists, unknown fields, odd
	// spellings and strings that JSON escapes.
	hostile bool
	// merges makes up the keys by which the items of lists merge.
	merges bool
	// changes makes up other values where one is spelled in another way.
	changes bool
}

func newDice(seed uint64, hostile bool) *dice {
	return &dice{Rand: rand.New(rand.NewPCG(seed, 0)), hostile: hostile}
}

func (d *dice) chance(percent int) bool {
	return d.IntN(100) < percent
}

func pick[T any](d *dice, from []T) T {
	return from[d.IntN(len(from))]
}

var plainTexts = []string{"a", "b", "c", "web", "nginx:1.27", "app.kubernetes.io/name", "/var/lib", "TCP", "0", "true"}

var oddTexts = []string{
	"", " ", "<a & b>", "line\nfeed\r\ttab", "quo\"te\\back", "\u2028 and \u2029", "nul\x00 \x01\x1f\x7f", "\b\f",
	"naïve 日本 🦀", "%v %s", "map[a:b]", "<nil>", "\ufeff", "\ufffd",
}

func (d *dice) text() string {
	if d.hostile && d.chance(20) {
		return pick(d, oddTexts)
	}
	return pick(d, plainTexts)
}

var quantities = []string{
	"0", "1", "2", "8", "10", "100", "1000", "1500", "2000000", "100m", "250m", "1500m", "1000m", "0.5", "0.1", "1.5", "1Ki",
	"64Mi", "100Mi", "128Mi", "170Mi", "1Gi", "1.5Gi", "0.5Gi", "3Gi", "100Ti", "1Pi", "7Ei", "1k", "5M", "3G", "2T", "9P", "1E",
	"1e3", "12e6", "3E-3", "1n", "5u", "999n", "2147483648", "9223372036854775807",
}

var oddQuantities = []string{
	"00", "-0", "+1", "-1", "0100m", "1.", "1.G", ".5", "1.500", "1.5000", "1.0005", "0.0000000001", "1.23456789012", "10000000000000000000",
	"9223372036854775808", "8Ei", "16Ei", "-7Ei", "0.3Ki", "1.1Ki", "0Ei", "0e5", "1e-9", "1e-12", "100e18", "123456789012345678", "1234567890123456789",
	"999999999999999Ki", "72Ki", "0.001Ki", "0Mi", "-1.5Gi", "-0.1n", "0.0Ki", "-0.0Mi", "0.000000000000", "00.0000000000000e-3", "1.0Ki", "1000k", "1024Mi", "-250m", "8Mi", "+0.5", "1E3", "1e+3",
}

func (d *dice) quantity() any {
	switch {
	case d.hostile && d.chance(15):
		return pick(d, oddQuantities)
	case d.hostile && d.chance(3):
		return d.IntN(5000)
	case d.chance(30):
		number := fmt.Sprint(d.IntN(1 << (1 + d.IntN(30))))
		if d.chance(20) {
			number += fmt.Sprintf(".%0*d", 1+d.IntN(3), d.IntN(10))
		}
		return number + pick(d, []string{"", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "u", "n", "e3"})
	}
	return pick(d, quantities)
}

func (d *dice) time() string {
	year, month, day := 1990+d.IntN(60), 1+d.IntN(12), 1+d.IntN(28)
	text := fmt.Sprintf("%d-%02d-%02dT%02d:%02d:%02d", year, month, day, d.IntN(24), d.IntN(60), d.IntN(60))
	if d.hostile && d.chance(20) {
		text += pick(d, []string{".5", ".123456", ".000000001"})
	}
	if d.hostile && d.chance(20) {
		return text + pick(d, []string{"+02:00", "-07:30"})
	}
	return text + "Z"
}

func (d *dice) number(bits int) int64 {
	if d.hostile && d.chance(8) {
		return pick(d, []int64{-1, math.MaxInt32, math.MinInt32})
	}
	if d.hostile && bits == 64 && d.chance(10) {
		return pick(d, []int64{1<<53 + 1, math.MaxInt64, math.MinInt64, 1e15, 123456789012345678})
	}
	return pick(d, []int64{0, 1, 2, 3, 10, 30, 80, 443, 8080, 65535})
}

// leaf makes up what has a form of its own in JSON.
func (d *dice) leaf(code string) any {
	switch code {
	case "Q":
		return d.quantity()
	case "T":
		return d.time()
	case "M":
		return strings.TrimSuffix(d.time()[:19], "Z") + ".000000Z"
	case "D":
		return "1m0s"
	case "O":
		if d.chance(50) {
			return d.number(32)
		}
		return pick(d, []string{"25%", "http", "0"})
	}
	return map[string]any{"f:a": map[string]any{}, "f:b": map[string]any{".": map[string]any{}}}
}

// value makes up a value of a type.
func (d *dice) value(t reflect.Type, depth int) any {
	if code, leaf := leaves[t]; leaf {
		return d.leaf(code)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.value(t.Elem(), depth)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return pick(d, []string{"", "YQ==", "/+8AAQ=="})
		}
		return d.list(t, depth)
	case reflect.Map:
		found := map[string]any{}
		for range d.length() {
			key := pick(d, append(plainTexts, "cpu", "memory", "pod-template-hash"))
			if d.hostile && d.chance(10) {
				key = pick(d, oddTexts)
			}
			found[key] = d.value(t.Elem(), depth+1)
		}
		return found
	case reflect.Struct:
		found := map[string]any{}
		d.fields(t, depth, found)
		return found
	case reflect.String:
		return d.text()
	case reflect.Bool:
		return d.chance(50)
	case reflect.Float32, reflect.Float64:
		return 1.5
	case reflect.Interface:
		return map[string]any{}
	}
	return d.number(t.Bits())
}

func (d *dice) length() int {
	if d.hostile && d.chance(5) {
		return 0
	}
	return 1 + d.IntN(3)
}

func (d *dice) list(t reflect.Type, depth int) []any {
	found := []any{}
	for range d.length() {
		found = append(found, d.value(t.Elem(), depth+1))
	}
	return found
}

// keyItems gives the items of a list the keys by which they merge, mostly different ones.
func (d *dice) keyItems(items []any, t reflect.Type, key string) {
	seen := map[string]bool{}
	for _, item := range items {
		fields := item.(map[string]any)
		for range 5 {
			value, has := fields[key]
			if text := fmt.Sprint(value); has && (!seen[text] || d.chance(2)) {
				seen[text] = true
				break
			}
			fields[key] = d.value(t, 0)
		}
	}
}

// fields makes up some fields of a struct, the fewer the deeper it is.
func (d *dice) fields(t reflect.Type, depth int, into map[string]any) {
	share := []int{90, 55, 30, 30, 25, 20, 15, 10, 8}[min(depth, depthMax-1)]
	if d.merges {
		share += 15
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			d.fields(field.Type, depth, into)
			continue
		}
		// The closure is too wide for all fields to be in each object.
		if !d.chance(share) || depth >= depthMax {
			continue
		}
		into[name] = d.value(field.Type, depth+1)
		if key := field.Tag.Get("patchMergeKey"); d.merges && key != "" && d.chance(98) {
			d.keyItems(into[name].([]any), elementOf(field.Type.Elem(), key), key)
		}
		if d.hostile && d.chance(3) {
			into[name] = nil
		}
	}
	if d.hostile && d.chance(2) {
		into["fieldOfNextYear"] = pick(d, []any{1, "text", []any{}, map[string]any{"a": nil}})
	}
}
