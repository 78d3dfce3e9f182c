package dashboard

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/a-h/templ"
)

// A sentence may contain instants. spoken writes them into it, and prose shows them: in UTC, and
// with js/times.js in the time zone of the browser.

// localLayouts are the layouts of instants that js/times.js knows, by their names there.
var localLayouts = map[string]string{
	"minute": "2 Jan 2006, 15:04 UTC", "second": toTheSecond, "short": "2 Jan, 15:04 UTC",
	"clock": "15:04 UTC", "clock-second": "15:04:05 UTC", "clock-exact": exactClock,
}

// The instants of a sentence are between control characters, which no name contains.
const instantStart, instantLayout, instantEnd = "\x02", "\x1f", "\x03"

// spoken returns an instant for a sentence.
func spoken(at time.Time, layout string) string {
	return instantStart + layout + instantLayout + at.UTC().Format(time.RFC3339Nano) + instantEnd
}

// proseText is a part of a sentence: a text, or an instant with its text in UTC.
type proseText struct {
	Text, Layout string
	At           time.Time
}

// proseOf splits a sentence at its instants.
func proseOf(sentence string) (parts []proseText) {
	for sentence != "" {
		plain, rest, _ := strings.Cut(sentence, instantStart)
		if plain != "" {
			parts = append(parts, proseText{Text: plain})
		}
		instant, after, _ := strings.Cut(rest, instantEnd)
		name, machine, _ := strings.Cut(instant, instantLayout)
		if at, err := time.Parse(time.RFC3339Nano, machine); err == nil {
			parts = append(parts, proseText{at.UTC().Format(localLayouts[name]), name, at})
		}
		sentence = after
	}
	return parts
}

// prose shows a sentence. It is no template, because a template would add spaces between its parts.
func prose(sentence string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		for _, p := range proseOf(sentence) {
			text := templ.EscapeString(p.Text)
			if p.Layout != "" {
				text = `<time datetime="` + p.At.UTC().Format(time.RFC3339Nano) + `" data-local="` + p.Layout + `">` + text + `</time>`
			}
			b.WriteString(text)
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
}

// inUTC returns a sentence as a text in UTC, for attributes.
func inUTC(sentence string) string {
	var b strings.Builder
	for _, p := range proseOf(sentence) {
		b.WriteString(p.Text)
	}
	return b.String()
}
