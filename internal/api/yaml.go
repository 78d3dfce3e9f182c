package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"weir/internal/limit"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// YAML is another notation for JSON, and is converted to JSON first. YAML that JSON cannot express
// (anchors, tags, several documents, values of other types) is refused.

const yamlType = "application/yaml"

// jsonOfYAML converts a YAML document to JSON, or returns the problem. The JSON must still pass
// checkJSON. A parsed body takes many times its size in memory, so the caller limits how many are
// converted at once.
func jsonOfYAML(ctx context.Context, data []byte) ([]byte, *Problem) {
	if !utf8.Valid(data) {
		return nil, malformedYAML("The body is not UTF-8.")
	}
	if yamlParts(data) > maxJSONValues {
		return nil, tooManyValues()
	}
	if longExponents(data) > maxLongExponents { // the parser reads each several times
		return nil, malformedYAML("The body has more than " + itoa(maxLongExponents) + " numbers with an exponent of three digits.")
	}
	var document, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, malformedYAML("A YAML body is required.")
	case err != nil:
		return nil, malformedYAML("The body is not well-formed YAML" + yamlLine(err) + ".")
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, malformedYAML("The body is not well-formed YAML" + yamlLine(err) + ".")
		}
		return nil, malformedYAML("The body has more than one YAML document.")
	}
	c := yamlConverter{ctx: ctx}
	for _, n := range document.Content { // one
		c.value(n, 1)
	}
	return c.out, c.problem
}

func malformedYAML(detail string) *Problem {
	return newProblem(http.StatusBadRequest, codeMalformedYAML, detail)
}

var yamlLinePattern = regexp.MustCompile(`line \d+`)

// yamlLine returns the line number in a parser's message.
func yamlLine(err error) string {
	if line := yamlLinePattern.FindString(err.Error()); line != "" {
		return " at " + line
	}
	return ""
}

// yamlParts returns how many lines, entries of lists and pairs in braces a document has: at least a
// third of the nodes of its tree. The parser builds the whole tree, so a document with too many is
// refused before.
func yamlParts(data []byte) int {
	parts := 0
	for i, b := range data {
		switch b {
		case ',', '[', '{', '\n', '\r':
			parts++
		case '-', '?': // an entry of a list in a line of its parent, or a key
			if i+1 == len(data) || data[i+1] <= ' ' {
				parts++
			}
		}
	}
	// Further characters that end a line, in UTF-8.
	for _, end := range []string{"\u0085", "\u2028", "\u2029"} {
		parts += bytes.Count(data, []byte(end))
	}
	return parts
}

// yamlConverter appends the JSON of nodes to out until an error.
type yamlConverter struct {
	ctx     context.Context
	out     []byte
	problem *Problem
	values  int
	// path has the keys and indexes that lead to the node. A pointer is built from it only for an
	// error, because it may be long.
	path []any
}

// pointer returns the pointer to the node.
func (c *yamlConverter) pointer() string {
	var b strings.Builder
	for _, part := range c.path {
		b.WriteByte('/')
		switch part := part.(type) {
		case string:
			b.WriteString(escapePointer(part))
		case int:
			b.WriteString(itoa(int64(part)))
		}
	}
	return b.String()
}

// stop reports whether there is an error, or the client has disconnected.
func (c *yamlConverter) stop() bool {
	if c.values++; c.problem == nil {
		switch {
		case c.values > maxJSONValues:
			c.problem = tooManyValues()
		case c.values%yamlCheckEvery == 0 && c.ctx.Err() != nil:
			c.problem = malformedYAML("The request ended before its body was read.")
		}
	}
	return c.problem != nil
}

// yamlCheckEvery is the number of values between two checks of the context.
const yamlCheckEvery = 1024

func (c *yamlConverter) refuse(n *yaml.Node, why string) {
	if c.problem == nil {
		c.problem = malformedYAML("Line " + itoa(int64(n.Line)) + " " + why + ".")
	}
}

func (c *yamlConverter) value(n *yaml.Node, depth int) {
	switch {
	case c.stop():
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		c.refuse(n, "has an anchor or an alias, which are not taken here: write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		c.refuse(n, "has a tag, which is not taken here")
	case depth > maxJSONDepth:
		c.refuse(n, "nests too deep")
	case n.Kind == yaml.MappingNode:
		c.mapping(n, depth)
	case n.Kind == yaml.SequenceNode:
		c.out = append(c.out, '[')
		for i, item := range n.Content {
			if c.problem != nil {
				return
			}
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.path = append(c.path, i)
			c.value(item, depth+1)
			c.path = c.path[:len(c.path)-1]
		}
		c.out = append(c.out, ']')
	default:
		c.scalar(n)
	}
}

func (c *yamlConverter) mapping(n *yaml.Node, depth int) {
	seen := make(map[string]bool, len(n.Content)/2)
	c.out = append(c.out, '{')
	for i := 0; i+1 < len(n.Content) && c.problem == nil; i += 2 {
		key := n.Content[i]
		c.path = append(c.path, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0:
			c.refuse(key, "has a key that is not a plain text")
		case key.ShortTag() == "!!merge":
			c.refuse(key, "has a merge key (<<), which is not taken here: write the values out")
		case len(key.Value) > maxMemberName:
			c.refuse(key, "has a key that is longer than "+itoa(maxMemberName)+" bytes")
		case seen[key.Value]:
			at := c.pointer()
			c.problem = newProblem(http.StatusBadRequest, codeDuplicateField, "The body names "+at+" twice.")
			c.problem.Errors = []ProblemField{wrongField(at, limit.Duplicate)}
		}
		seen[key.Value] = true
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.text(key.Value)
		c.out = append(c.out, ':')
		c.value(n.Content[i+1], depth+1)
		c.path = c.path[:len(c.path)-1]
	}
	c.out = append(c.out, '}')
}

var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// scalar converts a value as defined by YAML 1.2: everything except true, false, null and numbers
// is text.
func (c *yamlConverter) scalar(n *yaml.Node) {
	switch n.ShortTag() {
	case "!!null":
		c.out = append(c.out, "null"...)
	case "!!bool":
		c.out = append(c.out, strings.ToLower(n.Value)...)
	case "!!int", "!!float":
		if !plainNumber.MatchString(n.Value) {
			c.refuse(n, "has a number that is not written in plain digits; put a text in quotes")
			return
		}
		c.out = append(c.out, n.Value...)
	case "!!str", "!!timestamp", "!!merge": // << as a value is a text
		c.text(n.Value)
	default:
		c.refuse(n, "has a value of a type that is not taken here")
	}
}

func (c *yamlConverter) text(s string) {
	var err error
	if c.out, err = jsontext.AppendQuote(c.out, s); err != nil && c.problem == nil {
		c.problem = malformedYAML("The body is not UTF-8.")
	}
}

// yamlOf converts a JSON document to YAML, in the same order.
func yamlOf(data []byte) []byte {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	err := e.Encode(yamlNode(d))
	if err = errors.Join(err, e.Close()); err != nil {
		panic("api: a document cannot be written in YAML: " + err.Error())
	}
	return out.Bytes()
}

// yamlNode reads one JSON value.
func yamlNode(d *jsontext.Decoder) *yaml.Node {
	token, err := d.ReadToken()
	if err != nil {
		panic("api: not JSON: " + err.Error()) // this package wrote it
	}
	switch token.Kind() {
	case '{', '[':
		n := &yaml.Node{Kind: yaml.MappingNode}
		if token.Kind() == '[' {
			n.Kind = yaml.SequenceNode
		}
		small := true
		for d.PeekKind() != '}' && d.PeekKind() != ']' {
			item := yamlNode(d)
			isKey := n.Kind == yaml.MappingNode && len(n.Content)%2 == 0
			small = small && (isKey || item.Kind == yaml.ScalarNode && (n.Kind == yaml.SequenceNode || item.Tag != "!!str"))
			n.Content = append(n.Content, item)
		}
		_, _ = d.ReadToken()
		if small { // a list of names, or the numbers of a limit
			n.Style = yaml.FlowStyle
		}
		return n
	case '"':
		return yamlText(token.String())
	case 't', 'f':
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: token.String()}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: token.String()} // a number
}

// ambiguous matches texts that other YAML parsers interpret differently: YAML 1.1 has more words
// for true and false, base-60 numbers, and special signs.
var ambiguous = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|<<|=)$|^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`)

// yamlText writes a text in a readable form that no parser can misinterpret.
func yamlText(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	odd := strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && (!unicode.IsPrint(r) || r == '\ufeff' || r == utf8.RuneError)
	})
	switch lines := strings.Split(s, "\n"); {
	case odd || ambiguous.MatchString(s):
		n.Style = yaml.DoubleQuotedStyle
	case len(lines) > 1:
		n.Style = yaml.LiteralStyle
		for _, line := range lines { // such lines are easily lost or misread in a block
			if line == "" || line != strings.TrimSpace(line) {
				n.Style = yaml.DoubleQuotedStyle
			}
		}
	}
	return n
}
