// Command withscripted runs a command that can create scripted servers, and returns its exit code.
// The behaviour suite in other languages uses it, so that all clients are tested with the same
// server:
//
//	go run ./internal/withscripted CMD...
//
// CMD finds in its environment WEIR_TEST_SCRIPTED, the address of an HTTP service:
//
//	POST /servers                {"server": [ACTION], "server_up": true} → {"id", "address"}
//	POST /servers/ID/up|down|release
//	POST /servers/ID/await       {"requests": n} → when so many have arrived
//	GET  /servers/ID             {"requests", "latest", "unmet", "problems"}
//	DELETE /servers/ID           ends it
//
// Each answers 200, or 500 with an error message. "latest" has the last two requests, newest first.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-dev/weir-go/internal/scripted"
)

func main() {
	suite := flag.String("suite", "../suite", "the folder of the behaviour suite")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: withscripted [-suite FOLDER] CMD...")
		os.Exit(2)
	}
	code, err := run(*suite, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "withscripted: %s: %v\n", strings.Join(flag.Args(), " "), err)
	}
	os.Exit(code)
}

func run(suite string, command []string) (int, error) {
	fixtures, err := scripted.ReadFixtures(suite)
	if err != nil {
		return 1, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1, err
	}
	defer listener.Close()
	go func() { _ = http.Serve(listener, newService(fixtures)) }() // ends with the listener
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "WEIR_TEST_SCRIPTED=http://"+listener.Addr().String())
	if err = cmd.Run(); cmd.ProcessState == nil {
		return 1, err // the command was not started
	}
	return cmd.ProcessState.ExitCode(), err
}

// A service has the servers that were created.
type service struct {
	fixtures map[string]scripted.Fixture

	mu      sync.Mutex
	servers map[string]*scripted.Server
	last    int
}

func newService(fixtures map[string]scripted.Fixture) http.Handler {
	s := &service{fixtures: fixtures, servers: map[string]*scripted.Server{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /servers", s.create)
	for method, act := range map[string]func(*scripted.Server, *http.Request) (any, error){
		"POST /servers/{id}/up":   func(server *scripted.Server, _ *http.Request) (any, error) { return nil, server.Up() },
		"POST /servers/{id}/down": func(server *scripted.Server, _ *http.Request) (any, error) { server.Down(); return nil, nil },
		"POST /servers/{id}/release": func(server *scripted.Server, _ *http.Request) (any, error) {
			server.Release()
			return nil, nil
		},
		"POST /servers/{id}/await": await,
		"GET /servers/{id}":        func(server *scripted.Server, _ *http.Request) (any, error) { return describe(server), nil },
		"DELETE /servers/{id}": func(server *scripted.Server, _ *http.Request) (any, error) {
			server.Close()
			return nil, nil
		},
	} {
		mux.HandleFunc(method, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			server := s.servers[r.PathValue("id")]
			s.mu.Unlock()
			if server == nil {
				http.Error(w, "there is no server "+r.PathValue("id"), http.StatusInternalServerError)
				return
			}
			answer, err := act(server, r)
			write(w, answer, err)
		})
	}
	return mux
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	var script struct {
		Server   []scripted.Action `json:"server"`
		ServerUp *bool             `json:"server_up"`
	}
	if err := read(r, &script); err != nil {
		write(w, nil, err)
		return
	}
	server, err := scripted.New(s.fixtures, script.Server, script.ServerUp == nil || *script.ServerUp)
	if err != nil {
		write(w, nil, err)
		return
	}
	s.mu.Lock()
	s.last++
	id := strconv.Itoa(s.last)
	s.servers[id] = server
	s.mu.Unlock()
	write(w, map[string]string{"id": id, "address": server.Address}, nil)
}

func await(server *scripted.Server, r *http.Request) (any, error) {
	var wanted struct {
		Requests int `json:"requests"`
	}
	if err := read(r, &wanted); err != nil {
		return nil, err
	}
	return nil, server.Await(wanted.Requests)
}

// A request is a request that a scripted server has read. The names of its headers are in lower
// case.
type request struct {
	Method  string              `json:"method"`
	Path    string              `json:"path"`
	Headers map[string][]string `json:"headers"`
	Body    string              `json:"body"`
}

func describe(server *scripted.Server) any {
	latest := []request{}
	for back := range 2 {
		r, found := server.FromLatest(back)
		if !found {
			break
		}
		headers := map[string][]string{}
		for name, values := range r.Header {
			headers[strings.ToLower(name)] = values
		}
		latest = append(latest, request{Method: r.Method, Path: r.Path, Headers: headers, Body: string(r.Body)})
	}
	return map[string]any{"requests": server.Count(), "latest": latest, "unmet": server.Unmet(), "problems": server.Problems()}
}

func read(r *http.Request, into any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return scripted.Strict(body, into)
}

func write(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
}
