package dashboard

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// grouped formats a number with commas between thousands, as in 1,670.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	var b strings.Builder
	b.WriteString(digits[:start])
	for i := start; i < len(digits); i++ {
		if i > start && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}

// compact formats a number for an axis, as in "2.5k".
func compact(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1_000_000_000, "B"}, {1_000_000, "M"}, {10_000, "k"}} {
		if n >= u.size {
			size := u.size
			if u.name == "k" {
				size = 1000
			}
			return strconv.FormatFloat(math.Round(10*float64(n)/float64(size))/10, 'f', -1, 64) + u.name
		}
	}
	return grouped(n)
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return grouped(n) + " " + one
	}
	return grouped(n) + " " + many
}

var units = []struct {
	length    time.Duration
	one, many string
}{
	{24 * time.Hour, "day", "days"}, {time.Hour, "hour", "hours"}, {time.Minute, "minute", "minutes"}, {time.Second, "second", "seconds"},
}

// inWords formats a duration rounded up to one unit, as in "2 minutes".
func inWords(d time.Duration) string {
	for i, u := range units {
		if d < u.length && i < len(units)-1 {
			continue
		}
		n := int64(math.Ceil(float64(d) / float64(u.length)))
		if i > 0 && time.Duration(n)*u.length >= units[i-1].length { // 59.5 minutes are shown as an hour
			u, n = units[i-1], 1
		}
		return plural(max(n, 0), u.one, u.many)
	}
	return ""
}

// short formats a duration as inWords does, with abbreviated units, as in "2 min".
func short(d time.Duration) string {
	return shortUnit.Replace(inWords(d))
}

var shortUnit = strings.NewReplacer("seconds", "s", "second", "s", "minutes", "min", "minute", "min", "hours", "h", "hour", "h")

// exactly formats a duration of a rule, as "90 seconds" or "minute"; with one, "1 minute" keeps its
// number.
func exactly(ms int64, withOne bool) string {
	for _, u := range units {
		if length := u.length.Milliseconds(); ms%length == 0 {
			if ms == length && !withOne {
				return u.one
			}
			return plural(ms/length, u.one, u.many)
		}
	}
	return plural(ms, "millisecond", "milliseconds")
}

// meterWidth returns the width of used thousandths in a meter, whose mark is at 80 %.
func meterWidth(used int64) string {
	return strconv.FormatFloat(max(1.5, 80*float64(min(used, 1000))/1000), 'f', 1, 64) + "%"
}

// moment is an instant on a page.
type moment struct{ At time.Time }

// Machine returns the form for <time datetime>.
func (m moment) Machine() string { return m.At.UTC().Format(time.RFC3339) }

// Human returns the form for people.
func (m moment) Human() string { return m.At.UTC().Format("2 Jan 2006, 15:04 UTC") }

// actionIcons are the icons of actions by their verbs, so that one kind of action has one icon.
var actionIcons = map[string]string{
	"add": "plus", "connect": "plus", "create": "plus", "grant": "plus", "map": "plus", "sell": "plus",
	"invite": "user-plus", "edit": "square-pen", "rename": "square-pen", "change": "square-pen", "set": "square-pen",
	"reset": "rotate-ccw", "rotate": "rotate-ccw", "restore": "undo-2", "boost": "trending-up",
	"block": "ban", "refuse": "ban", "revoke": "ban", "suspend": "ban", "exempt": "shield-check",
	"approve": "circle-check", "publish": "circle-check", "reopen": "circle-check", "unblock": "circle-check",
	"delete": "trash-2", "remove": "trash-2", "history": "history", "copy": "copy",
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

func subjectURL(subject string) string { return "/subjects/" + url.PathEscape(subject) }

func withCursor(path string, values url.Values, cursor string) string {
	if cursor != "" {
		values.Set("after", cursor)
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

func percent(part, total int64) string {
	if total == 0 {
		return "0\u202f%"
	}
	share := 100 * float64(part) / float64(total)
	switch {
	case part == 0:
		return "0\u202f%"
	case share < 0.1:
		return "<\u202f0.1\u202f%"
	case share < 10:
		return fmt.Sprintf("%.1f\u202f%%", share)
	}
	return fmt.Sprintf("%.0f\u202f%%", share)
}

// curlText returns a command for a shell in which WEIR_URL and WEIR_KEY are set. Values of users
// are quoted.
func curlText(method, path, body string) string {
	return fmt.Sprintf("curl -X %s \"$WEIR_URL\"%s \\\n  -H \"Authorization: Bearer $WEIR_KEY\" -H 'Content-Type: application/json' \\\n  -d '%s'",
		method, shellWord(path), body)
}

// gatewayText returns a command that sends a request to a route, like curlText.
func gatewayText(slug string) string {
	return fmt.Sprintf("curl -i \"$WEIR_URL/v1/authorize/%s\" -H \"Weir-Key: $WEIR_KEY\" \\\n"+
		"  -H 'X-User: user_42' -H 'X-Forwarded-Method: GET' -H 'X-Forwarded-Uri: /orders/7'", slug)
}

// shellWord returns a plain path unchanged and quotes any other.
func shellWord(s string) string {
	plain := !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("/_-.~%", c)
	})
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
