package limit

import (
	"math"
	"strconv"
)

// Portion is a part of a quota, from 0 to 1, in steps of 1/10,000. The zero Portion is not set.
type Portion int32

const portionSteps = 10_000

// invalidPortion is the problem of a number that is not a Portion.
var invalidPortion = MustBe("a number from 0 to 1 with at most 4 decimal places, such as 0.8")

// PortionOf returns the share with a value. The error is a *Problem.
func PortionOf(value float64) (Portion, error) {
	steps := math.Round(value * portionSteps)
	if !(value >= 0 && value <= 1) || math.Abs(steps-value*portionSteps) > 1e-6 {
		return 0, invalidPortion
	}
	return Portion(steps) + 1, nil
}

// PortionOrNone returns the share with a value, or the zero Portion for nil and for a value that is
// not a share.
func PortionOrNone(value *float64) Portion {
	if value == nil {
		return 0
	}
	s, err := PortionOf(*value)
	if err != nil {
		return 0
	}
	return s
}

// Value returns the value of the share, or nil if it is not set.
func (p Portion) Value() *float64 {
	if p == 0 {
		return nil
	}
	value := p.float()
	return &value
}

func (p Portion) float() float64 { return float64(p-1) / portionSteps }

// Percent formats the share for people: "80 %".
func (p Portion) Percent() string {
	return strconv.FormatFloat(float64(p-1)/(portionSteps/100), 'f', -1, 64) + " %"
}

// Of returns floor(n * share). Because used units are whole, more than that is more than the share.
func (p Portion) Of(n int64) int64 {
	part, _ := MulDiv(n, int64(p)-1, portionSteps, 0)
	return part
}
