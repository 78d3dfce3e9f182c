package harness

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Shared returns a testing.TB for what all tests of a package share, and what therefore outlives a
// test. Its cleanups run at the end of Main. A failure ends the process, because no test of the
// package could continue.
func Shared() testing.TB { return shared }

var shared = &sharedTB{}

type sharedTB struct {
	testing.TB // nil: only the methods below may be used
	mu         sync.Mutex
	cleanups   []func()
}

func (s *sharedTB) Name() string { return "shared" }
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

// end runs the cleanups in reverse order.
func (s *sharedTB) end() {
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, cleanup := range slices.Backward(cleanups) {
		cleanup()
	}
}
