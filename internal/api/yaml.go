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

// yamlTurn allows one YAML body at a time, because a parsed body takes many times its size in
// memory.
var yamlTurn = make(chan struct{}, 1)

// jsonOfYAML converts a YAML document to JSON, or returns the problem. The JSON must still pass
// checkJSON.
func jsonOfYAML(ctx context.Context, data []byte) ([]byte, *Problem) {
	select {
	case yamlTurn <- struct{}{}:
		defer func() { <-yamlTurn }()
	case <-ctx.Done():
		return nil, malformedYAML("The request ended before its body was read.")
	}
	if !utf8.Valid(data) {
		return nil, malformedYAML("The body is not UTF-8.")
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
	c := yamlConverter{}
	for _, n := range document.Content { // one
		c.value(n, "", 1)
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

// yamlConverter appends the JSON of nodes to out until an error.
type yamlConverter struct {
	out     []byte
	problem *Problem
}

func (c *yamlConverter) refuse(n *yaml.Node, why string) {
	if c.problem == nil {
		c.problem = malformedYAML("Line " + itoa(int64(n.Line)) + " " + why + ".")
	}
}

func (c *yamlConverter) value(n *yaml.Node, pointer string, depth int) {
	switch {
	case c.problem != nil:
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		c.refuse(n, "has an anchor or an alias, which are not taken here: write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		c.refuse(n, "has a tag, which is not taken here")
	case depth > maxJSONDepth:
		c.refuse(n, "nests too deep")
	case n.Kind == yaml.MappingNode:
		c.mapping(n, pointer, depth)
	case n.Kind == yaml.SequenceNode:
		c.out = append(c.out, '[')
		for i, item := range n.Content {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.value(item, pointer+"/"+itoa(int64(i)), depth+1)
		}
		c.out = append(c.out, ']')
	default:
		c.scalar(n)
	}
}

func (c *yamlConverter) mapping(n *yaml.Node, pointer string, depth int) {
	seen := make(map[string]bool, len(n.Content)/2)
	c.out = append(c.out, '{')
	for i := 0; i+1 < len(n.Content) && c.problem == nil; i += 2 {
		key := n.Content[i]
		at := pointer + "/" + escapePointer(key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0:
			c.refuse(key, "has a key that is not a plain text")
		case key.ShortTag() == "!!merge":
			c.refuse(key, "has a merge key (<<), which is not taken here: write the values out")
		case seen[key.Value]:
			c.problem = newProblem(http.StatusBadRequest, codeDuplicateField, "The body names "+at+" twice.")
			c.problem.Errors = []ProblemField{wrongField(at, limit.Duplicate)}
		}
		seen[key.Value] = true
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.text(key.Value)
		c.out = append(c.out, ':')
		c.value(n.Content[i+1], at, depth+1)
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
