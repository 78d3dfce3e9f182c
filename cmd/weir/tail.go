package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	tailSilence = 45 * time.Second // the server sends something every 15 seconds
	tailWait    = time.Second      // before the first attempt to connect again; each further one waits longer
	tailMaxWait = 15 * time.Second
	// tailOverlap is how far before the last decision a gap is filled, because instances list
	// decisions at different times.
	tailOverlap = 10 * time.Second
)

type tailCmd struct {
	Subject  string        `short:"s" help:"Only this subject."`
	Prefix   string        `help:"Only subjects that begin with this text."`
	Resource string        `short:"r" help:"Only this resource."`
	Rule     string        `help:"Only decisions of this rule."`
	Denied   bool          `short:"d" help:"Only denied checks."`
	Number   int           `short:"n" default:"10" help:"Number of earlier decisions to begin with, at most 300. Default: 10."`
	For      time.Duration `placeholder:"DURATION" help:"End after this time, such as 30s. Default: never."`
}

// A liveDecision has the fields of a decision that the table shows.
type liveDecision struct {
	At           time.Time `json:"at"`
	Subject      string    `json:"subject"`
	Resource     string    `json:"resource"`
	Cost         int64     `json:"cost"`
	Allowed      bool      `json:"allowed"`
	Code         string    `json:"code"`
	Rule         string    `json:"rule"`
	Limit        *int64    `json:"limit"`
	Remaining    *int64    `json:"remaining"`
	RetryAfterMS *int64    `json:"retry_after_ms"`
	Repeats      int64     `json:"repeats"`
}

// A tail prints decisions, each once.
type tail struct {
	command *tailCmd
	t       *terminal
	server  *server
	shown   map[string]time.Time // recently printed decisions, and when they were made
	last    time.Time            // when the newest of them was made
	began   bool                 // the header was printed
}

// Run prints decisions until ctx ends.
func (c *tailCmd) Run(ctx context.Context, t *terminal) error {
	s, err := t.connect()
	if err != nil {
		return err
	}
	if c.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.For)
		defer cancel()
	}
	tail := &tail{command: c, t: t, server: s, shown: map[string]time.Time{}}
	err = tail.run(ctx)
	if ctx.Err() != nil {
		return nil // interrupted, or the time is over
	}
	return err
}

// run connects, and connects again whenever the stream ends. It returns the error of a request that
// will not succeed later.
func (t *tail) run(ctx context.Context) error {
	connected := false
	for wait := tailWait; ctx.Err() == nil; wait = min(2*wait, tailMaxWait) {
		began, err := t.follow(ctx, connected)
		if connected = connected || began; began {
			wait = tailWait
		}
		var problem *problemError
		if errors.As(err, &problem) && !problem.temporary() || !connected || errors.Is(err, errOutput) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(t.t.err, "weir: %s; connecting again\n", strings.ReplaceAll(err.Error(), "\n", ""))
		}
		select {
		case <-ctx.Done():
		case <-t.t.after(wait):
		}
	}
	return nil
}

func (p *problemError) temporary() bool {
	return p.Status >= 500 || p.Status == http.StatusTooManyRequests || p.Status == http.StatusRequestTimeout
}

// errOutput means that standard output is closed.
var errOutput = errors.New("cannot write")

// follow prints the decisions of one connection, and before these what was decided in between. It
// reports whether the stream began.
func (t *tail) follow(ctx context.Context, again bool) (began bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.open(ctx)
	if err != nil {
		return false, err
	}
	defer stream.Body.Close()
	if err := t.earlier(ctx, again); err != nil {
		return true, err
	}
	silence := time.AfterFunc(tailSilence, cancel) // a connection that died is not reported otherwise
	defer silence.Stop()
	lines := bufio.NewScanner(stream.Body)
	event := ""
	for lines.Scan() {
		silence.Reset(tailSilence)
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "event":
			event = value
		case name == "data" && event == "end":
			return true, (&answer{body: []byte(value)}).ended()
		case name == "data" && event == "decision":
			if err := t.print(json.RawMessage(value)); err != nil {
				return true, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return true, fmt.Errorf("the stream ended: %w", err)
	}
	return true, nil
}

// ended returns the problem for which the server has ended a stream.
func (a *answer) ended() *problemError {
	var p problemError
	if json.Unmarshal(a.body, &p) != nil {
		p = problemError{Title: "the server ended the stream"}
	}
	return &p
}

func (t *tail) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{
		"subject": t.command.Subject, "prefix": t.command.Prefix, "resource": t.command.Resource, "rule": t.command.Rule,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if t.command.Denied {
		query.Set("denied", "true")
	}
	return query
}

func (t *tail) open(ctx context.Context) (*http.Response, error) {
	r, err := t.server.request(ctx, call{method: http.MethodGet, path: "/v1/decisions/stream", query: t.query(), accept: "text/event-stream"})
	if err != nil {
		return nil, err
	}
	response, err := httpClient.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		a, err := read(response)
		if err != nil {
			return nil, err
		}
		return nil, a.problem()
	}
	return response, nil
}

// earlier prints recorded decisions: at first the requested number, and later those that were made
// since the last one.
func (t *tail) earlier(ctx context.Context, again bool) error {
	query := t.query()
	switch {
	case again && !t.last.IsZero():
		query.Set("since", t.last.Add(-tailOverlap).UTC().Format(time.RFC3339))
		query.Set("limit", "300")
	case again || t.command.Number <= 0:
		return nil
	default:
		query.Set("limit", strconv.Itoa(min(t.command.Number, 300)))
	}
	a, err := t.server.do(ctx, call{method: http.MethodGet, path: "/v1/decisions", query: query})
	if err != nil {
		return err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil {
		return a.problem()
	}
	for _, item := range slices.Backward(list.Items) {
		if err := t.print(item); err != nil {
			return err
		}
	}
	return nil
}

// print prints a decision that was not printed before.
func (t *tail) print(full json.RawMessage) error {
	var d liveDecision
	if err := json.Unmarshal(full, &d); err != nil {
		return fmt.Errorf("invalid decision in the stream: %w", err)
	}
	key := fmt.Sprint(d.At.UnixNano(), " ", d.Allowed, " ", d.Rule, " ", d.Resource, " ", d.Subject)
	if _, known := t.shown[key]; known {
		return nil
	}
	t.shown[key] = d.At
	if d.At.After(t.last) {
		t.last = d.At
	}
	if len(t.shown) > 4096 {
		for key, at := range t.shown {
			if t.last.Sub(at) > 3*tailOverlap {
				delete(t.shown, key)
			}
		}
	}
	if err := t.write(&d, full); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

var tailColumns = []string{"at", "allowed", "subject", "resource", "cost", "rule", "limit", "remaining", "retry_after_ms", "repeats"}

func (t *tail) write(d *liveDecision, full json.RawMessage) error {
	switch t.t.output {
	case "json":
		_, err := t.t.out.Write(append(slices.Clone(full), '\n'))
		return err
	case "csv":
		w := csv.NewWriter(t.t.out)
		if !t.began {
			t.began = true
			_ = w.Write(tailColumns) // Flush returns the error
		}
		_ = w.Write([]string{d.At.Format(time.RFC3339Nano), strconv.FormatBool(d.Allowed), d.Subject, d.Resource, strconv.FormatInt(d.Cost, 10),
			d.Rule, optionalNumber(d.Limit), optionalNumber(d.Remaining), optionalNumber(d.RetryAfterMS), strconv.FormatInt(d.Repeats, 10)})
		w.Flush()
		return w.Error()
	}
	_, err := fmt.Fprintln(t.t.out, d.line(t.t.width(), t.t.colour))
	return err
}

func optionalNumber(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// line returns the decision as one line of at most width characters; 0: of any length.
func (d *liveDecision) line(width int, colour bool) string {
	verdict := "allow"
	if !d.Allowed {
		verdict = "DENY "
	}
	parts := []string{plain(d.Subject), plain(d.Resource)}
	if d.Cost != 1 {
		parts = append(parts, "cost "+strconv.FormatInt(d.Cost, 10))
	}
	if d.Rule != "" {
		rule := plain(d.Rule)
		if d.Limit != nil && d.Remaining != nil {
			rule += fmt.Sprintf(" %d/%d left", *d.Remaining, *d.Limit)
		}
		parts = append(parts, rule)
	} else if d.Code != "" {
		parts = append(parts, plain(d.Code))
	}
	if d.RetryAfterMS != nil {
		parts = append(parts, "retry in "+(time.Duration(*d.RetryAfterMS)*time.Millisecond).String())
	}
	if d.Repeats > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", d.Repeats))
	}
	clock := d.At.UTC().Format("15:04:05.000")
	rest := strings.Join(parts, "  ")
	if width > 0 {
		if width < 60 {
			clock = clock[:len("15:04:05")]
		}
		rest = shorten(rest, max(width-len(clock)-len(verdict)-2, 8))
	}
	if colour && !d.Allowed {
		verdict = "\x1b[31m" + verdict + "\x1b[0m"
	}
	return clock + " " + verdict + " " + rest
}

// shorten returns at most width characters of a text.
func shorten(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width {
		return s
	}
	return string(runes[:max(width-1, 0)]) + "…"
}
