package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

func TestRunPassesOnTheProjectsVectors(t *testing.T) {
	var out strings.Builder
	ok, err := run(context.Background(), &out, testenv.RedisURL(t), "../testdata/conformance")
	require.NoError(t, err)
	require.True(t, ok, out.String())
	require.Equal(t, "3936 passed, 0 failed", lastLine(out.String()), "168 cases in each engine; 1200 windows, computed and decided in each engine")
	require.Contains(t, out.String(), "calendar/calendar.json: redis: ")
	require.Contains(t, out.String(), "cycles/cycles.json: bounds: 1200 passed, 0 failed\n")
	require.Contains(t, out.String(), "cycles/cycles.json: memory: 1200 passed, 0 failed\n")
	require.Contains(t, out.String(), "cycles/cycles.json: redis: 1200 passed, 0 failed\n")
}

// If a run reported "passed" for a wrong answer, a broken engine could be released.
func TestRunReportsEachDifference(t *testing.T) {
	dir := t.TempDir()
	wrong := `{"schema": 1, "suite": "s", "cases": [{"name": "c", "rules": [{"name": "r",
		"algorithm": "fixed_window", "limit": 1, "window_ms": 1000}], "steps": [{"t_ms": 5000, "cost": 1,
		"expect": {"allowed": true, "remaining": 1, "retry_after_ms": 0, "reset_ms": 6000}}]}]}`
	require.NoError(t, os.Mkdir(filepath.Join(dir, "deep"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "deep", "wrong.json"), []byte(wrong), 0o600))
	var out strings.Builder
	ok, err := run(context.Background(), &out, testenv.RedisURL(t), dir)
	require.NoError(t, err)
	require.False(t, ok)
	require.Contains(t, out.String(), "deep/wrong.json: memory: case c, step 0, remaining: expected 1, got 0\n")
	require.Contains(t, out.String(), "deep/wrong.json: redis: case c, step 0, remaining: expected 1, got 0\n")
	require.Equal(t, "0 passed, 2 failed", lastLine(out.String()))

	rows := `{"bounds": [
		{"window": "day", "zone": "UTC", "anchor_ms": null, "t_ms": 5, "start_ms": 0, "end_ms": 86400000},
		{"window": "day", "zone": "UTC", "anchor_ms": null, "t_ms": 5, "start_ms": 0, "end_ms": 86400001}]}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rows.json"), []byte(rows), 0o600))
	out.Reset()
	ok, err = run(context.Background(), &out, testenv.RedisURL(t), dir)
	require.NoError(t, err)
	require.False(t, ok)
	require.Contains(t, out.String(), "rows.json: bounds: case day in UTC from calendar at 5, step 1, end_ms: expected 86400001, got 86400000\n")
	require.Contains(t, out.String(), "rows.json: bounds: 1 passed, 1 failed\n")
	require.Contains(t, out.String(), "rows.json: redis: case a check by the day in UTC at 5, step 0, reset_after_ms: expected 86399996, got 86399995\n")
	require.Equal(t, "3 passed, 5 failed", lastLine(out.String()))
}

func TestRunFailsWithoutVectors(t *testing.T) {
	var out strings.Builder
	ok, err := run(context.Background(), &out, testenv.RedisURL(t), t.TempDir())
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, "0 passed, 0 failed", lastLine(out.String()))

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.json"), []byte(`{"some": "thing"}`), 0o600))
	out.Reset()
	ok, err = run(context.Background(), &out, testenv.RedisURL(t), dir)
	require.NoError(t, err)
	require.False(t, ok, "not a file of vectors")
}
