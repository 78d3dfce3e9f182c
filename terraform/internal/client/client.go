// Package client calls the admin API of Weir for the provider. It is not a public API. The command
// weir has a client of its own, because the provider is a separate module and retries writes.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Defaults of a Client.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultAttempts = 5
)

const (
	maxAnswer  = 64 << 20
	firstPause = 200 * time.Millisecond
	maxPause   = 5 * time.Second
)

// A Client sends requests to one server with the key of one tenant. It may be used concurrently.
type Client struct {
	URL       string // as CleanURL returns it
	Key       string
	UserAgent string
	Timeout   time.Duration // of one attempt
	Attempts  int           // of one request
	// Pause waits between attempts; nil: it sleeps. It returns the error of the context.
	Pause func(ctx context.Context, d time.Duration) error
	HTTP  http.RoundTripper // nil: http.DefaultTransport
}

// CleanURL returns the address of a server in the form of Client.URL.
func CleanURL(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("invalid server address %q: use one such as https://weir.example.com", address)
	}
	return strings.TrimSuffix(address, "/"), nil
}

// A Call is one request.
type Call struct {
	Method  string
	Path    string // escaped
	Query   url.Values
	Body    any    // encoded as JSON; nil: none
	IfMatch string // an entity tag, or "" for none
}

// An Answer is a successful response.
type Answer struct {
	Body map[string]any // numbers are json.Number; nil without a body
	ETag string
}

// Do sends a request. It repeats the request if the server could not be reached or refuses it for
// now. This is safe: PUT, PATCH and DELETE are idempotent, and each POST has an Idempotency-Key.
// A response other than 2xx is a *Problem.
func (c *Client) Do(ctx context.Context, call Call) (*Answer, error) {
	var body []byte
	if call.Body != nil {
		encoded, err := json.Marshal(call.Body)
		if err != nil {
			return nil, err
		}
		body = encoded
	}
	var key string
	if call.Method == http.MethodPost {
		key = rand.Text()
	}
	pause := firstPause
	for attempt := 1; ; attempt++ {
		answer, err := c.once(ctx, call, body, key)
		var problem *Problem
		wait, again := time.Duration(0), true
		if errors.As(err, &problem) {
			wait, again = problem.retry()
		}
		if err == nil || !again || attempt >= c.Attempts || ctx.Err() != nil {
			return answer, err
		}
		wait = max(wait, time.Duration(float64(pause)*(0.5+mathrand.Float64()/2)))
		if err := c.Wait(ctx, wait); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxPause)
	}
}

func (c *Client) once(ctx context.Context, call Call, body []byte, idempotencyKey string) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	to := c.URL + call.Path
	if len(call.Query) > 0 {
		to += "?" + call.Query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, call.Method, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	headers := map[string]string{
		"Authorization": "Bearer " + c.Key, "Accept": "application/json", "User-Agent": c.UserAgent,
		"If-Match": call.IfMatch, "Idempotency-Key": idempotencyKey,
	}
	if body != nil {
		headers["Content-Type"] = "application/json"
	}
	for name, value := range headers {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	hc := http.Client{Transport: c.HTTP, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the key is for this server only
	}}
	response, err := hc.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, problemOf(call, response, content)
	}
	answer := &Answer{ETag: response.Header.Get("ETag")}
	if response.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&answer.Body); err != nil {
		return nil, problemOf(call, response, content)
	}
	return answer, nil
}

// Wait waits between attempts.
func (c *Client) Wait(ctx context.Context, d time.Duration) error {
	if c.Pause != nil {
		return c.Pause(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// List returns the items of all pages of a list.
func (c *Client) List(ctx context.Context, path string, query url.Values) ([]map[string]any, error) {
	items := []map[string]any{}
	q := url.Values{"limit": {"200"}}
	for name, values := range query {
		q[name] = values
	}
	for {
		answer, err := c.Do(ctx, Call{Method: http.MethodGet, Path: path, Query: q})
		if err != nil {
			return nil, err
		}
		page, _ := answer.Body["items"].([]any)
		for _, item := range page {
			if object, ok := item.(map[string]any); ok {
				items = append(items, object)
			}
		}
		cursor, _ := answer.Body["next_cursor"].(string)
		if cursor == "" {
			return items, nil
		}
		q.Set("cursor", cursor)
	}
}

// A Problem is an error of the server, usually a problem document (RFC 9457).
type Problem struct {
	Status    int     `json:"status"`
	Code      string  `json:"code"`
	Title     string  `json:"title"`
	Detail    string  `json:"detail"`
	RequestID string  `json:"request_id"`
	Errors    []Field `json:"errors"`

	Call       Call          `json:"-"`
	RetryAfter time.Duration `json:"-"`
}

// A Field is one invalid field of a request.
type Field struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

func problemOf(call Call, response *http.Response, content []byte) *Problem {
	var p Problem
	if json.Unmarshal(content, &p) != nil || p.Title == "" {
		p = Problem{Title: "The response is not from Weir", Detail: "Check the address of the server."}
	}
	p.Status, p.Call = response.StatusCode, call
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return &p
}

// retry reports whether to send the request again, and how long to wait at least.
func (p *Problem) retry() (time.Duration, bool) {
	switch {
	case p.Status == http.StatusTooManyRequests, p.Status == http.StatusRequestTimeout, p.Code == "IDEMPOTENCY_KEY_IN_USE":
	case p.Status < 500 || p.Status == http.StatusNotImplemented:
		return 0, false
	}
	return p.RetryAfter, true
}

// Error returns the problem with all invalid fields.
func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: status %d: %s", p.Call.Method, p.Call.Path, p.Status, p.Title)
	if p.Code != "" {
		fmt.Fprintf(&b, " (%s)", p.Code)
	}
	if len(p.Errors) == 0 && p.Detail != "" {
		b.WriteString("\n" + p.Detail)
	}
	for _, field := range p.Errors {
		b.WriteString("\n" + field.String())
	}
	return b.String()
}

// String returns the error with the pointer to the field.
func (f Field) String() string {
	text := strings.TrimSpace(f.Pointer + " " + strings.TrimSuffix(f.Message, ".") + ".")
	if f.Fix != "" {
		text += " " + f.Fix
	}
	return text
}

// Is reports whether err is a problem with this status, and with this code unless it is "".
func Is(err error, status int, code string) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status == status && (code == "" || p.Code == code)
}
