package dashboard

import (
	"strings"

	"weir/internal/limit"
)

// A form can have 64 KiB, and its lists tens of thousands of entries in one field, but no list that
// can be saved has more than some tens. So each list is cut before any work is done for its
// entries: one entry more than it may have is enough for its validation to refuse it. Only the
// functions of this file split the fields of forms (TestOnlyListsSplitFields).

// formLine is one entry of a list.
type formLine struct {
	Number int
	Text   string // without the spaces around it
	raw    string // with them
}

func (l formLine) where() string {
	return "line " + itoa(int64(l.Number)) + ", “" + shortened(l.Text) + "”,"
}

// problem returns a problem of the line.
func (l formLine) problem(p *limit.Problem) *limit.Problem {
	return p.With(l.where() + " " + p.Message)
}

// lines returns the first lines of a field that are not empty: up to most and one more.
func (f *form) lines(name string, most int) (out []formLine) {
	number := 0
	for raw := range strings.Lines(f.values.Get(name)) {
		number++
		text := strings.TrimSpace(raw)
		if text == "" {
			continue
		}
		if out = append(out, formLine{number, text, strings.TrimRight(raw, "\r\n")}); len(out) > most {
			break
		}
	}
	return out
}

// words returns the first words of a field: up to most and one more. Characters for which separates
// returns true are between words.
func (f *form) words(name string, most int, separates func(rune) bool) (out []string) {
	for word := range strings.FieldsFuncSeq(f.Get(name), separates) {
		if out = append(out, word); len(out) > most {
			break
		}
	}
	return out
}

// maxShownRunes is how much of an entry a message repeats, in characters.
const maxShownRunes = 300

// shortened returns a text as a message repeats it.
func shortened(text string) string {
	n := 0
	for i := range text {
		if n++; n > maxShownRunes {
			return text[:i] + "…"
		}
	}
	return text
}

// maxShownProblems is how many problems of one list a page shows. A list of 100 entries can have
// 300.
const maxShownProblems = 10

// listProblems are the problems of one list.
type listProblems struct {
	shown []limit.Problem
	more  int // that are not shown
}

// add adds a problem; say returns it in words, if it is shown.
func (l *listProblems) add(say func() limit.Problem) {
	if len(l.shown) == maxShownProblems {
		l.more++
		return
	}
	l.shown = append(l.shown, say())
}

// joined returns the problems as one, which its list shows.
func (l *listProblems) joined() *limit.Problem {
	all := l.shown[0]
	for _, p := range l.shown[1:] {
		all.Message += "; " + p.Message
		if !strings.Contains(all.Fix, p.Fix) {
			all.Fix += " " + p.Fix
		}
	}
	if l.more > 0 {
		all.Message += "; and " + plural(int64(l.more), "more problem", "more problems")
	}
	return &all
}
