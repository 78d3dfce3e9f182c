package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

const (
	topEvery    = 2 * time.Second
	topSubjects = 100 // of each list
	// topWide is the width from which the two lists are side by side.
	topWide   = 100
	topHeight = 40 // of a frame that is not in a terminal
)

type topCmd struct {
	Minutes int  `short:"m" default:"5" help:"The last minutes to count, 1 to 60. Default: 5."`
	Once    bool `help:"Print one frame and end. Default if standard output is not a terminal."`
}

// A topSubject is a busy subject.
type topSubject struct {
	Subject string `json:"subject"`
	Allowed int64  `json:"allowed"`
	Denied  int64  `json:"denied"`
}

func (s *topSubject) checks() int64 { return s.Allowed + s.Denied }

// topData is what one frame shows.
type topData struct {
	At      time.Time    `json:"at"`
	Minutes int          `json:"minutes"`
	Allowed int64        `json:"allowed"`
	Denied  int64        `json:"denied"`
	Busiest []topSubject `json:"busiest"`
	// MostDenied counts only denied checks: Allowed is 0.
	MostDenied []topSubject `json:"most_denied"`
}

// Run shows the busiest and the most denied subjects.
func (c *topCmd) Run(ctx context.Context, t *terminal) error {
	if c.Minutes < 1 || c.Minutes > 60 {
		return errors.New("--minutes must be 1 to 60")
	}
	s, err := t.connect()
	if err != nil {
		return err
	}
	load := func() (*topData, error) { return loadTop(ctx, s, c.Minutes, time.Now()) }
	data, err := load()
	if err != nil {
		return err
	}
	switch {
	case t.output == "json":
		return t.printJSON(data)
	case t.output == "csv":
		return t.printRows(data.rows())
	case c.Once || t.columns == nil:
		frame := topFrame{data: data, server: s.URL, width: cmp.Or(t.width(), 80), height: topHeight, colour: t.colour}
		_, err := fmt.Fprintln(t.out, frame.render())
		return err
	}
	model := &topModel{frame: topFrame{data: data, server: s.URL, width: t.width(), height: topHeight, colour: t.colour}, load: load}
	_, err = tea.NewProgram(model, tea.WithContext(ctx), tea.WithInput(t.in), tea.WithOutput(t.out),
		tea.WithWindowSize(t.width(), topHeight), tea.WithoutSignalHandler()).Run() // a terminal then reports its size
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// loadTop reads the usage of the last minutes, by subject and in total.
func loadTop(ctx context.Context, s *server, minutes int, now time.Time) (*topData, error) {
	from := now.UTC().Truncate(time.Minute).Add(-time.Duration(minutes-1) * time.Minute)
	out := &topData{At: now.UTC(), Minutes: minutes}
	read := func(values url.Values) ([]topSubject, error) {
		values.Set("grain", "minute")
		values.Set("from", from.Format(time.RFC3339))
		a, err := s.do(ctx, call{method: http.MethodGet, path: "/v1/usage", query: values})
		if err != nil {
			return nil, err
		}
		var usage struct {
			Items []topSubject `json:"items"`
		}
		if err := json.Unmarshal(a.body, &usage); err != nil {
			return nil, a.problem()
		}
		return usage.Items, nil
	}
	total, err := read(url.Values{})
	if err != nil {
		return nil, err
	}
	for i := range total {
		out.Allowed += total[i].Allowed
		out.Denied += total[i].Denied
	}
	for by, list := range map[string]*[]topSubject{"checks": &out.Busiest, "denied": &out.MostDenied} {
		items, err := read(url.Values{"group_by": {"subject"}, "top": {by}})
		if err != nil {
			return nil, err
		}
		*list = sumSubjects(items)
	}
	return out, nil
}

// sumSubjects adds up the minutes of each subject, and returns the busiest first.
func sumSubjects(items []topSubject) []topSubject {
	sums := map[string]topSubject{}
	for _, item := range items {
		sum := sums[item.Subject]
		sums[item.Subject] = topSubject{item.Subject, sum.Allowed + item.Allowed, sum.Denied + item.Denied}
	}
	list := make([]topSubject, 0, len(sums))
	for _, sum := range sums {
		if sum.checks() > 0 {
			list = append(list, sum)
		}
	}
	slices.SortFunc(list, func(a, b topSubject) int {
		return cmp.Or(cmp.Compare(b.checks(), a.checks()), strings.Compare(a.Subject, b.Subject))
	})
	return list[:min(len(list), topSubjects)]
}

func (d *topData) rows() [][]string {
	rows := [][]string{{"list", "subject", "allowed", "denied"}}
	for _, s := range d.Busiest {
		rows = append(rows, []string{"busiest", s.Subject, strconv.FormatInt(s.Allowed, 10), strconv.FormatInt(s.Denied, 10)})
	}
	for _, s := range d.MostDenied {
		rows = append(rows, []string{"most_denied", s.Subject, "", strconv.FormatInt(s.Denied, 10)})
	}
	return rows
}

// A topFrame is one picture of the terminal.
type topFrame struct {
	data          *topData
	server        string
	width, height int
	colour        bool
	failure       string // why the data is old
}

// render returns lines of at most width characters, without a final newline.
func (f *topFrame) render() string {
	d := f.data
	share := 0.0
	if all := d.Allowed + d.Denied; all > 0 {
		share = 100 * float64(d.Denied) / float64(all)
	}
	lines := []string{
		shorten(fmt.Sprintf("%s  %s UTC", plain(f.server), d.At.Format("15:04:05")), f.width),
		shorten(fmt.Sprintf("last %d min: %d checks, %d denied (%.1f %%)", d.Minutes, d.Allowed+d.Denied, d.Denied, share), f.width),
		"",
	}
	if f.failure != "" {
		lines[2] = f.paint(shorten("cannot update: "+plain(f.failure), f.width))
	}
	rows := max(f.height-len(lines), 4)
	if f.width >= topWide {
		left, right := f.list("BUSIEST", d.Busiest, false, f.width/2-1, rows), f.list("MOST DENIED", d.MostDenied, true, f.width-f.width/2-1, rows)
		for i := range max(len(left), len(right)) {
			line := ""
			if i < len(left) {
				line = left[i]
			}
			if i < len(right) {
				line = pad(line, f.width/2-1) + "  " + right[i]
			}
			lines = append(lines, strings.TrimRight(line, " "))
		}
		return strings.Join(lines, "\n")
	}
	lines = append(lines, f.list("BUSIEST", d.Busiest, false, f.width, (rows-1)/2)...)
	lines = append(lines, "")
	lines = append(lines, f.list("MOST DENIED", d.MostDenied, true, f.width, rows/2)...)
	return strings.Join(lines, "\n")
}

// list returns a heading and the subjects, in at most rows lines.
func (f *topFrame) list(heading string, subjects []topSubject, denials bool, width, rows int) []string {
	const numbers = 18 // two columns of numbers
	name := min(max(width-numbers, 8), 40)
	bar := max(width-numbers-name-1, 0)
	head := pad(heading, name) + fmt.Sprintf("%9s", "DENIED")
	if !denials {
		head = pad(heading, name) + fmt.Sprintf("%9s%9s", "CHECKS", "DENIED")
	}
	lines := []string{shorten(head, width)}
	if len(subjects) == 0 {
		return append(lines, shorten("none", width))
	}
	for _, s := range subjects[:min(len(subjects), max(rows-1, 1))] {
		line := pad(shorten(plain(s.Subject), name-1), name)
		if denials {
			line += fmt.Sprintf("%9s", short(s.Denied))
		} else {
			line += fmt.Sprintf("%9s%9s", short(s.checks()), short(s.Denied))
		}
		if length := int(int64(bar) * s.checks() / subjects[0].checks()); length > 0 {
			line += " " + strings.Repeat("█", length)
		}
		lines = append(lines, shorten(line, width))
	}
	return lines
}

func (f *topFrame) paint(s string) string {
	if !f.colour {
		return s
	}
	return "\x1b[31m" + s + "\x1b[0m"
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-len([]rune(s)), 0))
}

// short returns a number in at most 7 characters.
func short(n int64) string {
	for _, unit := range []struct {
		from   int64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}} {
		if n >= unit.from {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(unit.from), unit.suffix)
		}
	}
	return strconv.FormatInt(n, 10)
}

// A topModel updates the frame in a terminal.
type topModel struct {
	frame  topFrame
	load   func() (*topData, error)
	paused bool
}

type (
	topTick   struct{}
	topLoaded struct {
		data *topData
		err  error
	}
)

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return topWait() }

func topWait() tea.Cmd { return tea.Tick(topEvery, func(time.Time) tea.Msg { return topTick{} }) }

// Update implements tea.Model.
func (m *topModel) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		if message.Width > 0 && message.Height > 0 { // unknown sizes are 0
			m.frame.width, m.frame.height = message.Width, message.Height
		}
	case tea.KeyPressMsg:
		switch message.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "space":
			m.paused = !m.paused
		}
	case topTick:
		if m.paused {
			return m, topWait()
		}
		return m, func() tea.Msg {
			data, err := m.load()
			return topLoaded{data, err}
		}
	case topLoaded:
		m.frame.failure = ""
		if message.err != nil {
			m.frame.failure, _, _ = strings.Cut(message.err.Error(), "\n")
		} else {
			m.frame.data = message.data
		}
		return m, topWait()
	}
	return m, nil
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	frame := m.frame
	frame.height-- // for the last line
	keys := "q quit, space pause"
	if m.paused {
		keys = "paused: space to continue, q to quit"
	}
	text := frame.render()
	if missing := frame.height - strings.Count(text, "\n") - 1; missing > 0 {
		text += strings.Repeat("\n", missing)
	}
	view := tea.NewView(text + "\n" + shorten(keys, frame.width))
	view.AltScreen = true
	return view
}
