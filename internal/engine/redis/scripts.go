package redis

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"

	"weir/internal/limit"
)

// the name by which Redis knows a script

//go:embed lua/*.lua
var luaFiles embed.FS

// luaParts lists the files, in order, that an algorithm adds to the script.
var luaParts = map[limit.Algorithm][]string{
	limit.SlidingWindowCounter: {"fixed_value", "counter_value", "group", "own_value", "sliding_window_counter"},
	limit.SlidingWindowLog:     {"sliding_window_log"},
	limit.SlidingWindowBuckets: {"sliding_window_buckets"},
	limit.FixedWindow:          {"fixed_value", "counter_value", "group", "own_value", "fixed_window"},
	limit.FixedWindowFirstHit:  {"fixed_value", "counter_value", "group", "own_value", "fixed_window"},
	limit.TokenBucket:          {"bucket", "token_bucket"},
	limit.LeakyBucket:          {"bucket", "leaky_bucket"},
	limit.LeakyBucketQueue:     {"bucket", "leaky_bucket_queue"},
}

// coarseParts lists the file that an algorithm adds after its own in the form for bounded calls.
var coarseParts = map[limit.Algorithm]string{
	limit.SlidingWindowLog:     "coarse_log",
	limit.SlidingWindowBuckets: "coarse_buckets",
}

// script is the Lua text that decides calls with one set of algorithms. It contains only what they
// need, because Redis executes all definitions of a script on every run.
type script struct {
	text string
	sha  string
	// sent means that it was run as text before, so the server should know it.
	sent atomic.Bool
}

// algorithmSet has bit a-1 for algorithm a, and withCredits for counters with credits.
type algorithmSet uint16

const withCredits algorithmSet = 1 << 8

func (s algorithmSet) with(a limit.Algorithm) algorithmSet { return s | 1<<(a-1) }

// scripts has the script of every set that was used.
type scripts struct {
	node  bool // in the form without declared keys
	spare bool // in the form for bounded calls
	bySet [512]atomic.Pointer[script]
}

func (s *scripts) of(set algorithmSet) *script {
	if found := s.bySet[set].Load(); found != nil {
		return found
	}
	parts, assemble := []string{"prelude", "counter"}, newScript
	if s.node {
		parts, assemble = []string{"prelude", "node_one", "counter"}, newNodeScript
	}
	if s.spare {
		parts = []string{"prelude", "spare", "counter"}
	}
	for _, a := range limit.Algorithms {
		if set&algorithmSet(0).with(a) != 0 {
			parts = append(parts, luaParts[a]...)
			if coarse := coarseParts[a]; s.spare && coarse != "" {
				parts = append(parts, coarse)
			}
		}
	}
	if set&withCredits != 0 {
		parts = append(parts, "credits")
	}
	s.bySet[set].CompareAndSwap(nil, assemble(append(parts, "evaluate_one")...))
	return s.bySet[set].Load()
}

// newScript assembles a script from files of lua/, each once.
func newScript(parts ...string) *script { return assemble("#!lua\n", false, parts) }

// newNodeScript assembles a script for keys of all slots of a node of a Cluster.
func newNodeScript(parts ...string) *script {
	return assemble("#!lua flags=allow-cross-slot-keys\n", true, parts)
}

// Marks of lines that only one of the two forms of a script has.
const (
	markNode = "--@node " // the line begins with it, after spaces
	markSlot = " --@slot" // the line ends with it
)

// linesOf returns the lines of a file that a form of a script has, without those that are only a
// comment: Redis keeps the text of every script in memory.
func linesOf(lua []byte, node bool) string {
	var text strings.Builder
	for line := range strings.Lines(string(lua)) {
		line = strings.TrimRight(line, "\n")
		code, marked := strings.CutPrefix(strings.TrimLeft(line, " "), markNode)
		slotCode, slotMarked := strings.CutSuffix(line, markSlot)
		switch {
		case marked && !node, slotMarked && node, !marked && strings.HasPrefix(strings.TrimLeft(line, " "), "--"):
			continue
		case marked:
			line = code
		case slotMarked:
			line = slotCode
		}
		text.WriteString(line + "\n")
	}
	return text.String()
}

func assemble(head string, node bool, parts []string) *script {
	var text strings.Builder
	text.WriteString(head)
	have := map[string]bool{}
	ends := ""
	for i, part := range parts {
		if have[part] {
			continue
		}
		have[part] = true
		file, err := luaFiles.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // the file is not embedded: a wrong name in the code
		}
		lua := linesOf(file, node)
		if i == 0 {
			text.WriteString(lua)
			continue
		}
		// Redis creates the functions of a script on every run, and Lua searches a list for each
		// local that a function uses, unless the local belongs to an outer function. So each file
		// is a function inside that of the previous file.
		if parts[i-1] == "spare" { // it adds to the reply
			fmt.Fprintf(&text, "return with_used((function()\n%s", lua)
			ends = "end)())\n" + ends
			continue
		}
		fmt.Fprintf(&text, "return (function()\n%s", lua)
		ends = "end)()\n" + ends
	}
	text.WriteString(ends)
	sum := sha1.Sum([]byte(text.String()))
	return &script{text: text.String(), sha: hex.EncodeToString(sum[:])}
}
