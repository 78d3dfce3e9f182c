package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weir/bench/kernel"
)

const (
	startTime = 3 * time.Minute  // for a process to become ready: an instance may read many tenants first
	stopTime  = 10 * time.Second // for a process to end by itself
)

// process is a server that this run started.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string // file of its output
	ended chan struct{}
}

// start runs a command in the background, with its output in a file in dir, and returns when ready
// returns nil.
func start(ctx context.Context, dir, name string, cmd *exec.Cmd, ready func() error) (*process, error) {
	p := &process{name: name, cmd: cmd, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	output, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer output.Close() // the process has its own descriptor
	cmd.Stdout, cmd.Stderr = output, output
	// A process group of its own: Ctrl-C reaches only this process, which stops the servers in
	// order. If this process is killed, the kernel ends them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait() // its log shows how it ended
		close(p.ended)
	}()
	if err := p.await(ctx, ready); err != nil {
		p.stop()
		return nil, fmt.Errorf("start %s: %w%s", name, err, p.lastWords())
	}
	return p, nil
}

func (p *process) await(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process with SIGTERM, or with SIGKILL after stopTime.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// settle returns when the process is almost idle.
func (p *process) settle(ctx context.Context) error {
	const look, quiet = 500 * time.Millisecond, 25 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	last, err := kernel.CPU(p.pid())
	for err == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var now time.Duration
		if now, err = kernel.CPU(p.pid()); now-last < quiet {
			break
		}
		last = now
	}
	return err
}

// lastWords returns the end of the process's output.
func (p *process) lastWords() string {
	const most = 2000
	output, err := os.ReadFile(p.log)
	if err != nil || len(output) == 0 {
		return ""
	}
	return "\n" + string(output[max(0, len(output)-most):])
}

// freeAddr returns a free address on loopback.
func freeAddr() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// listening returns an error while nothing listens on an address.
func listening(addr string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// environment returns the variables of this process without those that configure a server, and with
// these.
func environment(variables ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WEIR_") {
			env = append(env, v)
		}
	}
	return append(append(env, "WEIR_ALLOW_SUPERUSER=true"), variables...) // of the private Postgres
}
