package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	timeout   = 30 * time.Second
	maxAnswer = 64 << 20
)

// A server is a Weir server with a key of a tenant.
type server struct {
	URL string `json:"url"`
	Key string `json:"key"`
}

// loginFile returns the file in which weir login stores the server.
func loginFile(t *terminal) (string, error) {
	folder := t.getenv("XDG_CONFIG_HOME")
	if folder == "" {
		home := t.getenv("HOME")
		if home == "" {
			return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: set WEIR_URL and WEIR_KEY instead")
		}
		folder = filepath.Join(home, ".config")
	}
	return filepath.Join(folder, "weir", "login.json"), nil
}

// connect returns the server of the environment, or that of the login.
func (t *terminal) connect() (*server, error) {
	s := &server{URL: t.getenv("WEIR_URL"), Key: t.getenv("WEIR_KEY")}
	if s.URL == "" && s.Key == "" {
		name, err := loginFile(t)
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New(`no server configured: run "weir login URL", or set WEIR_URL and WEIR_KEY`)
		}
		if err == nil {
			err = json.Unmarshal(content, s)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if s.URL == "" || s.Key == "" {
		return nil, errors.New("set both WEIR_URL and WEIR_KEY, or neither")
	}
	return s, s.validate()
}

func (s *server) validate() error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("invalid server address %q: use one such as https://weir.example.com", s.URL)
	}
	s.URL = strings.TrimSuffix(s.URL, "/")
	return nil
}

// A call is one request.
type call struct {
	method, path string
	query        url.Values
	body         []byte
	contentType  string
	ifMatch      string
	accept       string
}

// An answer is a response of a server.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request. A response that is neither a success nor a decision is an error.
func (s *server) do(ctx context.Context, c call) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := s.request(ctx, c)
	if err != nil {
		return nil, err
	}
	response, err := httpClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	a, err := read(response)
	if err != nil {
		return nil, err
	}
	if a.status/100 == 2 || a.header.Get("Weir-Decision") == "deny" {
		return a, nil
	}
	return nil, a.problem()
}

var httpClient = http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse // the key is for this server only
}}

// request returns a request with the key.
func (s *server) request(ctx context.Context, c call) (*http.Request, error) {
	to := s.URL + c.path
	if len(c.query) > 0 {
		to += "?" + c.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, c.method, to, bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	authorization := ""
	if s.Key != "" {
		authorization = "Bearer " + s.Key
	}
	for name, value := range map[string]string{"Authorization": authorization, "Content-Type": c.contentType,
		"If-Match": c.ifMatch, "Accept": c.accept, "User-Agent": "weir"} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return r, nil
}

func read(response *http.Response) (*answer, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return &answer{status: response.StatusCode, header: response.Header, body: body}, nil
}

// A problemError is an error of the server, usually a problem document (RFC 9457).
type problemError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Pointer string `json:"pointer"`
		Message string `json:"message"`
		Fix     string `json:"fix"`
	} `json:"errors"`
}

func (a *answer) problem() *problemError {
	var p problemError
	if json.Unmarshal(a.body, &p) != nil || p.Title == "" {
		p = problemError{Title: "the response is not from Weir; check the address"}
	}
	p.Status = a.status
	return &p
}

func (p *problemError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %d: %s", p.Status, p.Title)
	if p.Code != "" {
		fmt.Fprintf(&b, " (%s)", p.Code)
	}
	if len(p.Errors) == 0 && p.Detail != "" {
		fmt.Fprintf(&b, "\n  %s", p.Detail)
	}
	for _, e := range p.Errors {
		fmt.Fprintf(&b, "\n  %s %s. %s", e.Pointer, strings.TrimSuffix(e.Message, "."), e.Fix)
	}
	return b.String()
}
