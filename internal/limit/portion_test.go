package limit

import (
	"encoding/json"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A share is read back as it was written, and other numbers are refused.
func TestPortion(t *testing.T) {
	for text, percent := range map[string]string{"0": "0 %", "0.0001": "0.01 %", "0.1": "10 %", "0.8": "80 %", "0.3333": "33.33 %", "0.9999": "99.99 %", "1": "100 %"} {
		var value float64
		require.NoError(t, json.Unmarshal([]byte(text), &value))
		s, err := PortionOf(value)
		require.NoError(t, err)
		written, err := json.Marshal(s.Value())
		require.NoError(t, err)
		require.Equal(t, text, string(written))
		require.Equal(t, percent, s.Percent())
		require.Equal(t, s, PortionOrNone(&value))
	}
	for _, value := range []float64{-0.1, 1.0001, 0.00001, 0.33333, 80} {
		_, err := PortionOf(value)
		require.Error(t, err, value)
	}
	require.Nil(t, Portion(0).Value())
	require.Zero(t, PortionOrNone(nil))
}

// Of is exact for all quotas: more than it is more than the share.
func TestPortionOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.Int64Range(0, portionSteps).Draw(t, "steps")
		quota := rapid.Int64Range(1, MaxFixedLimit).Draw(t, "quota")
		part := Portion(steps + 1).Of(quota)
		exact := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(quota), big.NewInt(steps)), big.NewInt(portionSteps))
		if new(big.Rat).SetInt64(part).Cmp(exact) > 0 || new(big.Rat).SetInt64(part+1).Cmp(exact) <= 0 {
			t.Fatalf("%d of %d steps of %d", part, steps, quota)
		}
	})
}
