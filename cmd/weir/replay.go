package main

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/check"
)

type replayCmd struct {
	Log          []string  `arg:"" help:"Access logs, also compressed (.gz); - for standard input."`
	Rules        string    `short:"f" placeholder:"FILE" help:"Configuration document with the rules and plans to try. Default: the configuration of the server."`
	Format       logFormat `enum:"auto,combined,json" default:"auto" help:"Format of the lines: ${enum}. combined is also the common log format."`
	Subject      string    `default:"ip" placeholder:"FIELD" help:"Field with the subject: ip, user or agent of a text line, or any field of a JSON line, such as request.remote_ip. Default: ip."`
	Resource     string    `short:"r" default:"default" help:"The resource of all requests. Default: default."`
	ResourceFrom string    `placeholder:"FIELD" help:"Field with the resource, such as path, instead."`
	Cost         string    `placeholder:"FIELD" help:"Field with the units of a request. Default: 1 unit each."`
	Attributes   []string  `name:"attribute" short:"a" placeholder:"NAME=FIELD" help:"Further values that rules can count by. May be repeated."`
	TimeField    string    `placeholder:"FIELD" help:"Field of a JSON line with its time. Default: time, timestamp or another usual name."`
	Top          int       `default:"10" help:"Number of the most denied subjects to list."`
}

// A replay is what rules would have decided about the requests of a log.
type replay struct {
	Lines      int64           `json:"lines"`
	Unreadable int64           `json:"unreadable"`
	Requests   int64           `json:"requests"`
	Allowed    int64           `json:"allowed"`
	Denied     int64           `json:"denied"`
	From       *time.Time      `json:"from"`
	To         *time.Time      `json:"to"`
	Rules      []replayRule    `json:"rules"`
	Subjects   []replaySubject `json:"most_denied"`
	Intervals  []replaySlice   `json:"intervals"`

	firstUnreadable error
	subjects        map[string]*replaySubject
}

type replayRule struct {
	Rule     string `json:"rule"`
	Mode     string `json:"mode"`
	Checked  int64  `json:"checked"`
	Denied   int64  `json:"denied"` // of a shadow rule: what it would have denied
	Subjects int64  `json:"denied_subjects"`

	denied map[string]struct{}
}

type replaySubject struct {
	Subject string `json:"subject"`
	Allowed int64  `json:"allowed"`
	Denied  int64  `json:"denied"`
}

// A replaySlice is an interval of the log's time.
type replaySlice struct {
	Start   time.Time `json:"start"`
	Allowed int64     `json:"allowed"`
	Denied  int64     `json:"denied"`
}

const (
	replaySlices  = 60      // of the picture
	maxLogLine    = 1 << 20 // bytes
	progressEvery = 100_000 // lines
)

// Run prints what the rules would have decided.
func (c *replayCmd) Run(ctx context.Context, t *terminal) error {
	d, err := c.document(ctx, t)
	if err != nil {
		return err
	}
	policy, subjects, err := d.policy()
	if err != nil {
		return err
	}
	var out replay
	requests, err := c.read(ctx, t, &out)
	if err != nil {
		return err
	}
	if len(requests) == 0 {
		if out.firstUnreadable != nil {
			return fmt.Errorf("no line could be read: %w", out.firstUnreadable)
		}
		return errors.New("the log is empty")
	}
	// A server logs a request when it ends, so lines are not quite in the order of time.
	slices.SortStableFunc(requests, func(a, b check.SimulatedRequest) int { return cmp.Compare(a.AtMS, b.AtMS) })
	out.begin(policy, requests)
	simulation := check.Simulation{Policy: policy, Subjects: subjects, Requests: requests}
	err = check.Simulate(ctx, simulation, func(i int, decision *check.Decision) error {
		if i%progressEvery == 0 {
			t.progress("%d of %d requests decided", i, len(requests))
		}
		out.add(requests[i].AtMS, decision)
		return nil
	})
	t.progress("")
	if err != nil {
		return err
	}
	out.end(c.Top)
	return out.print(t)
}

// document reads the rules from the file, or from the server.
func (c *replayCmd) document(ctx context.Context, t *terminal) (*document, error) {
	if c.Rules != "" {
		content, err := os.ReadFile(c.Rules)
		if err != nil {
			return nil, err
		}
		d, err := parseDocument(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Rules, err)
		}
		return d, nil
	}
	s, err := t.connect()
	if err != nil {
		return nil, fmt.Errorf("%w; or name a file of rules with --rules", err)
	}
	a, err := s.do(ctx, call{method: http.MethodGet, path: "/v1/config", query: url.Values{"format": {"json"}}})
	if err != nil {
		return nil, err
	}
	return parseDocument(a.body)
}

// read reads the requests of all logs.
func (c *replayCmd) read(ctx context.Context, t *terminal, out *replay) ([]check.SimulatedRequest, error) {
	attributes := make([]check.Attribute, len(c.Attributes)) // the value is the name of the field
	for i, text := range c.Attributes {
		name, field, ok := strings.Cut(text, "=")
		if !ok || name == "" || field == "" {
			return nil, fmt.Errorf("invalid attribute %q: write NAME=FIELD", text)
		}
		attributes[i] = check.Attribute{Name: name, Value: field}
	}
	var requests []check.SimulatedRequest
	names := map[string]string{} // one copy of each text
	for _, name := range c.Log {
		err := eachLine(t, name, func(number int, line string) error {
			if out.Lines++; out.Lines%progressEvery == 0 {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				t.progress("%d lines read", out.Lines)
			}
			r, err := c.request(line, attributes, names)
			if err == nil {
				requests = append(requests, r)
			} else if out.Unreadable++; out.firstUnreadable == nil {
				out.firstUnreadable = fmt.Errorf("line %d of %s %w", number, name, err)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return requests, nil
}

// request converts a line to the check that its request would have been.
func (c *replayCmd) request(line string, attributes []check.Attribute, names map[string]string) (r check.SimulatedRequest, err error) {
	l, err := c.Format.parse(line, c.TimeField)
	if err != nil {
		return r, err
	}
	field := func(name string) string {
		value := l.fields[name]
		if kept, known := names[value]; known {
			return kept
		}
		value = strings.Clone(value) // not the line that it is a part of
		names[value] = value
		return value
	}
	r = check.SimulatedRequest{AtMS: l.at.UnixMilli(), Request: check.Request{Subject: field(c.Subject), Resource: c.Resource, Cost: 1}}
	if r.AtMS < 0 {
		return r, errors.New("has a time before 1970")
	}
	if r.Subject == "" {
		return r, fmt.Errorf("has no field %q for the subject", c.Subject)
	}
	if c.ResourceFrom != "" {
		if r.Resource = field(c.ResourceFrom); r.Resource == "" {
			return r, fmt.Errorf("has no field %q for the resource", c.ResourceFrom)
		}
	}
	if c.Cost != "" {
		if r.Cost, err = strconv.ParseInt(l.fields[c.Cost], 10, 64); err != nil || r.Cost < 0 {
			return r, fmt.Errorf("has no whole number in the field %q", c.Cost)
		}
	}
	for _, a := range attributes {
		if value := field(a.Value); value != "" {
			r.Attributes = append(r.Attributes, check.Attribute{Name: a.Name, Value: value})
		}
	}
	return r, nil
}

// eachLine calls f with the lines of a file that are not empty. The first line has number 1.
func eachLine(t *terminal, name string, f func(number int, line string) error) error {
	var in io.Reader = t.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	if strings.HasSuffix(name, ".gz") {
		unpacked, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = unpacked
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLogLine)
	for number := 1; lines.Scan(); number++ {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			if err := f(number, line); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// begin prepares the counts for requests in the order of time.
func (r *replay) begin(p check.PolicyData, requests []check.SimulatedRequest) {
	r.subjects = map[string]*replaySubject{}
	r.Rules, r.Subjects = make([]replayRule, len(p.Rules)), []replaySubject{}
	for i := range p.Rules {
		r.Rules[i] = replayRule{Rule: p.Rules[i].Slug, Mode: p.Rules[i].Mode.String(), denied: map[string]struct{}{}}
	}
	slices.SortFunc(r.Rules, func(a, b replayRule) int { return strings.Compare(a.Rule, b.Rule) })
	first, last := requests[0].AtMS, requests[len(requests)-1].AtMS
	from, to := time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
	r.From, r.To = &from, &to
	length := (last-first)/replaySlices + 1
	for at := first; at <= last; at += length {
		r.Intervals = append(r.Intervals, replaySlice{Start: time.UnixMilli(at).UTC()})
	}
}

// add counts a decision.
func (r *replay) add(atMS int64, d *check.Decision) {
	s := r.subjects[d.Subject]
	if s == nil {
		s = &replaySubject{Subject: d.Subject}
		r.subjects[d.Subject] = s
	}
	first := r.Intervals[0].Start.UnixMilli()
	length := int64(1)
	if len(r.Intervals) > 1 {
		length = r.Intervals[1].Start.UnixMilli() - first
	}
	at := &r.Intervals[(atMS-first)/length]
	r.Requests++
	if d.Allowed {
		r.Allowed++
		s.Allowed++
		at.Allowed++
	} else {
		r.Denied++
		s.Denied++
		at.Denied++
	}
	row := 0
	for i := range d.Rules { // both lists are sorted by slug
		for r.Rules[row].Rule != d.Rules[i].Rule.Slug {
			row++
		}
		r.Rules[row].Checked++
		if !d.Rules[i].Allowed {
			r.Rules[row].Denied++
			r.Rules[row].denied[s.Subject] = struct{}{}
		}
	}
}

// end sorts the counts.
func (r *replay) end(top int) {
	for i := range r.Rules {
		r.Rules[i].Subjects = int64(len(r.Rules[i].denied))
	}
	for _, s := range r.subjects {
		if s.Denied > 0 {
			r.Subjects = append(r.Subjects, *s)
		}
	}
	slices.SortFunc(r.Subjects, func(a, b replaySubject) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.Subject, b.Subject))
	})
	r.Subjects = r.Subjects[:min(len(r.Subjects), max(top, 0))]
}

func (r *replay) print(t *terminal) error {
	switch t.output {
	case "json":
		return t.printJSON(r)
	case "csv":
		rows := [][]string{{"start", "allowed", "denied"}}
		for _, at := range r.Intervals {
			rows = append(rows, []string{at.Start.Format(time.RFC3339), number(at.Allowed), number(at.Denied)})
		}
		return t.printRows(rows)
	}
	const minutes = "2006-01-02 15:04"
	head := fmt.Sprintf("%d requests from %s to %s UTC:", r.Requests, r.From.Format(minutes), r.To.Format(minutes))
	sum := fmt.Sprintf("%d allowed, %d denied (%s)", r.Allowed, r.Denied, percent(r.Denied, r.Requests))
	gap := " "
	if width := t.width(); width > 0 && len(head)+len(gap)+len(sum) > width {
		gap = "\n"
	}
	fmt.Fprintln(t.out, head+gap+sum)
	if r.Unreadable > 0 {
		fmt.Fprintf(t.out, "%d lines were skipped: %s\n", r.Unreadable, plain(r.firstUnreadable.Error()))
	}
	shown := r.Intervals
	if width := t.width(); width > 0 {
		shown = merge(shown, max(width-len("  requests  "), 1))
	}
	fmt.Fprintf(t.out, "\n  requests  %s\n  denied    %s\n\n", bars(shown, func(s replaySlice) int64 { return s.Allowed + s.Denied }),
		bars(shown, func(s replaySlice) int64 { return s.Denied }))
	rows := [][]string{{"rule", "mode", "checked", "denied", "share", "denied_subjects"}}
	for _, rule := range r.Rules {
		rows = append(rows, []string{rule.Rule, rule.Mode, number(rule.Checked), number(rule.Denied), percent(rule.Denied, rule.Checked), number(rule.Subjects)})
	}
	if err := t.printRows(rows); err != nil || len(r.Subjects) == 0 {
		return err
	}
	fmt.Fprintln(t.out)
	rows = [][]string{{"most_denied_subject", "allowed", "denied"}}
	for _, s := range r.Subjects {
		rows = append(rows, []string{s.Subject, number(s.Allowed), number(s.Denied)})
	}
	return t.printRows(rows)
}

// merge adds neighboring intervals together, so that at most n remain. All but the last one have
// the same length.
func merge(intervals []replaySlice, n int) (merged []replaySlice) {
	for together := range slices.Chunk(intervals, (len(intervals)+n-1)/n) {
		sum := replaySlice{Start: together[0].Start}
		for _, at := range together {
			sum.Allowed += at.Allowed
			sum.Denied += at.Denied
		}
		merged = append(merged, sum)
	}
	return merged
}

// bars draws a bar for each interval. The highest has the height of a line. An interval with a
// count of 0 is blank, so that a small count can be told from none.
func bars(intervals []replaySlice, count func(replaySlice) int64) string {
	const heights = "▁▂▃▄▅▆▇█"
	most := int64(0)
	for _, at := range intervals {
		most = max(most, count(at))
	}
	if most == 0 {
		return "none"
	}
	var b strings.Builder
	for _, at := range intervals {
		if n := count(at); n == 0 {
			b.WriteByte(' ')
		} else {
			b.WriteRune([]rune(heights)[(8*n-1)/most])
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func percent(part, all int64) string {
	if all == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(all), 'f', 1, 64) + " %"
}
