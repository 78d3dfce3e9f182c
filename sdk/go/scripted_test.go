package weir

import (
	"testing"

	"github.com/weir-dev/weir-go/internal/scripted"
)

// patience is the maximum time that a test waits for anything. No passing test waits for all of it.
const patience = scripted.Patience

type (
	action  = scripted.Action
	fixture = scripted.Fixture
	request = scripted.Request
)

// A scriptedServer is a scripted server that ends with its test, and fails it if the script was not
// followed.
type scriptedServer struct {
	*scripted.Server
	t *testing.T
}

func newScripted(t *testing.T, fixtures map[string]fixture, script []action, up bool) *scriptedServer {
	t.Helper()
	s, err := scripted.New(fixtures, script, up)
	must(t, err)
	t.Cleanup(func() {
		s.Close()
		for _, problem := range s.Problems() {
			t.Error(problem)
		}
	})
	return &scriptedServer{s, t}
}

func (s *scriptedServer) up() {
	s.t.Helper()
	must(s.t, s.Up())
}

func (s *scriptedServer) await(n int) {
	s.t.Helper()
	must(s.t, s.Await(n))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
