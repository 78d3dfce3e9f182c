package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A logFormat reads lines of a log.
type logFormat string

const (
	formatAuto logFormat = "auto" // by the first character of each line
	formatText logFormat = "combined"
	formatJSON logFormat = "json"
)

// A logLine has the fields of a line, as text, and its time.
type logLine struct {
	at     time.Time
	fields map[string]string
}

// textLine is the Common Log Format, and the Combined Log Format of Apache and nginx:
//
//	192.0.2.7 - alice [10/Oct/2026:13:55:36 +0000] "GET /orders/7?full=1 HTTP/1.1" 200 2326 "-" "curl/8.5"
var textLine = regexp.MustCompile(`^(\S+) \S+ (\S+) \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}|-) (\d+|-)(?: "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)")?`)

const textTime = "02/Jan/2006:15:04:05 -0700"

// timeFields are the fields of a JSON line that usually have its time.
var timeFields = []string{"time", "timestamp", "@timestamp", "ts", "time_iso8601", "start_time", "msec"}

var errNoTextLine = errors.New("is not a line of the combined log format")

// parse reads a line. timeField is the field of a JSON line with its time; "": one of timeFields.
func (f logFormat) parse(line, timeField string) (logLine, error) {
	if f == formatJSON || f == formatAuto && strings.HasPrefix(line, "{") {
		return parseJSONLine(line, timeField)
	}
	return parseTextLine(line)
}

func parseTextLine(line string) (logLine, error) {
	m := textLine.FindStringSubmatch(line)
	if m == nil {
		return logLine{}, errNoTextLine
	}
	at, err := time.Parse(textTime, m[3])
	if err != nil {
		return logLine{}, fmt.Errorf("has an invalid time %q", m[3])
	}
	fields := map[string]string{"ip": m[1], "user": m[2], "status": m[5]}
	if method, rest, ok := strings.Cut(m[4], " "); ok {
		target, _, _ := strings.Cut(rest, " ")
		path, _, _ := strings.Cut(target, "?")
		fields["method"], fields["path"] = method, path
	}
	if m[8] != "" {
		fields["agent"] = m[8]
	}
	for name, value := range fields {
		if value == "-" {
			delete(fields, name)
		}
	}
	return logLine{at, fields}, nil
}

func parseJSONLine(line, timeField string) (logLine, error) {
	var object map[string]any
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		return logLine{}, errors.New("is not a JSON object")
	}
	l := logLine{fields: map[string]string{}}
	flatten(l.fields, "", object)
	names := timeFields
	if timeField != "" {
		names = []string{timeField}
	}
	for _, name := range names {
		if value, ok := l.fields[name]; ok {
			at, err := parseTime(value)
			l.at = at
			return l, err
		}
	}
	return logLine{}, fmt.Errorf("has no time: name its field with --time-field (tried %s)", strings.Join(names, ", "))
}

// flatten adds the values of an object. The fields of an object in it have names such as
// request.ip.
func flatten(fields map[string]string, prefix string, object map[string]any) {
	for name, value := range object {
		switch value := value.(type) {
		case map[string]any:
			flatten(fields, prefix+name+".", value)
		case nil, []any:
		default:
			fields[prefix+name] = fmt.Sprint(value)
		}
	}
}

// Numbers above these are milliseconds, microseconds and nanoseconds since 1970, not seconds: as
// seconds, they would be in the year 5138 or later.
const (
	leastMillis = 1e11
	leastMicros = 1e14
	leastNanos  = 1e17
)

// parseTime reads RFC 3339, the time of a text line, or a number since 1970.
func parseTime(text string) (time.Time, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		switch {
		case n >= leastNanos:
			n /= 1e9
		case n >= leastMicros:
			n /= 1e6
		case n >= leastMillis:
			n /= 1e3
		}
		return time.UnixMilli(int64(math.Round(n * 1e3))), nil
	}
	for _, layout := range []string{time.RFC3339Nano, textTime} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("has an invalid time %q: use RFC 3339 or a number since 1970", text)
}
