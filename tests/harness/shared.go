package harness

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Shared stands in for a test where something is made once and outlives it: what all tests of a
// package use. Its cleanups run at the end of Main. A failure ends the process, for without
// what is shared no test of the package could continue.
func Shared() testing.TB { return shared }

var shared = &sharedTB{}

type sharedTB struct {
	testing.TB // none: only what is below may be used
	mu         sync.Mutex
	cleanups   []func()
}

func (s *sharedTB) Helper()      {}
func (s *sharedTB) Failed() bool { return false }

func (s *sharedTB) Context() context.Context { return context.Background() }

func (s *sharedTB) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *sharedTB) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (s *sharedTB) Errorf(format string, args ...any) { s.Logf(format, args...) }

func (s *sharedTB) Fatalf(format string, args ...any) {
	s.Logf(format, args...)
	s.FailNow()
}

func (s *sharedTB) FailNow() {
	s.end()
	os.Exit(1)
}

// end runs the cleanups, the newest first.
func (s *sharedTB) end() {
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, cleanup := range slices.Backward(cleanups) {
		cleanup()
	}
}
