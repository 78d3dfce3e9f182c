package api

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
)

func decodeOne(body string) (check.Request, *Problem) {
	var d decoder
	var req check.Request
	p := d.decodeCheck([]byte(body), &req)
	return req, p
}

// A valid check is decoded unchanged, with the documented defaults.
func TestDecodeCheck(t *testing.T) {
	req, p := decodeOne(`{"subject":"user_42"}`)
	require.Nil(t, p)
	require.Equal(t, check.Request{Subject: "user_42", Resource: "default", Cost: 1}, req)

	req, p = decodeOne(" {\r\n\t\"cost\" : 0 , \"explain\":true,\"dry_run\":false,\"attributes\":{\"ip\":\"203.0.113.7\",\"a.b\":\"x\"},\"plan\":\"pro\",\"resource\":\"orders:create\",\"subject\":\"u\"}\n")
	require.Nil(t, p)
	require.Equal(t, check.Request{
		Subject: "u", Resource: "orders:create", Plan: "pro", Explain: true,
		Attributes: []check.Attribute{{Name: "ip", Value: "203.0.113.7"}, {Name: "a.b", Value: "x"}},
	}, req)

	// Escapes in values and names are decoded.
	req, p = decodeOne(`{"\u0073ubject":"\"\\\/\u00e9\ud83d\ude00é"}`)
	require.Nil(t, p)
	require.Equal(t, "\"\\/é😀é", req.Subject)

	req, p = decodeOne(`{"subject":"u","cost":1000000000000000}`)
	require.Nil(t, p)
	require.Equal(t, int64(1_000_000_000_000_000), req.Cost)
}

// The next check must not change the strings of the previous one, because usage keeps them.
func TestDecodedStringsAreTheirOwn(t *testing.T) {
	var d decoder
	var first, second check.Request
	body := []byte(`{"subject":"anna","attributes":{"ip":"1.\u0031"}}`)
	require.Nil(t, d.decodeCheck(body, &first))
	copy(body, `{"subject":"bert","attributes":{"ip":"2.\u0032"}}`)
	require.Nil(t, d.decodeCheck(body, &second))
	require.Equal(t, "anna", first.Subject)
	require.Equal(t, []check.Attribute{{Name: "ip", Value: "1.1"}}, first.Attributes)
	require.Equal(t, []check.Attribute{{Name: "ip", Value: "2.2"}}, second.Attributes)
}

type badBody struct {
	name, body string
	status     int
	code       string
	pointers   []string
}

// many returns n attributes.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"a` + strconv.Itoa(i) + `":"v"`)
	}
	return b.String()
}

// badBodies are bodies that must never be counted. Each comment says what would go wrong if they
// were accepted or misread.
var badBodies = []badBody{
	// An empty body: a client that lost its body must not get a limit of its own.
	{"empty", ``, 400, "MALFORMED_JSON", nil},
	{"white space", " \n\t", 400, "MALFORMED_JSON", nil},
	{"null", `null`, 422, "INVALID_REQUEST", []string{""}},
	{"array", `[]`, 422, "INVALID_REQUEST", []string{""}},
	{"string", `"x"`, 422, "INVALID_REQUEST", []string{""}},
	{"number", `1`, 422, "INVALID_REQUEST", []string{""}},
	{"no subject", `{}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"byte order mark", "\ufeff" + `{"subject":"a"}`, 400, "MALFORMED_JSON", nil},
	// Half a request, or two in one: it is unclear which one was meant.
	{"truncated", `{"subject":"a"`, 400, "MALFORMED_JSON", nil},
	{"truncated in a name", `{"subj`, 400, "MALFORMED_JSON", nil},
	{"truncated in an escape", `{"subject":"\u00`, 400, "MALFORMED_JSON", nil},
	{"truncated after a backslash", `{"subject":"\`, 400, "MALFORMED_JSON", nil},
	{"two documents", `{"subject":"a"}{"subject":"b"}`, 400, "MALFORMED_JSON", nil},
	{"trailing garbage", `{"subject":"a"}x`, 400, "MALFORMED_JSON", nil},
	{"trailing NUL", "{\"subject\":\"a\"}\x00", 400, "MALFORMED_JSON", nil},
	{"trailing comma", `{"subject":"a",}`, 400, "MALFORMED_JSON", nil},
	{"leading comma", `{,"subject":"a"}`, 400, "MALFORMED_JSON", nil},
	{"no comma", `{"subject":"a" "cost":1}`, 400, "MALFORMED_JSON", nil},
	{"no colon", `{"subject" "a"}`, 400, "MALFORMED_JSON", nil},
	{"single quotes", `{'subject':'a'}`, 400, "MALFORMED_JSON", nil},
	{"comment", `{"subject":"a"/**/}`, 400, "MALFORMED_JSON", nil},
	{"form feed as white space", "{\f\"subject\":\"a\"}", 400, "MALFORMED_JSON", nil},
	// One parser takes the first, another the last: two subjects for one check.
	{"repeated member", `{"subject":"a","subject":"b"}`, 400, "DUPLICATE_FIELD", []string{"/subject"}},
	{"repeated by an escape", `{"subject":"a","s\u0075bject":"b"}`, 400, "DUPLICATE_FIELD", []string{"/subject"}},
	{"repeated attribute", `{"subject":"a","attributes":{"ip":"1","ip":"2"}}`, 400, "DUPLICATE_FIELD", []string{"/attributes/ip"}},
	{"repeated beyond the 16th", `{"subject":"a","attributes":{` + many(18) + `,"a17":"v"}}`, 400, "DUPLICATE_FIELD", []string{"/attributes/a17"}},
	{"repeated inside a wrong value", `{"subject":{"x":1,"x":2}}`, 400, "DUPLICATE_FIELD", nil},
	// A misspelled field would be ignored, and so would the intention of its sender.
	{"other letter case", `{"Subject":"a"}`, 400, "UNKNOWN_FIELD", []string{"/Subject"}},
	{"upper case", `{"SUBJECT":"a"}`, 400, "UNKNOWN_FIELD", []string{"/SUBJECT"}},
	{"Kelvin sign is no k", `{"sub\u212aect":"a"}`, 400, "UNKNOWN_FIELD", []string{"/sub\u212aect"}},
	{"limit", `{"subject":"a","limit":5}`, 400, "UNKNOWN_FIELD", []string{"/limit"}},
	{"tenant_id", `{"subject":"a","tenant_id":"x"}`, 400, "UNKNOWN_FIELD", []string{"/tenant_id"}},
	{"tenant", `{"subject":"a","tenant":"x"}`, 400, "UNKNOWN_FIELD", []string{"/tenant"}},
	{"rule", `{"subject":"a","rule":"x"}`, 400, "UNKNOWN_FIELD", []string{"/rule"}},
	{"now", `{"subject":"a","now":0}`, 400, "UNKNOWN_FIELD", []string{"/now"}},
	{"degraded", `{"subject":"a","degraded":true}`, 400, "UNKNOWN_FIELD", []string{"/degraded"}},
	{"name with a slash", `{"subject":"a","a/b~c":true}`, 400, "UNKNOWN_FIELD", []string{"/a~1b~0c"}},
	{"name without end", `{"subject":"a","` + strings.Repeat("é", 5000) + `":1}`, 400, "UNKNOWN_FIELD", []string{"/" + strings.Repeat("é", 32) + "..."}},
	// Bodies that take much time or stack.
	{"10,000 levels", `{"subject":` + strings.Repeat("[", 10_000), 400, "MALFORMED_JSON", nil},
	{"17 levels", `{"subject":` + strings.Repeat("[", 16) + strings.Repeat("]", 16) + `}`, 400, "MALFORMED_JSON", nil},
	{"16 levels", `{"subject":` + strings.Repeat("[", 15) + strings.Repeat("]", 15) + `}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"10,000 members", `{` + many(10_000) + `}`, 400, "UNKNOWN_FIELD", []string{"/a0"}},
	{"10,000 attributes", `{"subject":"a","attributes":{` + many(10_000) + `}}`, 422, "INVALID_REQUEST", []string{"/attributes"}},
	{"a number of 16 KiB", `{"subject":"a","cost":` + strings.Repeat("1", 16_000) + `}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"a string of 16 KiB of escapes", `{"subject":"` + strings.Repeat(`\u0061`, 2_700) + `"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	// A cost that is parsed as a double would charge another number than requested.
	{"cost -1", `{"subject":"a","cost":-1}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost -0", `{"subject":"a","cost":-0}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 0.5", `{"subject":"a","cost":0.5}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 1.0", `{"subject":"a","cost":1.0}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 1e2", `{"subject":"a","cost":1e2}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 1E+2", `{"subject":"a","cost":1E+2}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 1e309", `{"subject":"a","cost":1e309}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost over the range", `{"subject":"a","cost":1000000000000001}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 2^53", `{"subject":"a","cost":9007199254740992}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 2^63", `{"subject":"a","cost":9223372036854775808}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 2^64", `{"subject":"a","cost":18446744073709551616}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 2^64+1, which wraps to 1", `{"subject":"a","cost":18446744073709551617}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost 10^400", `{"subject":"a","cost":1` + strings.Repeat("0", 400) + `}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost as a string", `{"subject":"a","cost":"1"}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost null", `{"subject":"a","cost":null}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost true", `{"subject":"a","cost":true}`, 422, "INVALID_REQUEST", []string{"/cost"}},
	{"cost NaN", `{"subject":"a","cost":NaN}`, 400, "MALFORMED_JSON", nil},
	{"cost 01", `{"subject":"a","cost":01}`, 400, "MALFORMED_JSON", nil},
	{"cost +1", `{"subject":"a","cost":+1}`, 400, "MALFORMED_JSON", nil},
	{"cost .5", `{"subject":"a","cost":.5}`, 400, "MALFORMED_JSON", nil},
	{"cost 1.", `{"subject":"a","cost":1.}`, 400, "MALFORMED_JSON", nil},
	{"cost -", `{"subject":"a","cost":-}`, 400, "MALFORMED_JSON", nil},
	{"cost 1e", `{"subject":"a","cost":1e}`, 400, "MALFORMED_JSON", nil},
	// Names that could break logs or pages, or that nobody has.
	{"subject of 0 bytes", `{"subject":""}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject of 257 bytes", `{"subject":"` + strings.Repeat("s", 257) + `"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject of 256 characters of 4 bytes", `{"subject":"` + strings.Repeat("😀", 256) + `"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject null", `{"subject":null}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject number", `{"subject":1}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject list", `{"subject":["a"]}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject with NUL", `{"subject":"a\u0000"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject with CR LF", `{"subject":"a\r\nb"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject with DEL", "{\"subject\":\"a\x7f\"}", 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject with a C1 control", "{\"subject\":\"a\u0085\"}", 422, "INVALID_REQUEST", []string{"/subject"}},
	{"subject with an escaped C1 control", `{"subject":"\u009f"}`, 422, "INVALID_REQUEST", []string{"/subject"}},
	{"raw newline in a string", "{\"subject\":\"a\nb\"}", 400, "MALFORMED_JSON", nil},
	{"resource empty", `{"subject":"a","resource":""}`, 422, "INVALID_REQUEST", []string{"/resource"}},
	{"resource of 257 bytes", `{"subject":"a","resource":"` + strings.Repeat("r", 257) + `"}`, 422, "INVALID_REQUEST", []string{"/resource"}},
	{"resource null", `{"subject":"a","resource":null}`, 422, "INVALID_REQUEST", []string{"/resource"}},
	// If invalid bytes were replaced by U+FFFD, different subjects would share a counter.
	{"invalid UTF-8", "{\"subject\":\"\xff\"}", 400, "MALFORMED_JSON", nil},
	{"invalid UTF-8 in a string with escapes", "{\"subject\":\"\\n\xc3\"}", 400, "MALFORMED_JSON", nil},
	{"invalid UTF-8 in a name", "{\"subject\xff\":\"a\"}", 400, "MALFORMED_JSON", nil},
	{"overlong UTF-8", "{\"subject\":\"\xc0\xaf\"}", 400, "MALFORMED_JSON", nil},
	{"surrogate in UTF-8", "{\"subject\":\"\xed\xa0\x80\"}", 400, "MALFORMED_JSON", nil},
	{"lone high surrogate", `{"subject":"\ud800"}`, 400, "MALFORMED_JSON", nil},
	{"lone low surrogate", `{"subject":"\udc00"}`, 400, "MALFORMED_JSON", nil},
	{"two high surrogates", `{"subject":"\ud800\ud800"}`, 400, "MALFORMED_JSON", nil},
	{"surrogates in the wrong order", `{"subject":"\udc00\ud800"}`, 400, "MALFORMED_JSON", nil},
	{"high surrogate and a letter", `{"subject":"\ud800a"}`, 400, "MALFORMED_JSON", nil},
	{"escape that is none", `{"subject":"\x"}`, 400, "MALFORMED_JSON", nil},
	{"escape with three digits", `{"subject":"\u12 4"}`, 400, "MALFORMED_JSON", nil},
	// Attributes that a rule could count by although they are invisible.
	{"17 attributes", `{"subject":"a","attributes":{` + many(17) + `}}`, 422, "INVALID_REQUEST", []string{"/attributes"}},
	{"attributes null", `{"subject":"a","attributes":null}`, 422, "INVALID_REQUEST", []string{"/attributes"}},
	{"attributes list", `{"subject":"a","attributes":[]}`, 422, "INVALID_REQUEST", []string{"/attributes"}},
	{"attribute without a name", `{"subject":"a","attributes":{"":"v"}}`, 422, "INVALID_REQUEST", []string{"/attributes/"}},
	{"attribute name of 300 bytes", `{"subject":"a","attributes":{"` + strings.Repeat("n", 300) + `":"v"}}`, 422, "INVALID_REQUEST", []string{"/attributes/" + strings.Repeat("n", 64) + "..."}},
	{"attribute named subject", `{"subject":"a","attributes":{"subject":"v"}}`, 422, "INVALID_REQUEST", []string{"/attributes/subject"}},
	{"attribute with an object", `{"subject":"a","attributes":{"ip":{}}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	{"attribute with a number", `{"subject":"a","attributes":{"ip":1}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	{"attribute null", `{"subject":"a","attributes":{"ip":null}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	{"attribute of 0 bytes", `{"subject":"a","attributes":{"ip":""}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	{"attribute of 257 bytes", `{"subject":"a","attributes":{"ip":"` + strings.Repeat("v", 257) + `"}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	{"attribute with a control", `{"subject":"a","attributes":{"ip":"\u0007"}}`, 422, "INVALID_REQUEST", []string{"/attributes/ip"}},
	// "" means the default plan elsewhere. In a body it is an unknown plan.
	{"plan empty", `{"subject":"a","plan":""}`, 422, "UNKNOWN_PLAN", []string{"/plan"}},
	{"plan null", `{"subject":"a","plan":null}`, 422, "UNKNOWN_PLAN", []string{"/plan"}},
	{"plan number", `{"subject":"a","plan":1}`, 422, "UNKNOWN_PLAN", []string{"/plan"}},
	{"dry_run as a string", `{"subject":"a","dry_run":"true"}`, 422, "INVALID_REQUEST", []string{"/dry_run"}},
	{"dry_run null", `{"subject":"a","dry_run":null}`, 422, "INVALID_REQUEST", []string{"/dry_run"}},
	{"explain 1", `{"subject":"a","explain":1}`, 422, "INVALID_REQUEST", []string{"/explain"}},
	{"literal cut", `{"subject":"a","explain":tru}`, 400, "MALFORMED_JSON", nil},
	// All errors are reported at once.
	{"several", `{"subject":"","cost":-1,"plan":"","attributes":{"ip":1},"explain":null}`, 422, "INVALID_REQUEST",
		[]string{"/subject", "/cost", "/plan", "/attributes/ip", "/explain"}},
	{"malformed after invalid", `{"subject":"","cost":-1`, 400, "MALFORMED_JSON", nil},
}

func requireProblem(t *testing.T, want badBody, p *Problem) {
	t.Helper()
	require.NotNil(t, p)
	require.Equal(t, want.status, p.Status, p.Detail)
	require.Equal(t, want.code, p.Code, p.Detail)
	require.NotEmpty(t, p.Detail)
	require.True(t, utf8.ValidString(p.Detail))
	require.Equal(t, want.pointers, pointers(p))
}

func pointers(p *Problem) []string {
	var out []string
	for _, e := range p.Errors {
		out = append(out, e.Pointer)
	}
	return out
}

func TestDecodeCheckRefuses(t *testing.T) {
	for _, c := range badBodies {
		t.Run(c.name, func(t *testing.T) {
			_, p := decodeOne(c.body)
			requireProblem(t, c, p)
		})
	}
}

// Unusual names are valid, and each is a different subject.
func TestDecodeKeepsOddNames(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{
		"s", strings.Repeat("s", 256), strings.Repeat("😀", 64), "\u2028", "\u202e", "\u200b", "\u200b\u200b",
		"a{b}c", "{}", "{tenant2}", "}", "a:b", "a_b", "__proto__", "*", "orders:*", "default", "platform",
		"../x", "%2e%2e", "\u00e9", "e\u0301", "E", "e", "e ", " e", `"`, `\`, "\ufffd", "\ufeff", "\U0010ffff",
	} {
		body, err := json.Marshal(map[string]string{"subject": name, "resource": name})
		require.NoError(t, err)
		req, p := decodeOne(string(body))
		require.Nil(t, p, name)
		require.Equal(t, name, req.Subject)
		require.Equal(t, name, req.Resource)
		require.False(t, seen[req.Subject])
		seen[req.Subject] = true
	}
}

func entries(n int, entry string) string {
	return `{"checks":[` + strings.TrimSuffix(strings.Repeat(entry+",", n), ",") + `]}`
}

func TestDecodeBatch(t *testing.T) {
	var d decoder
	reqs, p := d.decodeBatch([]byte(`{"checks":[{"subject":"a"},{"subject":"b","cost":2,"attributes":{"ip":"x"}}]}`))
	require.Nil(t, p)
	require.Equal(t, []check.Request{
		{Subject: "a", Resource: "default", Cost: 1},
		{Subject: "b", Resource: "default", Cost: 2, Attributes: []check.Attribute{{Name: "ip", Value: "x"}}},
	}, reqs)
	reqs, p = d.decodeBatch([]byte(entries(100, `{"subject":"a"}`)))
	require.Nil(t, p)
	require.Len(t, reqs, 100)

	// One invalid entry refuses the batch. Nothing is counted for the others, so the client must
	// learn which one it was.
	for _, c := range []badBody{
		{"none", `{"checks":[]}`, 422, "INVALID_REQUEST", []string{"/checks"}},
		{"101", entries(101, `{"subject":"a"}`), 422, "INVALID_REQUEST", []string{"/checks"}},
		{"10,000", entries(10_000, `{"subject":"a"}`), 422, "INVALID_REQUEST", []string{"/checks"}},
		{"malformed after the 100th", entries(101, `{"subject":"a"}`)[:1620] + "x", 400, "MALFORMED_JSON", nil},
		{"missing", `{}`, 422, "INVALID_REQUEST", []string{"/checks"}},
		{"null", `{"checks":null}`, 422, "INVALID_REQUEST", []string{"/checks"}},
		{"object", `{"checks":{"subject":"a"}}`, 422, "INVALID_REQUEST", []string{"/checks"}},
		{"bare list", `[{"subject":"a"}]`, 422, "INVALID_REQUEST", []string{""}},
		{"single check", `{"subject":"a"}`, 400, "UNKNOWN_FIELD", []string{"/subject"}},
		{"twice", `{"checks":[{"subject":"a"}],"checks":[{"subject":"b"}]}`, 400, "DUPLICATE_FIELD", []string{"/checks"}},
		{"entry null", `{"checks":[null]}`, 422, "INVALID_REQUEST", []string{"/checks/0"}},
		{"entry list", `{"checks":[{"subject":"a"},[]]}`, 422, "INVALID_REQUEST", []string{"/checks/1"}},
		{"nested batch", `{"checks":[{"checks":[{"subject":"a"}]}]}`, 400, "UNKNOWN_FIELD", []string{"/checks/0/checks"}},
		{"fourth entry", `{"checks":[{"subject":"a"},{"subject":"a"},{"subject":"a"},{"subject":"a","cost":-1},{}]}`, 422, "INVALID_REQUEST", []string{"/checks/3/cost", "/checks/4/subject"}},
		{"plan empty", `{"checks":[{"subject":"a"},{"subject":"a","plan":""}]}`, 422, "UNKNOWN_PLAN", []string{"/checks/1/plan"}},
		{"repeated in an entry", `{"checks":[{"subject":"a","subject":"a"}]}`, 400, "DUPLICATE_FIELD", []string{"/checks/0/subject"}},
		{"no comma", `{"checks":[{"subject":"a"}{"subject":"a"}]}`, 400, "MALFORMED_JSON", nil},
		{"trailing comma", `{"checks":[{"subject":"a"},]}`, 400, "MALFORMED_JSON", nil},
		{"unclosed", `{"checks":[{"subject":"a"}`, 400, "MALFORMED_JSON", nil},
		{"unclosed at once", `{"checks":[`, 400, "MALFORMED_JSON", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, p := d.decodeBatch([]byte(c.body))
			requireProblem(t, c, p)
		})
	}

	_, p = d.decodeBatch([]byte(entries(100, `{"subject":"","cost":-1}`)))
	require.Len(t, p.Errors, maxFieldErrors, "the answer must stay bounded")
}

// Decoding allocates only the strings of a check, because garbage would increase latency.
func TestDecodeAllocations(t *testing.T) {
	body := []byte(`{"subject":"user_42","resource":"orders:create","cost":1}`)
	var d decoder
	var req check.Request
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if p := d.decodeCheck(body, &req); p != nil {
			t.Fatal(p)
		}
	}), 1.0)
}

// verdict is the essential part of an answer to a body.
type verdict struct {
	status   int
	req      check.Request
	pointers []string
}

// referenceCheck decodes a check with a general JSON library in its strict mode. Only the meaning
// of the fields is implemented again.
func referenceCheck(body []byte) verdict {
	switch {
	case depth(body) > maxCheckDepth:
		return verdict{status: http.StatusBadRequest}
	case jsontext.Value(body).Kind() != '{' && jsontext.Value(body).IsValid():
		return verdict{status: http.StatusUnprocessableEntity, pointers: []string{""}}
	}
	var in struct {
		Subject    jsontext.Value `json:"subject"`
		Resource   jsontext.Value `json:"resource"`
		Cost       jsontext.Value `json:"cost"`
		Plan       jsontext.Value `json:"plan"`
		Attributes jsontext.Value `json:"attributes"`
		DryRun     jsontext.Value `json:"dry_run"`
		Explain    jsontext.Value `json:"explain"`
	}
	if err := json.Unmarshal(body, &in, json.RejectUnknownMembers(true)); err != nil {
		return verdict{status: http.StatusBadRequest}
	}
	v := verdict{status: http.StatusOK, req: check.Request{Resource: "default", Cost: 1}}
	bad := func(pointer string) { v.pointers = append(v.pointers, pointer) }
	text := func(raw jsontext.Value, pointer string, to *string, ok func(string) bool) {
		if raw == nil {
			return
		}
		*to = ""
		if raw.Kind() != '"' || json.Unmarshal(raw, to) != nil || !ok(*to) {
			bad(pointer)
		}
	}
	valid := func(s string) bool { return limit.ValidName(s) == nil }
	if in.Subject == nil {
		bad("/subject")
	}
	text(in.Subject, "/subject", &v.req.Subject, valid)
	text(in.Resource, "/resource", &v.req.Resource, valid)
	text(in.Plan, "/plan", &v.req.Plan, func(s string) bool { return s != "" })
	if in.Cost != nil {
		n, err := strconv.ParseUint(string(in.Cost), 10, 63)
		if err != nil || int64(n) > limit.MaxFixedLimit {
			bad("/cost")
		}
		v.req.Cost = int64(n)
	}
	for _, b := range []struct {
		raw     jsontext.Value
		pointer string
		to      *bool
	}{{in.DryRun, "/dry_run", &v.req.DryRun}, {in.Explain, "/explain", &v.req.Explain}} {
		if b.raw != nil && b.raw.Kind() != 't' && b.raw.Kind() != 'f' {
			bad(b.pointer)
		}
		*b.to = b.raw.Kind() == 't'
	}
	if in.Attributes != nil {
		referenceAttributes(in.Attributes, &v, bad)
	}
	if v.pointers != nil {
		slices.Sort(v.pointers)
		return verdict{status: http.StatusUnprocessableEntity, pointers: v.pointers}
	}
	return v
}

func referenceAttributes(raw jsontext.Value, v *verdict, bad func(string)) {
	if raw.Kind() != '{' {
		bad("/attributes")
		return
	}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	_, _ = d.ReadToken()
	n := 0
	for ; d.PeekKind() == '"'; n++ {
		name, _ := d.ReadToken()
		a := check.Attribute{Name: name.String()}
		value, _ := d.ReadValue()
		if n >= limit.MaxAttributes {
			continue
		}
		if !limit.ValidAttributeName(a.Name) || value.Kind() != '"' || json.Unmarshal(value, &a.Value) != nil || limit.ValidName(a.Value) != nil {
			bad("/attributes/" + pointerToken([]byte(a.Name)))
		}
		v.req.Attributes = append(v.req.Attributes, a)
	}
	if n > limit.MaxAttributes {
		bad("/attributes")
	}
}

// depth returns the depth at which a document ends or stops being JSON.
func depth(body []byte) int {
	deepest := 0
	for d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true)); ; {
		if _, err := d.ReadToken(); err != nil {
			return deepest
		}
		deepest = max(deepest, d.StackDepth())
	}
}

// FuzzDecodeCheck compares the decoder with the reference: the same verdict, value and invalid
// fields. A difference would be a body that a proxy or a log reads differently than Weir.
func FuzzDecodeCheck(f *testing.F) {
	for _, c := range badBodies {
		if len(c.body) < 1000 {
			f.Add([]byte(c.body))
		}
	}
	var d decoder
	f.Fuzz(func(t *testing.T, body []byte) {
		var got verdict
		if p := d.decodeCheck(body, &got.req); p != nil {
			got = verdict{status: p.Status}
			if p.Status == http.StatusUnprocessableEntity {
				got.pointers = pointers(p)
				slices.Sort(got.pointers)
			}
		} else {
			got.status = http.StatusOK
		}
		require.Equal(t, referenceCheck(body), got, "%q", body)
	})
}

func BenchmarkDecodeCheck(b *testing.B) {
	body := []byte(`{"subject":"user_42","resource":"orders:create","cost":1,"plan":"pro","attributes":{"ip":"203.0.113.7"}}`)
	var d decoder
	var req check.Request
	b.ReportAllocs()
	for b.Loop() {
		if p := d.decodeCheck(body, &req); p != nil {
			b.Fatal(p)
		}
	}
}

func BenchmarkDecodeSmallCheck(b *testing.B) {
	body := []byte(`{"subject":"user_42","resource":"orders:create"}`)
	var d decoder
	var req check.Request
	b.ReportAllocs()
	for b.Loop() {
		if p := d.decodeCheck(body, &req); p != nil {
			b.Fatal(p)
		}
	}
}
