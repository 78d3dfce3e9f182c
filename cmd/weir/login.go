package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/term"
)

type loginCmd struct {
	URL     string   `arg:"" help:"Address of the server, such as https://weir.example.com."`
	WithKey bool     `help:"Read an API key from standard input instead of asking for one in the browser."`
	Scopes  []string `name:"scope" enum:"check,read,write,manage" default:"check,read,write" help:"Scopes of the key: ${enum}. May be repeated. Default: check, read and write."`
	Machine string   `placeholder:"NAME" help:"Name of this machine, by which you recognize the key. Default: its host name."`
}

// Run stores the server and a key that it accepts.
func (c *loginCmd) Run(ctx context.Context, t *terminal) error {
	s := &server{URL: c.URL}
	if err := s.validate(); err != nil {
		return err
	}
	name, err := loginFile(t) // before a key is created that could not be stored
	if err != nil {
		return err
	}
	if c.WithKey {
		err = c.readKey(ctx, t, s)
	} else {
		err = c.askMember(ctx, t, s)
	}
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := writePrivate(name, append(content, '\n')); err != nil {
		return err
	}
	fmt.Fprintf(t.err, "Stored the key for %s in %s\n", s.URL, name)
	return nil
}

// readKey reads a key that somebody has created.
func (c *loginCmd) readKey(ctx context.Context, t *terminal, s *server) error {
	key, err := t.readSecret("API key: ")
	if err != nil {
		return err
	}
	s.Key = key
	_, err = s.do(ctx, call{method: http.MethodGet, path: "/v1/tenant"})
	var problem *problemError
	if errors.As(err, &problem) && problem.Status == http.StatusForbidden {
		err = nil // a key without read access is valid, too
	}
	return err
}

// A deviceLogin is a sign-in that a member must approve in a browser.
type deviceLogin struct {
	DeviceCode              string `json:"device_code"`
	UserCode                string `json:"user_code"`
	VerificationURIComplete string `json:"verification_uri_complete"`
	ExpiresIn               int64  `json:"expires_in"`
	Interval                int64  `json:"interval"`
}

// A devicePoll is the state of one.
type devicePoll struct {
	Status   string `json:"status"`
	Interval int64  `json:"interval"`
	Tenant   string `json:"tenant"`
	Key      struct {
		Secret    string    `json:"secret"`
		Name      string    `json:"name"`
		ExpiresAt time.Time `json:"expires_at"`
	} `json:"key"`
}

// askMember shows a code, and waits until a member has approved it.
func (c *loginCmd) askMember(ctx context.Context, t *terminal, s *server) error {
	machine := c.Machine
	if machine == "" {
		machine, _ = os.Hostname()
		if machine == "" {
			machine = "unknown machine"
		}
	}
	var login deviceLogin
	err := s.post(ctx, "/v1/device-logins", map[string]any{"machine": machine, "scopes": c.Scopes}, &login)
	var problem *problemError
	if errors.As(err, &problem) && (problem.Status == http.StatusNotFound || problem.Status == http.StatusMethodNotAllowed) {
		return errors.New("this server has no sign-in by browser: create an API key on its dashboard, and run weir login --with-key")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(t.err, "Open this address in a browser, and compare the code:\n\n    %s\n    %s\n\nWaiting for your approval, for %d minutes at most ...\n",
		plain(login.VerificationURIComplete), plain(login.UserCode), login.ExpiresIn/60)
	for every := login.Interval; ; {
		select {
		case <-t.after(time.Duration(max(every, 1)) * time.Second):
		case <-ctx.Done():
			return errors.New("interrupted: the machine is not signed in")
		}
		var poll devicePoll
		if err := s.post(ctx, "/v1/device-logins/poll", map[string]any{"device_code": login.DeviceCode}, &poll); err != nil {
			if every, err = pauseAfter(err, every); err != nil {
				return err
			}
			continue
		}
		switch poll.Status {
		case "pending", "slow_down":
			every = poll.Interval
		case "approved":
			s.Key = poll.Key.Secret
			fmt.Fprintf(t.err, "Signed in to %s with the key %q, which expires on %s\n", plain(poll.Tenant), plain(poll.Key.Name), poll.Key.ExpiresAt.Format(time.DateOnly))
			return nil
		case "denied":
			return errors.New("the sign-in was denied")
		case "expired":
			return errors.New("the code has expired: run weir login again")
		default:
			return fmt.Errorf("unknown state %q of the sign-in", plain(poll.Status))
		}
	}
}

// pauseAfter returns how many seconds to wait after a poll that failed. A server that restarts, or
// that is asked too often, has not decided. It returns the error if another poll cannot help.
func pauseAfter(err error, every int64) (int64, error) {
	var problem *problemError
	if errors.As(err, &problem) && problem.Status != http.StatusTooManyRequests && problem.Status < http.StatusInternalServerError || errors.Is(err, context.Canceled) {
		return 0, err
	}
	return min(every+5, 60), nil
}

// post sends a request without a key, and decodes the answer.
func (s *server) post(ctx context.Context, path string, body, into any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a, err := s.do(ctx, call{method: http.MethodPost, path: path, body: content, contentType: "application/json"})
	if err != nil {
		return err
	}
	return json.Unmarshal(a.body, into)
}

// writePrivate replaces a file, readable only by its owner.
func writePrivate(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), ".new-*") // with the mode 0600
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temporary.Name()) // the first error is returned
	}
	return err
}

// readSecret reads a line. A terminal does not show it.
func (t *terminal) readSecret(prompt string) (string, error) {
	if file, ok := t.in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprint(t.err, prompt)
		secret, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(t.err)
		return strings.TrimSpace(string(secret)), err
	}
	line, err := t.readLine()
	if err == nil && line == "" {
		err = errors.New("the key is empty: write it to standard input")
	}
	return line, err
}

func (t *terminal) readLine() (string, error) {
	line, err := bufio.NewReader(t.in).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), err
}
