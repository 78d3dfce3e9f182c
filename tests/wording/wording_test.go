package wording

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

const (
	maxCommentWidth = 100 // columns
	tabWidth        = 4   // columns of a tab
)

// A finding is one place that does not follow the rules.
type finding struct {
	line int
	what string // the phrase, the identifier, or wideComment
	say  string // what to write instead
}

// wideComment is the finding of a comment line that exceeds maxCommentWidth.
const wideComment = "wide comment"

func (f finding) String() string { return fmt.Sprintf("%d: %q: write %q", f.line, f.what, f.say) }

// The repository uses the terms of the glossary.
func TestWording(t *testing.T) {
	needed := map[exemption]bool{}
	files := 0
	forEachText(t, func(file, text string) {
		files++
		for _, f := range findings(file, text) {
			if e, exempt := exemptionFor(file, f.what); exempt {
				needed[e] = true
				continue
			}
			t.Errorf("%s:%s", file, f)
		}
	})
	require.Greater(t, files, 500, "files that were read")
	for _, e := range allExemptions() {
		if !needed[e] {
			t.Logf("no longer needed in exemptions_test.go: %q of %s", e.what, e.folder)
		}
	}
}

// findings returns what is wrong with a text, in the order of its lines.
func findings(file, text string) []finding {
	out := phraseFindings(text, phrases)
	switch path.Ext(file) {
	case ".go":
		out = append(out, goFindings(file, text)...)
	case ".lua":
		out = append(out, luaFindings(text)...)
	case ".md":
		out = append(out, phraseFindings(markdownCode.ReplaceAllStringFunc(text, blank), textPhrases)...)
	case ".templ":
		out = append(out, phraseFindings(text, textPhrases)...)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].line < out[j].line })
	return out
}

// markdownCode is a block or a span of code.
var markdownCode = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

// blank returns a text of the same lines without words.
func blank(text string) string { return strings.Repeat("\n", strings.Count(text, "\n")) }

// luaName is a string, or the rest of a line after --, or a name.
var luaName = regexp.MustCompile(`'[^']*'|"[^"]*"|--.*|[A-Za-z_]\w*`)

// luaFindings finds identifiers and wide comments. A line that only one form of a script has is
// code after its mark.
func luaFindings(text string) (out []finding) {
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "--") && tooWide(line) {
			out = append(out, finding{i + 1, wideComment, "a line break within 100 columns"})
		}
		for _, name := range luaName.FindAllString(strings.Replace(line, "--@node ", "", 1), -1) {
			if say := identifiers[name]; say != "" {
				out = append(out, finding{i + 1, name, say})
			}
		}
	}
	return out
}

// phraseFindings finds phrases. Letter case does not matter, and a phrase may continue in the next
// line of a comment.
func phraseFindings(text string, phrases []phrase) (out []finding) {
	flat, starts := flatten(text)
	for _, p := range phrases {
		for from := 0; ; {
			at := strings.Index(flat[from:], p.text)
			if at < 0 {
				break
			}
			at += from
			from = at + 1
			if end := at + len(p.text); !isWord(flat, at-1) && !isWord(flat, end) {
				line := sort.Search(len(starts), func(i int) bool { return starts[i] > at })
				out = append(out, finding{line, p.text, p.say})
			}
		}
	}
	return out
}

// flatten returns the text in lower case, with one blank for each run of white space, and without
// the marks at the beginnings of comment lines. starts has the offset at which each line begins.
func flatten(text string) (flat string, starts []int) {
	out := make([]byte, 0, len(text))
	for line := range strings.SplitSeq(text, "\n") {
		starts = append(starts, len(out))
		line = strings.TrimSpace(line)
		for _, mark := range []string{"//", "--", "#", "*", ">"} {
			if rest, found := strings.CutPrefix(line, mark); found {
				line = rest
				break
			}
		}
		for word := range strings.FieldsSeq(line) {
			out = append(out, strings.ToLower(word)...)
			out = append(out, ' ')
		}
	}
	return string(out), starts
}

// isWord reports whether there is a letter, a digit or an underscore at i.
func isWord(s string, i int) bool {
	return i >= 0 && i < len(s) && (s[i] == '_' || s[i] >= 'a' && s[i] <= 'z' || s[i] >= '0' && s[i] <= '9')
}

// goFindings finds identifiers and wide comments.
func goFindings(file, text string) (out []finding) {
	files := token.NewFileSet()
	source := files.AddFile(file, -1, len(text))
	var s scanner.Scanner
	s.Init(source, []byte(text), nil, scanner.ScanComments)
	lines := strings.Split(text, "\n")
	for {
		pos, tok, literal := s.Scan()
		switch tok {
		case token.EOF:
			return out
		case token.IDENT:
			if say := identifiers[literal]; say != "" {
				out = append(out, finding{source.Line(pos), literal, say})
			}
		case token.COMMENT:
			first := source.Line(pos)
			for i := range strings.Split(literal, "\n") {
				line := lines[first-1+i]
				isAlone := i > 0 || strings.HasPrefix(strings.TrimSpace(line), "/")
				if isAlone && !fixedLayout.MatchString(line) && tooWide(line) {
					out = append(out, finding{first + i, wideComment, "a line break within 100 columns"})
				}
			}
		}
	}
}

// fixedLayout is a comment that cannot be wrapped: a program reads it, or it is a preformatted line.
var fixedLayout = regexp.MustCompile(`^\s*//(go:|lint:|export |\t| {4})`)

// tooWide reports whether a comment line exceeds the width and could be wrapped.
func tooWide(line string) bool {
	width := utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
	return width > maxCommentWidth && strings.Count(strings.TrimSpace(line), " ") > 1
}

// skippedFolders hold what was not written here, and what this machine keeps beside the repository.
var skippedFolders = []string{".git", ".dev", "bin", "node_modules", "vendor", "testdata"}

// skippedFiles name the phrases themselves: the lists of this package, and the words that the
// glossary replaces.
var skippedFiles = []string{"docs/glossary.md", "tests/wording/phrases_test.go", "tests/wording/exemptions_test.go", "tests/wording/wording_test.go", "tests/wording/doc.go"}

// A landed migration is never edited.
var landedMigration = regexp.MustCompile(`^migrations/\d+_.*\.sql$|^docs/schema\.sql$`)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// forEachText calls visit with the path and content of each text of the repository.
func forEachText(t *testing.T, visit func(file, text string)) {
	t.Helper()
	root := testenv.Root()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(skippedFolders, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		file, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		file = filepath.ToSlash(file)
		if !isText(file) || slices.Contains(skippedFiles, file) || landedMigration.MatchString(file) {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if text := string(content); !generated.MatchString(text[:min(len(text), 500)]) {
			visit(file, text)
		}
		return nil
	})
	require.NoError(t, err)
}

func isText(file string) bool {
	switch path.Ext(file) {
	case ".go", ".templ", ".md", ".lua", ".sh", ".sql", ".ts", ".js", ".css", ".yml", ".yaml", ".py":
		return true
	}
	return slices.Contains([]string{"Makefile", "Dockerfile", "run"}, path.Base(file))
}

// The check itself finds what it must find, and nothing else.
func TestFindings(t *testing.T) {
	wide := strings.Repeat("wide ", 21)
	for _, c := range []struct {
		name, file, text string
		want             []finding
	}{
		{"a phrase", "a.md", "One.\nThe counters are Taken  ahead.\n", []finding{{2, "taken ahead", "prefetched"}}},
		{"twice", "a.md", "begins anew\n\nanew", []finding{{1, "anew", "again, from zero"}, {3, "anew", "again, from zero"}}},
		{"over two lines of a comment", "a.go", "package a\n\n// Units are taken\n// ahead here.\n", []finding{{3, "taken ahead", "prefetched"}}},
		{"over two lines of a script", "a.sh", "# units are taken\n# ahead\n", []finding{{1, "taken ahead", "prefetched"}}},
		{"over two lines of Lua", "a.lua", "-- taken\n-- ahead\n", []finding{{1, "taken ahead", "prefetched"}}},
		{"part of a word", "a.md", "manewer mistaken ahead taken aheads", nil},
		{"an identifier", "a.go", "package a\n\nvar calm, calmly int\n", []finding{{3, "calm", "backoffUntil"}}},
		{"an identifier in a string", "a.go", "package a\n\nvar s = \"calm\"\n", nil},
		{"a wide comment", "a.go", "package a\n\n// " + wide + "\nvar s = 1\n", []finding{{3, wideComment, "a line break within 100 columns"}}},
		{"a wide comment in a block", "a.go", "package a\n\n/*\n" + wide + "\n*/\nvar s = 1\n", []finding{{4, wideComment, "a line break within 100 columns"}}},
		{"wide code", "a.go", "package a\n\nvar s = \"" + wide + "\" // " + wide + "\n", nil},
		{"a wide text that looks like a comment", "a.go", "package a\n\nvar s = `\n// " + wide + "\n`\n", nil},
		{"a long address", "a.go", "package a\n\n// https://" + strings.Repeat("a", 120) + "\n", nil},
		{"a preformatted line", "a.go", "package a\n\n//\t" + wide + "\n", nil},
		{"a directive", "a.go", "package a\n\n//go:embed " + wide + "\n", nil},
		{"an identifier in Lua", "a.lua", "local room = 1 -- a room\n--@node whole('room')\n", []finding{{1, "room", "remaining"}, {2, "whole", "full"}}},
		{"a term of texts in code", "a.go", "package a\n\n// Admit one.\n", nil},
		{"a term of texts on a page", "a.templ", "<p>1 was admitted</p>", []finding{{1, "admitted", "allowed"}}},
		{"a term of texts in a document", "a.md", "```\nadmit\n```\n`Admit` makes room", []finding{{4, "room", "remaining units, space"}}},
		{"a wide comment in Lua", "a.lua", "local a = 1\n-- " + wide + "\n", []finding{{2, wideComment, "a line break within 100 columns"}}},
	} {
		require.Equal(t, c.want, findings(c.file, c.text), c.name)
	}
	require.Equal(t, `2: "taken ahead": write "prefetched"`, finding{2, "taken ahead", "prefetched"}.String())
}

// Every phrase of the list can be found: it is written as texts are compared.
func TestPhrasesAreFlat(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range slices.Concat(phrases, textPhrases) {
		flat, _ := flatten(p.text)
		require.Equal(t, p.text+" ", flat)
		require.NotEmpty(t, p.say, p.text)
		require.False(t, seen[p.text], p.text)
		require.Empty(t, phraseFindings(p.say, phrases), "the replacement of %q is itself forbidden", p.text)
		seen[p.text] = true
	}
	for _, e := range allExemptions() {
		_, isIdentifier := identifiers[e.what]
		require.True(t, seen[e.what] || isIdentifier || e.what == wideComment, "exempt, and not forbidden: %q", e.what)
	}
}
