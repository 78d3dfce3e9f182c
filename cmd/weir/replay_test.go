package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const replayRules = `
rules:
  - slug: per-minute
    resource: '*'
    algorithm: fixed_window
    limit: 2
    window: 1m
  - slug: burst
    resource: '*'
    algorithm: fixed_window
    limit: 1
    window: 1m
    mode: shadow
plans:
  - {slug: free, default: true}
  - {slug: pro, limits: {per-minute: {limit: 100}}}
subjects:
  - {subject: 192.0.2.9, plan: pro}
`

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func textLines(ip string, seconds ...int) (lines []string) {
	for _, second := range seconds {
		lines = append(lines, fmt.Sprintf(`%s - - [10/Oct/2026:13:%02d:%02d +0000] "GET /orders/7?full=1 HTTP/1.1" 200 2326 "-" "curl/8.5"`, ip, second/60, second%60))
	}
	return lines
}

// Three requests of one address are in one minute and a fourth in the next. An address with a plan
// has a higher limit. The lines are not in the order of time, and one is not readable.
func TestReplay(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	rules := writeFile(t, "rules.yaml", replayRules)
	lines := append(textLines("192.0.2.7", 5, 3, 90, 4), textLines("192.0.2.9", 1, 2, 3, 4)...)
	log := strings.Join(append(lines, "nonsense", ""), "\n")

	stdout, stderr, code := s.run(log, "-o", "json", "replay", "-f", rules, "-")
	require.Zero(t, code, stderr)
	var got replay
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, []int64{9, 1, 8, 7, 1}, []int64{got.Lines, got.Unreadable, got.Requests, got.Allowed, got.Denied})
	require.Equal(t, "2026-10-10T13:00:01Z", got.From.Format(time.RFC3339))
	require.Equal(t, []replayRule{
		{Rule: "burst", Mode: "shadow", Checked: 8, Denied: 5, Subjects: 2},
		{Rule: "per-minute", Mode: "enforce", Checked: 8, Denied: 1, Subjects: 1},
	}, got.Rules)
	require.Equal(t, []replaySubject{{Subject: "192.0.2.7", Allowed: 3, Denied: 1}}, got.Subjects)
	sum := int64(0)
	for _, at := range got.Intervals {
		sum += at.Allowed + at.Denied
	}
	require.EqualValues(t, 8, sum)

	stdout, stderr, code = s.run(log, "replay", "-f", rules, "-")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "8 requests from 2026-10-10 13:00 to 2026-10-10 13:01 UTC: 7 allowed, 1 denied (12.5 %)\n")
	require.Contains(t, stdout, "1 lines were skipped: line 9 of - is not a line of the combined log format\n")
	require.Regexp(t, `(?m)^per-minute +enforce +8 +1 +12\.5 % +1$`, stdout)
	require.Contains(t, stdout, "█")
	stdout, _, _ = s.run(log, "-o", "csv", "replay", "-f", rules, "-")
	require.True(t, strings.HasPrefix(stdout, "start,allowed,denied\n2026-10-10T13:00:01Z,"), stdout)
}

func TestReplayOfJSON(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	rules := writeFile(t, "rules.json", `{"rules": [{"slug": "api", "resource": "/a", "limit": 3, "window": "1h", "algorithm": "fixed_window", "by": ["subject", "attributes.region"]}]}`)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write([]byte(`{"ts": 1791640000.25, "request": {"remote_ip": "192.0.2.7"}, "uri": "/a", "units": 2, "region": "eu"}
{"ts": 1791640001000, "request": {"remote_ip": "192.0.2.7"}, "uri": "/a", "units": 2, "region": "eu"}
{"ts": "2026-10-10T13:46:42Z", "request": {"remote_ip": "192.0.2.7"}, "uri": "/a", "units": 2, "region": "us"}
{"ts": "2026-10-10T13:46:43Z", "request": {"remote_ip": "192.0.2.7"}, "uri": "/b", "units": 2}
`))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	log := writeFile(t, "access.log.gz", packed.String())
	arguments := []string{"-o", "json", "replay", "-f", rules, "--subject", "request.remote_ip", "--resource-from", "uri", "--cost", "units", "-a", "region=region", log}
	stdout, stderr, code := s.run("", arguments...)
	require.Zero(t, code, stderr)
	var got replay
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, []int64{4, 0, 3, 1}, []int64{got.Requests, got.Unreadable, got.Allowed, got.Denied})
	require.Equal(t, int64(3), got.Rules[0].Checked, "the rule is not for /b")

	for problem, wrong := range map[string][]string{
		"no field \"uri2\"":    {"--subject", "request.remote_ip", "--resource-from", "uri2", "-f", rules, log},
		"write NAME=FIELD":     {"-a", "region", "-f", rules, log},
		"no such file":         {"-f", rules, log + ".missing"},
		"the log is empty":     {"-f", rules, "-"},
		"has no rules":         {"-f", writeFile(t, "empty.yaml", "plans: []"), log},
		"rule api: limit must": {"--subject", "uri", "-f", writeFile(t, "wrong.yaml", "rules: [{slug: api, limit: -1, window: 1h}]"), log},
		"rules.0.limit must":   {"-f", writeFile(t, "text.yaml", "rules: [{slug: api, limit: many, window: 1h}]"), log},
		"--rules":              {log},
	} {
		_, stderr, code := s.run("", append([]string{"replay"}, wrong...)...)
		require.Equal(t, 1, code, problem)
		require.Contains(t, stderr, problem)
	}
}

// BenchmarkReplay reads and decides a log of a million lines.
func BenchmarkReplay(b *testing.B) {
	var log bytes.Buffer
	for i := range 1_000_000 {
		fmt.Fprintf(&log, "10.0.%d.%d - - [10/Oct/2026:%02d:%02d:%02d +0000] \"GET /orders/%d HTTP/1.1\" 200 2326 \"-\" \"curl/8.5\"\n", i%97, i%251, i/41_667, i/695%60, i/12%60, i)
	}
	rules := filepath.Join(b.TempDir(), "rules.yaml")
	require.NoError(b, os.WriteFile(rules, []byte(replayRules), 0o600))
	for b.Loop() {
		var out, err bytes.Buffer
		t := &terminal{in: bytes.NewReader(log.Bytes()), out: &out, err: &err, getenv: os.Getenv}
		require.Zero(b, run(b.Context(), t, []string{"replay", "-f", rules, "-"}), err.String())
	}
}

// The picture of a replay fits the terminal, and counts each request once.
func TestReplayOnANarrowTerminal(t *testing.T) {
	intervals := make([]replaySlice, 60)
	for i := range intervals {
		intervals[i] = replaySlice{Start: time.Unix(int64(i), 0), Allowed: 1, Denied: int64(i % 2)}
	}
	for _, n := range []int{1, 7, 30, 59, 60, 200} {
		merged := merge(intervals, n)
		require.LessOrEqual(t, len(merged), n)
		var allowed, denied int64
		for _, at := range merged {
			allowed, denied = allowed+at.Allowed, denied+at.Denied
		}
		require.Equal(t, []int64{60, 30}, []int64{allowed, denied}, n)
		require.Equal(t, intervals[0].Start, merged[0].Start)
	}
	var out bytes.Buffer
	r := replay{From: new(time.Time), To: new(time.Time), Intervals: intervals}
	require.NoError(t, r.print(&terminal{out: &out, output: "table", columns: func() int { return 40 }}))
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "█") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 40)
		}
	}
	out.Reset()
	require.NoError(t, r.print(&terminal{out: &out, output: "table", columns: func() int { return 70 }}))
	require.True(t, strings.HasPrefix(out.String(), "0 requests from 0001-01-01 00:00 to 0001-01-01 00:00 UTC:\n0 allowed, 0 denied (-)\n"), out.String())
}
