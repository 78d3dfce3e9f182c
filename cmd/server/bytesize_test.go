package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{"0": 0, "1": 1, "17B": 17, "3KiB": 3 << 10, "512MiB": 512 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		var got byteSize
		require.NoError(t, got.UnmarshalText([]byte(text)))
		require.Equal(t, want, got)
		var again byteSize
		require.NoError(t, again.UnmarshalText([]byte(got.String())))
		require.Equal(t, got, again)
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "512MB", "512 MiB", "9999999999TiB", "1e3"} {
		require.Error(t, new(byteSize).UnmarshalText([]byte(text)), text)
	}
	for text, wrong := range map[string]string{"8MiB": "must be 16MiB or more, or 0", "much": "such as 512MiB"} {
		t.Run(text, func(t *testing.T) {
			_, _, err := parse(t, map[string]string{"WEIR_POLICY_MEMORY": text})
			require.ErrorContains(t, err, "WEIR_POLICY_MEMORY")
			require.ErrorContains(t, err, wrong)
		})
	}
	cfg, _, err := parse(t, nil)
	require.NoError(t, err)
	require.Equal(t, byteSize(512<<20), cfg.PolicyMemory)
}
