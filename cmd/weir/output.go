package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// print prints objects in the format of the option output. Each is a JSON object. columns are the
// fields of the table. actor.name is the field name of the object actor.
func (t *terminal) print(objects []json.RawMessage, columns ...string) error {
	if t.output == "json" {
		if objects == nil {
			objects = []json.RawMessage{}
		}
		return t.printJSON(objects)
	}
	rows := [][]string{columns}
	for _, object := range objects {
		var fields map[string]any
		decoder := json.NewDecoder(bytes.NewReader(object))
		decoder.UseNumber() // otherwise large limits lose digits
		if err := decoder.Decode(&fields); err != nil {
			return err
		}
		row := make([]string, len(columns))
		for i, column := range columns {
			row[i] = text(valueAt(fields, column))
		}
		rows = append(rows, row)
	}
	return t.printRows(rows)
}

func valueAt(fields map[string]any, column string) any {
	first, rest, nested := strings.Cut(column, ".")
	if inner, ok := fields[first].(map[string]any); ok && nested {
		return valueAt(inner, rest)
	}
	return fields[column]
}

func (t *terminal) printRows(rows [][]string) error {
	if t.output == "csv" {
		w := csv.NewWriter(t.out)
		return w.WriteAll(rows)
	}
	widths := make([]int, len(rows[0])) // in characters
	for i, row := range rows {
		for j := range row {
			row[j] = plain(row[j])
			if i == 0 {
				row[j] = strings.ToUpper(strings.ReplaceAll(row[j], "_", " "))
			} else if row[j] == "" {
				row[j] = "-"
			}
			widths[j] = max(widths[j], utf8.RuneCountInString(row[j]))
		}
	}
	total := columnGap * (len(widths) - 1)
	for _, width := range widths {
		total += width
	}
	if width := t.width(); width > 0 && total > width {
		return t.printBlocks(rows)
	}
	w := tabwriter.NewWriter(t.out, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

const columnGap = 2 // spaces between two columns of a table

// printBlocks prints a table that is wider than the terminal: a block of lines for each row, with a
// line for each column. Nothing is cut, and the lines of a table would break.
func (t *terminal) printBlocks(rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, columnGap, ' ', 0)
	for i, row := range rows[1:] {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for j, value := range row {
			fmt.Fprintln(w, rows[0][j]+"\t"+value)
		}
	}
	return w.Flush()
}

func (t *terminal) printJSON(v any) error {
	encoder := json.NewEncoder(t.out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// text returns a value as the text of a cell.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = text(v[i])
		}
		return strings.Join(parts, " ")
	case map[string]any:
		encoded, err := json.Marshal(v)
		if err != nil {
			panic(err) // cannot happen: it was decoded from JSON
		}
		return string(encoded)
	}
	return fmt.Sprint(v)
}

// plain replaces characters that would move the cursor of a terminal or break a table.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r <= 0x9f || r == '\u2028' || r == '\u2029' {
			return '\ufffd'
		}
		return r
	}, s)
}

// progress shows how far a command is, on one line of a terminal. An empty text deletes the line.
// Nothing is printed if standard error is not a terminal.
func (t *terminal) progress(format string, args ...any) {
	if t.interactive {
		fmt.Fprintf(t.err, "\r\x1b[K"+format, args...)
	}
}
