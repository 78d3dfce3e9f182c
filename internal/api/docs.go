package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	errorpages "weir/docs/errors"
	"weir/web"
)

//go:embed docs.html.tmpl
var docsText string

// docsPolicy allows the page of /docs to load files and call operations of this server only. The
// icons of Swagger UI are data: addresses.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// themeCookie has the theme that the browser's user has chosen in the dashboard.
const themeCookie = "weir_theme"

// mountFiles serves the files of pages. They take no place among other requests without a key: they
// are answered from memory, and a browser asks for a dozen at once, perhaps together with others
// of its network.
func mountFiles(r chi.Router) {
	file := func(w http.ResponseWriter, r *http.Request) {
		if !web.Serve(w, r) {
			notFound(w, r)
		}
	}
	r.Get(web.Prefix+"*", file)
	r.Head(web.Prefix+"*", file)
}

// mountDocs serves the OpenAPI document, a page to read and try its operations, and the pages of
// the problem codes. None of them needs a key. Document and page are created at the first request,
// so that they do not delay startup.
func mountDocs(r chi.Router, doc *huma.OpenAPI) {
	addExamples(doc)
	document := sync.OnceValue(func() []byte { return docsJSON(doc) })
	pages := map[string]func() docsBody{} // by theme; "": that of the system
	for _, theme := range []string{"", "light", "dark"} {
		pages[theme] = sync.OnceValue(func() docsBody {
			plain := docsPage(doc, theme)
			return docsBody{plain, web.Compress(plain)}
		})
	}
	read := func(path string, h http.HandlerFunc) {
		r.Get(path, h)
		r.Head(path, h)
	}
	tag := sync.OnceValue(func() string { return contentTag(document()) })
	read("/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag())
		same, p := noneMatch(r.Header.Values("If-None-Match"), tag())
		switch {
		case p != nil:
			w.Header().Del("ETag")
			writeProblem(w, r, p)
		case same:
			w.Header().Set("Cache-Control", "no-cache")
			w.WriteHeader(http.StatusNotModified)
		default:
			serveDoc(w, jsonType, document())
		}
	})
	index := sync.OnceValue(errorIndex)
	read("/docs/errors", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", docsPolicy)
		serveDoc(w, "text/html; charset=utf-8", index())
	})
	read("/docs", func(w http.ResponseWriter, r *http.Request) {
		page := pages[""]
		if chosen, err := r.Cookie(themeCookie); err == nil && pages[chosen.Value] != nil {
			page = pages[chosen.Value]
		}
		w.Header().Set("Vary", "Cookie, Accept-Encoding")
		w.Header().Set("Content-Security-Policy", docsPolicy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		body := page().plain
		if web.AcceptsGzip(r) {
			w.Header().Set("Content-Encoding", "gzip")
			body = page().gzipped
		}
		serveDoc(w, "text/html; charset=utf-8", body)
	})
	read("/docs/errors/{code}", func(w http.ResponseWriter, r *http.Request) {
		text, err := errorpages.Pages.ReadFile(chi.URLParam(r, "code") + ".md")
		if err != nil {
			notFound(w, r)
			return
		}
		serveDoc(w, "text/plain; charset=utf-8", text)
	})
}

// contentTag returns the entity tag of a text, which is the same on all instances with the same
// text.
func contentTag(text []byte) string {
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

var errorIndexText = template.Must(template.New("errors").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Error codes</title>
</head>
<body>
<h1>Error codes</h1>
<p>A problem document has a stable <code>code</code>. Its <code>type</code> links to one of these pages.</p>
<dl>
{{- range .}}
<dt><a href="/docs/errors/{{.Slug}}"><code>{{.Code}}</code></a></dt><dd>{{.Title}}</dd>
{{- end}}
</dl>
</body>
</html>
`))

// errorIndex is the page that lists all codes.
func errorIndex() []byte {
	type entry struct{ Code, Slug, Title string }
	entries := make([]entry, 0, len(problemTitles))
	for _, code := range slices.Sorted(maps.Keys(problemTitles)) {
		entries = append(entries, entry{code, problemSlug(code), problemTitles[code]})
	}
	var b bytes.Buffer
	if err := errorIndexText.Execute(&b, entries); err != nil {
		panic("api: cannot write the page of error codes: " + err.Error())
	}
	return b.Bytes()
}

func serveDoc(w http.ResponseWriter, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // if this fails, the client has disconnected
}

// docsBody is the page of /docs, plain and compressed.
type docsBody struct{ plain, gzipped []byte }

// docsTag, docsOperation, docsParam, docsField and docsAnswer are the parts of the document that
// the page shows.
type docsTag struct {
	Name, Description string
	Operations        []docsOperation
}

type docsOperation struct {
	ID, Method, Path, Summary, Description string
	Params                                 []docsParam
	Fields                                 []docsField
	Answers                                []docsAnswer
}

type docsParam struct{ Name, In, Description string }

type docsField struct {
	Name, Type, Description string
	Required                bool
}

type docsAnswer struct{ Status, Description string }

func docsJSON(doc *huma.OpenAPI) []byte {
	document, err := json.Marshal(doc)
	if err != nil {
		panic("api: the OpenAPI document cannot be written: " + err.Error())
	}
	return document
}

func docsPage(doc *huma.OpenAPI, theme string) []byte {
	page := struct {
		Theme, Title, Description string
		Tags                      []docsTag
	}{theme, doc.Info.Title, doc.Info.Description, nil}
	for _, tag := range doc.Tags {
		page.Tags = append(page.Tags, docsTag{tag.Name, tag.Description, docsOperations(doc, tag.Name)})
	}
	var b bytes.Buffer
	text := template.New("docs").Funcs(template.FuncMap{"asset": web.Path})
	if err := template.Must(text.Parse(docsText)).Execute(&b, page); err != nil {
		panic("api: the page of /docs cannot be written: " + err.Error())
	}
	return b.Bytes()
}

func docsOperations(doc *huma.OpenAPI, tag string) []docsOperation {
	var ops []docsOperation
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			if slices.Contains(op.Tags, tag) {
				ops = append(ops, docsOperationOf(doc, op))
			}
		}
	}
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	slices.SortFunc(ops, func(a, b docsOperation) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return slices.Index(methods, a.Method) - slices.Index(methods, b.Method)
	})
	return ops
}

// operationsOf returns the operations of a path.
func operationsOf(item *huma.PathItem) []*huma.Operation {
	all := []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete}
	return slices.DeleteFunc(all, func(op *huma.Operation) bool { return op == nil })
}

func docsOperationOf(doc *huma.OpenAPI, op *huma.Operation) docsOperation {
	out := docsOperation{ID: op.OperationID, Method: op.Method, Path: op.Path, Summary: op.Summary, Description: op.Description}
	for _, p := range op.Parameters {
		out.Params = append(out.Params, docsParam{p.Name, p.In, p.Description})
	}
	if op.RequestBody != nil && op.RequestBody.Content[jsonType] != nil {
		out.Fields = docsFields(doc, op.RequestBody.Content[jsonType].Schema)
	}
	for status, response := range op.Responses {
		out.Answers = append(out.Answers, docsAnswer{status, response.Description})
	}
	slices.SortFunc(out.Answers, func(a, b docsAnswer) int { return strings.Compare(a.Status, b.Status) })
	return out
}

func docsFields(doc *huma.OpenAPI, s *huma.Schema) []docsField {
	if s.Ref != "" {
		s = doc.Components.Schemas.SchemaFromRef(s.Ref)
	}
	var fields []docsField
	for name, property := range s.Properties {
		fields = append(fields, docsField{name, docsType(property), property.Description, slices.Contains(s.Required, name)})
	}
	slices.SortFunc(fields, func(a, b docsField) int {
		if a.Required != b.Required {
			if a.Required {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return fields
}

func docsType(s *huma.Schema) string {
	switch {
	case len(s.Enum) > 0:
		names := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			names[i], _ = v.(string)
		}
		return strings.Join(names, " | ")
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case s.Type == huma.TypeArray && s.Items != nil:
		return "array of " + docsType(s.Items)
	case s.Format == "date-time":
		return "time"
	}
	return s.Type
}
