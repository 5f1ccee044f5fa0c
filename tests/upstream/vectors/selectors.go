package vectors

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// selectorWorld is a line: a device, and expressions about it.
type selectorWorld struct {
	Seed        uint64             `json:"seed"`
	Driver      string             `json:"driver"`
	Device      resourceapi.Device `json:"device"`
	Expressions []string           `json:"expressions"`
	Answers     []selectorAnswer   `json:"answers"`
}

// selectorAnswer is what an expression says, what that cost, and what it could have cost at most.
type selectorAnswer struct {
	Compile string `json:"compile,omitempty"`
	Error   string `json:"error,omitempty"`
	Matches bool   `json:"matches"`
	Cost    uint64 `json:"cost"`
	MaxCost uint64 `json:"maxCost"`
}

// SelectorsMain answers worlds of expressions, one a line, with what the API server's compiler and the
// scheduler's evaluation of selectors say.
func SelectorsMain() int {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	return answerLines("selector-vectors", func(line []byte) (any, error) {
		var world selectorWorld
		if err := json.Unmarshal(line, &world); err != nil {
			return nil, fmt.Errorf("a line that is no world: %w", err)
		}
		device := cel.Device{
			Driver:                   world.Driver,
			AllowMultipleAllocations: world.Device.AllowMultipleAllocations,
			Attributes:               world.Device.Attributes,
			Capacity:                 world.Device.Capacity,
		}
		for _, expression := range world.Expressions {
			compiled := compiler.CompileCELExpression(expression, cel.Options{})
			answer := selectorAnswer{MaxCost: compiled.MaxCost}
			if compiled.Error != nil {
				answer.Compile = compiled.Error.Detail
				answer.MaxCost = math.MaxUint64
				world.Answers = append(world.Answers, answer)
				continue
			}
			matches, details, err := compiled.DeviceMatches(context.Background(), device)
			answer.Matches = matches
			if err != nil {
				answer.Error = err.Error()
			}
			if cost := details.ActualCost(); cost != nil {
				answer.Cost = *cost
			}
			world.Answers = append(world.Answers, answer)
		}
		return &world, nil
	})
}
