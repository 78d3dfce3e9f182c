package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"weir/internal/limit"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxJSONDepth limits the depth of objects and arrays in an admin body. Valid bodies need three
	// levels.
	maxJSONDepth = 16
	// maxJSONValues limits the values of a body. A decoded value takes some 100 bytes, also where
	// two bytes of the body have one. The largest valid documents are configurations of 10 000
	// subjects with 32 labels each; in maxConfigBody, they have up to one value in ten bytes.
	maxJSONValues = 400_000
	// maxMemberName limits the name of a member, in bytes. The errors about the values in an object
	// repeat its name. Valid names are slugs, names of fields, labels and attributes.
	maxMemberName = 1024
)

// checkJSON returns the problem if data is not an acceptable JSON document: one document in valid
// UTF-8, without duplicate members, deep nesting, very many values and very long names.
//
// encoding/json alone would use the last of two equal members and replace invalid UTF-8, so the
// stored value would differ from the sent one.
func checkJSON(data []byte) *Problem {
	if len(bytes.TrimSpace(data)) == 0 {
		return newProblem(http.StatusBadRequest, codeMalformedJSON, "A JSON body is required.")
	}
	d := jsontext.NewDecoder(bytes.NewReader(data))
	values := 0
	for {
		before := d.InputOffset()
		token, err := d.ReadToken()
		if err == nil && !closes(token.Kind()) {
			if isName(d) {
				if d.InputOffset()-before > maxMemberName && len(token.String()) > maxMemberName {
					return newProblem(http.StatusBadRequest, codeMalformedJSON,
						"The body has a name that is longer than "+strconv.Itoa(maxMemberName)+" bytes, before byte "+strconv.FormatInt(d.InputOffset(), 10)+".")
				}
			} else if values++; values > maxJSONValues {
				return tooManyValues()
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return jsonProblem(err)
		case d.StackDepth() > maxJSONDepth:
			return newProblem(http.StatusBadRequest, codeMalformedJSON,
				"The body nests deeper than "+strconv.Itoa(maxJSONDepth)+" levels.")
		case d.StackDepth() == 0:
			if rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
				return newProblem(http.StatusBadRequest, codeMalformedJSON, "The body has text after the JSON document.")
			}
			return nil
		}
	}
}

func closes(kind jsontext.Kind) bool { return kind == '}' || kind == ']' }

// isName reports whether the token that was read last is the name of a member.
func isName(d *jsontext.Decoder) bool {
	kind, n := d.StackIndex(d.StackDepth())
	return kind == '{' && n%2 == 1
}

func tooManyValues() *Problem {
	return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, "The body may have at most "+strconv.Itoa(maxJSONValues)+" values.")
}

func jsonProblem(err error) *Problem {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return newProblem(http.StatusBadRequest, codeMalformedJSON, "The body is not well-formed JSON.")
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		p := newProblem(http.StatusBadRequest, codeDuplicateField, "The body names "+string(syntax.JSONPointer)+" twice.")
		p.Errors = []ProblemField{wrongField(string(syntax.JSONPointer), limit.Duplicate)}
		return p
	}
	return newProblem(http.StatusBadRequest, codeMalformedJSON,
		"The body is not well-formed JSON in UTF-8 at byte "+strconv.FormatInt(syntax.ByteOffset, 10)+".")
}

// jsonFormat decodes and encodes the bodies of the admin API. Bodies have passed checkJSON before.
var jsonFormat = huma.Format{
	Marshal: func(w io.Writer, v any) error {
		body, err := encodeJSON(v)
		if err != nil {
			panic(err) // answerWhole explains why it does not return the error
		}
		_, _ = w.Write(body) // if this fails, the client has disconnected
		return nil
	},
	Unmarshal: func(data []byte, v any) error {
		tree, isTree := v.(*any)
		if !isTree {
			return json.Unmarshal(data, v)
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(tree); err != nil {
			return err
		}
		*tree = wholeNumbers(*tree)
		return nil
	},
}

// encodeJSON encodes v like all answers, with a newline at the end.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return b.Bytes(), nil
}

// wholeNumbers replaces the numbers of a decoded document for validation: an int64 for each whole
// number, so that none is rounded through a float64, and a float64 for a fraction. 1e2 and 1.0 are
// not accepted as integers, because a second notation has no advantage, but as other numbers: some
// encoders write 1.0 for 1. The validator therefore sees the nearest number that is not whole.
func wholeNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wholeNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if longExponents(v.String()) > 0 {
			return v // as one that is too large
		}
		if f, err := v.Float64(); err == nil && math.Abs(f) < 1<<52 {
			if f == math.Trunc(f) {
				f = math.Nextafter(f, 0.5)
			}
			return f
		}
	}
	return v
}

// jsonPointer converts a path in the notation of the validator and the store ("by[0]",
// "limits.api.burst") to an RFC 6901 pointer ("/by/0", "/limits/api/burst").
func jsonPointer(path string) string {
	if path == "" {
		return ""
	}
	// The keys of labels may contain dots and brackets.
	if key, ok := strings.CutPrefix(path, "labels."); ok {
		return "/labels/" + escapePointer(key)
	}
	if above, key, ok := strings.Cut(path, ".labels."); ok {
		return jsonPointer(above) + "/labels/" + escapePointer(key)
	}
	if key, ok := strings.CutPrefix(path, "attributes."); ok {
		return "/attributes/" + escapePointer(key)
	}
	if above, key, ok := strings.Cut(path, ".attributes."); ok {
		return jsonPointer(above) + "/attributes/" + escapePointer(key)
	}
	path = pathIndexes.Replace(path)
	parts := strings.Split(path, ".")
	for i := range parts {
		parts[i] = escapePointer(parts[i])
	}
	return "/" + strings.Join(parts, "/")
}

func escapePointer(s string) string { return pointerEscapes.Replace(s) }

// A replacer takes much longer to make than to use.
var (
	pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")
	pathIndexes    = strings.NewReplacer("[", ".", "]", "")
)
