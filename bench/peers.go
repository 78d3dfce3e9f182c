package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	"weir/bench/load"
)

const (
	peersBinary  = "peers"
	envoyName    = "envoyproxy"
	envoyCommand = "github.com/envoyproxy/ratelimit/src/service_cmd"
)

// peerNames are the libraries behind the bare server. envoyproxy/ratelimit is its own server.
var peerNames = []string{"redis_rate", "throttled", "ulule", "mennanov"}

// peerModules are parts of the module paths of the peers.
var peerModules = []string{"/redis_rate/", "/throttled/", "/ulule/", "/mennanov/", "/envoyproxy/ratelimit"}

// beginPeers builds and starts the peers, the first time it is called.
func (s *stage) beginPeers(ctx context.Context) error {
	if s.servers[peerNames[0]] != nil {
		return nil
	}
	progress("building and starting the peers; the first time takes some minutes")
	dir := filepath.Join(s.root, "bench", "peers")
	if err := s.compile(ctx, dir, ".", peersBinary); err != nil {
		return err
	}
	for _, name := range peerNames {
		if err := s.startMinimal(ctx, name, peersBinary, nil, "-peer", name, "-redis", s.store.url); err != nil {
			return err
		}
	}
	return s.beginEnvoy(ctx)
}

// beginEnvoy builds and starts envoyproxy/ratelimit, the first time it is called.
func (s *stage) beginEnvoy(ctx context.Context) error {
	if s.servers[envoyName] != nil {
		return nil
	}
	dir := filepath.Join(s.root, "bench", "peers")
	if err := s.compile(ctx, dir, envoyCommand, envoyName, "-modfile=envoy_ratelimit.mod"); err != nil {
		return err
	}
	return s.startEnvoy(ctx)
}

// envoyLimits are the same limits as those of the other peers: a subject named tight reaches its
// limit soon.
const envoyLimits = `domain: weir
descriptors:
  - key: subject
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
  - key: subject
    value: tight
    rate_limit: {unit: hour, requests_per_unit: 100}
`

// startEnvoy starts envoyproxy/ratelimit with its own HTTP endpoint, which takes JSON. It sets the
// addresses, which have no default, and turns statistics off.
func (s *stage) startEnvoy(ctx context.Context) error {
	config := filepath.Join(s.dir, "envoy", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(config, "limits.yaml"), []byte(envoyLimits), 0o600); err != nil {
		return err
	}
	addrs, err := addresses(3)
	if err != nil {
		return err
	}
	port := func(i int) string { return addrs[i][strings.LastIndexByte(addrs[i], ':')+1:] }
	cmd := exec.Command(s.binary(envoyName))
	cmd.Env = environment("HOST=127.0.0.1", "PORT="+port(0), "GRPC_HOST=127.0.0.1", "GRPC_PORT="+port(1), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+port(2),
		"RUNTIME_ROOT="+filepath.Join(s.dir, "envoy"), "RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "LOG_LEVEL=error",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+s.store.nodes[0].addr, "REDIS_POOL_SIZE=128")
	healthy := func() error {
		response, err := http.Get("http://" + addrs[0] + "/healthcheck")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthcheck says %s", response.Status)
		}
		return nil
	}
	p, err := start(ctx, s.dir, envoyName, cmd, healthy)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, p.stop)
	s.servers[envoyName] = &server{process: p, http: addrs[0], grpc: addrs[1], store: s.store}
	return nil
}

func envoyRequest(subject string) load.Request {
	body := `{"domain":"weir","descriptors":[{"entries":[{"key":"subject","value":"` + subject + `"}]}]}`
	return load.Request{Path: "/json", Body: []byte(body)}
}

func envoyUniform() *load.Traffic {
	requests := make([]load.Request, subjects)
	for i := range requests {
		requests[i] = envoyRequest(subject(i))
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

func envoyTight() *load.Traffic {
	return load.NewTraffic([]load.Request{envoyRequest("tight")}, load.Uniform, seed)
}

// peerGroup compares Weir with the peers, for many subjects and for one that is denied.
func peerGroup(bare, weir, denied cell, uniform *load.Traffic) group {
	denied.name = "weir, one hot subject, denied"
	g := group{"peers", "Peers on the same Redis: libraries behind the bare server, and envoyproxy/ratelimit over HTTP", []cell{bare, weir}}
	for _, name := range peerNames {
		g.cells = append(g.cells, cell{name: name + ", uniform", server: name, traffic: uniform, checks: 1})
	}
	g.cells = append(g.cells, cell{name: envoyName + ", uniform", server: envoyName, traffic: envoyUniform(), checks: 1}, denied)
	for _, name := range peerNames {
		g.cells = append(g.cells, cell{name: name + ", one hot subject, denied", server: name, traffic: denied.traffic, checks: 1, denied: true})
	}
	return group{g.name, g.title, append(g.cells, cell{name: envoyName + ", one hot subject, denied", server: envoyName, traffic: envoyTight(), checks: 1, denied: true})}
}

// peerVersions returns the versions of the peers' modules.
func (s *stage) peerVersions() string {
	var versions []string
	for _, binary := range []string{peersBinary, envoyName} {
		info, err := buildinfo.ReadFile(s.binary(binary))
		if err != nil {
			continue // not built, because the table of peers is not measured
		}
		for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
			for _, name := range peerModules {
				if strings.Contains(m.Path+"/", name) {
					versions = append(versions, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
				}
			}
		}
	}
	return strings.Join(versions, ", ")
}
