package route

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// asked is a request to a route, as a transport passes it.
type asked struct {
	method  string
	target  string
	address string
	headers []string // "Name: value"
}

func (a asked) of(t testing.TB, c *Compiled) Decision {
	t.Helper()
	in := &Input{Method: []byte(a.method), Target: []byte(a.target)}
	if a.address != "" {
		in.Address = netip.MustParseAddr(a.address)
	}
	for _, line := range a.headers {
		name, value, _ := strings.Cut(line, ":")
		c.Take(in, []byte(name), []byte(strings.Trim(value, " \t")))
	}
	return c.Decide(in)
}

func compiled(t testing.TB, change func(r *Route)) *Compiled {
	t.Helper()
	r := New("edge")
	r.Subject = []string{"header:X-User"}
	if change != nil {
		change(&r)
	}
	c, err := Compile(r)
	require.NoError(t, err)
	return c
}

func bearer(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "Authorization: Bearer " + encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + ".c2ln"
}

func shaOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// The subject comes from the first source that is present. Other spellings of a source are ignored.
func TestSubjects(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		sources []string
		asked   asked
		hash    Hash
		want    string // the subject, or the code of the refusal
	}{
		"header":                         {[]string{"header:X-User"}, asked{headers: []string{"x-user: ada"}}, "", "ada"},
		"header, literally":              {[]string{"header:X-User"}, asked{headers: []string{`X-User: x","plan":"enterprise`}}, "", `x","plan":"enterprise`},
		"header with a comma":            {[]string{"header:X-User"}, asked{headers: []string{"X-User: a, b"}}, "", "a, b"},
		"header with an escape":          {[]string{"header:X-User"}, asked{headers: []string{"X-User: %41"}}, "", "%41"},
		"header in UTF-8":                {[]string{"header:X-User"}, asked{headers: []string{"X-User: zoë"}}, "", "zoë"},
		"header twice":                   {[]string{"header:X-User", "ip"}, asked{headers: []string{"X-User: ada", "X-User: bob"}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
		"header twice, one empty":        {[]string{"header:X-User"}, asked{headers: []string{"X-User:", "X-User: bob"}}, "", "SUBJECT_INVALID"},
		"header twice, the same":         {[]string{"header:X-User"}, asked{headers: []string{"X-User: ada", "X-User: ada"}}, "", "SUBJECT_INVALID"},
		"header not UTF-8":               {[]string{"header:X-User", "ip"}, asked{headers: []string{"X-User: \xff"}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
		"header with a control":          {[]string{"header:X-User"}, asked{headers: []string{"X-User: a\x00b"}}, "", "SUBJECT_INVALID"},
		"header with a C1 control":       {[]string{"header:X-User"}, asked{headers: []string{"X-User: a\u0085b"}}, "", "SUBJECT_INVALID"},
		"header too long":                {[]string{"header:X-User", "ip"}, asked{headers: []string{"X-User: " + long}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
		"header too long, hashed":        {[]string{"header:X-User"}, asked{headers: []string{"X-User: " + long}}, HashAll, shaOf(long)},
		"header empty":                   {[]string{"header:X-User"}, asked{headers: []string{"X-User: "}}, "", "SUBJECT_MISSING"},
		"header with an underscore":      {[]string{"header:X-User"}, asked{headers: []string{"X_User: ada"}}, "", "SUBJECT_MISSING"},
		"nothing":                        {[]string{"header:X-User"}, asked{}, "", "SUBJECT_MISSING"},
		"the second":                     {[]string{"header:X-User", "ip"}, asked{headers: []string{"X-User: "}, address: "192.0.2.1"}, "", "192.0.2.1"},
		"the first of two":               {[]string{"header:X-User", "ip"}, asked{headers: []string{"X-User: ada"}, address: "192.0.2.1"}, "", "ada"},
		"secret":                         {[]string{"header:X-Api-Key"}, asked{headers: []string{"X-Api-Key: k1"}}, "", shaOf("k1")},
		"secret, not hashed":             {[]string{"header:X-Api-Key"}, asked{headers: []string{"X-Api-Key: k1"}}, HashNone, "k1"},
		"authorization":                  {[]string{"header:Authorization"}, asked{headers: []string{"Authorization: Bearer k1"}}, "", shaOf("k1")},
		"authorization, spelled":         {[]string{"header:authorization"}, asked{headers: []string{"authorization: BEARER   k1"}}, "", shaOf("k1")},
		"authorization without a scheme": {[]string{"header:Authorization"}, asked{headers: []string{"Authorization: k1"}}, "", shaOf("k1")},
		"authorization, the scheme only": {[]string{"header:Authorization"}, asked{headers: []string{"Authorization: Bearer"}}, "", shaOf("Bearer")},
		"IPv4":                           {[]string{"ip"}, asked{address: "192.0.2.7"}, "", "192.0.2.7"},
		"IPv4 in IPv6":                   {[]string{"ip"}, asked{address: "::ffff:192.0.2.7"}, "", "192.0.2.7"},
		"IPv6, its network":              {[]string{"ip"}, asked{address: "2001:db8:1:2:a:b:c:d"}, "", "2001:db8:1:2::/64"},
		"IPv6 with a zone":               {[]string{"ip"}, asked{address: "fe80::1%eth0"}, "", "fe80::/64"},
		"no address":                     {[]string{"ip"}, asked{}, "", "SUBJECT_MISSING"},
		"address, hashed":                {[]string{"ip"}, asked{address: "192.0.2.7"}, HashAll, shaOf("192.0.2.7")},

		"cookie":                       {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: a=b; sid=s1; c=d"}}, "", shaOf("s1")},
		"cookie, not hashed":           {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=s1"}}, HashNone, "s1"},
		"cookie in quotes":             {[]string{"cookie:sid"}, asked{headers: []string{`Cookie: sid="s1"`}}, "", shaOf("s1")},
		"cookie, escaped":              {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=%73%31"}}, "", shaOf("s1")},
		"cookie, half an escape":       {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=s%3"}}, "", shaOf("s%3")},
		"cookie with =":                {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=a=b=="}}, HashNone, "a=b=="},
		"cookie in another line":       {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: a=b", "Cookie: sid=s1"}}, "", shaOf("s1")},
		"cookie twice":                 {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=s1; sid=s2"}}, "", "SUBJECT_INVALID"},
		"cookie twice, two lines":      {[]string{"cookie:sid", "ip"}, asked{headers: []string{"Cookie: sid=s1", "Cookie: sid=s2"}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
		"cookie twice, the same":       {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=s1; sid=s1"}}, "", shaOf("s1")},
		"cookie of another name":       {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: SID=s1; xsid=s2; sid2=s3"}}, "", "SUBJECT_MISSING"},
		"cookie, empty":                {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=; =; ;sid"}}, "", "SUBJECT_MISSING"},
		"cookie, decoded to a control": {[]string{"cookie:sid"}, asked{headers: []string{"Cookie: sid=%00"}}, HashNone, "SUBJECT_INVALID"},

		"claim":                   {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"iss":"x","sub":"ada"}`)}}, "", "ada"},
		"claim, a number":         {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":90071992547409931}`)}}, "", "90071992547409931"},
		"claim, escaped":          {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":"\u0061d\u0061"}`)}}, "", "ada"},
		"claim, nested":           {[]string{"jwt:realm.user.id"}, asked{headers: []string{bearer(`{"realm":{"x":1,"user":{"id":"ada"}}}`)}}, "", "ada"},
		"claim with dots":         {[]string{"jwt:https://example.com/id"}, asked{headers: []string{bearer(`{"https://example.com/id":"ada"}`)}}, "", "ada"},
		"claim with dots, nested": {[]string{"jwt:a.example.com"}, asked{headers: []string{bearer(`{"a":{"example.com":"ada"}}`)}}, "", "ada"},
		"claim, an object":        {[]string{"jwt:sub", "ip"}, asked{headers: []string{bearer(`{"sub":{"a":1}}`)}, address: "192.0.2.1"}, "", "192.0.2.1"},
		"claim, null":             {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":null}`)}}, "", "SUBJECT_MISSING"},
		"claim, true":             {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":true}`)}}, "", "SUBJECT_MISSING"},
		"claim, empty":            {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":""}`)}}, "", "SUBJECT_MISSING"},
		"claim, too long":         {[]string{"jwt:sub", "ip"}, asked{headers: []string{bearer(`{"sub":"` + long + `"}`)}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
		"claim with a control":    {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":"a\u0000"}`)}}, "", "SUBJECT_INVALID"},
		"claim, hashed":           {[]string{"jwt:sub"}, asked{headers: []string{bearer(`{"sub":"ada"}`)}}, HashAll, shaOf("ada")},
		"claim, lower case":       {[]string{"jwt:sub"}, asked{headers: []string{strings.Replace(bearer(`{"sub":"ada"}`), "Bearer", "bearer", 1)}}, "", "ada"},
		"no token":                {[]string{"jwt:sub", "header:Authorization"}, asked{headers: []string{"Authorization: Bearer opaque"}}, "", shaOf("opaque")},
		"token of two parts":      {[]string{"jwt:sub"}, asked{headers: []string{"Authorization: Bearer a.eyJzdWIiOiJhZGEifQ"}}, "", "SUBJECT_MISSING"},
		"token, not base64":       {[]string{"jwt:sub"}, asked{headers: []string{"Authorization: Bearer a.!!!.c"}}, "", "SUBJECT_MISSING"},
		"token, not JSON":         {[]string{"jwt:sub"}, asked{headers: []string{bearer(`sub`)}}, "", "SUBJECT_MISSING"},
		"token, a list":           {[]string{"jwt:sub"}, asked{headers: []string{bearer(`["sub"]`)}}, "", "SUBJECT_MISSING"},
		"token of another scheme": {[]string{"jwt:sub"}, asked{headers: []string{"Authorization: Basic YTpi"}}, "", "SUBJECT_MISSING"},
		"two tokens":              {[]string{"jwt:sub", "ip"}, asked{headers: []string{bearer(`{"sub":"a"}`), bearer(`{"sub":"b"}`)}, address: "192.0.2.1"}, "", "SUBJECT_INVALID"},
	} {
		d := c.asked.of(t, compiled(t, func(r *Route) {
			r.Subject = c.sources
			if c.hash != "" {
				r.Hash = c.hash
			}
		}))
		got := string(d.Subject)
		if d.Verdict == Refuse {
			got = string(d.Code)
		}
		require.Equal(t, c.want, got, name)
	}
}

// The route decides what happens without a subject.
func TestNoSubject(t *testing.T) {
	for choice, want := range map[NoSubject]Decision{
		DenyNoSubject:  {Verdict: Refuse, Code: SubjectMissing, Resource: "default", Cost: 1},
		AllowNoSubject: {Verdict: Allow, Resource: "default", Cost: 1},
		CountByAddress: {Subject: []byte("192.0.2.1"), Source: "ip", Resource: "default", Cost: 1},
	} {
		c := compiled(t, func(r *Route) { r.NoSubject = choice })
		d := asked{address: "192.0.2.1"}.of(t, c)
		require.Empty(t, d.Attributes)
		d.Attributes = nil
		require.Equal(t, want, d, choice)
		require.Equal(t, choice == CountByAddress, c.NeedsAddress())
		require.Equal(t, SubjectInvalid, asked{headers: []string{"X-User: a\x7f"}, address: "192.0.2.1"}.of(t, c).Code, "an invalid one is denied")
	}
}

// A request gets the resource that the server behind the gateway serves, however its path is
// spelled.
func TestResources(t *testing.T) {
	c := compiled(t, func(r *Route) {
		r.DefaultResource, r.Cost = "other", 3
		nine := int64(9)
		r.Resources = []Template{
			{Match: "GET /orders/{id}"}, {Match: "/orders/{id}/items", Resource: "items"}, {Match: "POST /orders", Resource: "orders:create", Cost: &nine},
			{Match: "/"}, {Match: "/static/{path...}"}, {Match: "DELETE /caf\u00e9/{id}"}, {Match: "HEAD /twice"}, {Match: "GET /twice"},
		}
	})
	const refused = "RESOURCE_INVALID"
	for uri, want := range map[string]string{
		"GET /orders/1": "GET /orders/{id}", "GET /orders/1?x=/orders/2/items": "GET /orders/{id}", "HEAD /orders/1": "GET /orders/{id}",
		"GET /orders/": "other", "GET /orders": "other", "POST /orders/1": "other", "GET /orders/1/2": "other", "POST /orders": "orders:create",
		"POST /orders/": "orders:create", "PUT /orders/1/items": "items", "GET /": "/", "GET /?": "/", "get /orders/1": "GET /orders/{id}",
		"HEAD /twice": "HEAD /twice", "GET /twice": "GET /twice",
		// Other spellings of the same path.
		"GET /ORDERS/1": "GET /orders/{id}", "GET //orders///1//": "GET /orders/{id}", "GET /%6frders/1": "GET /orders/{id}", "GET /%6Frders/%31": "GET /orders/{id}",
		"DELETE /caf%C3%A9/1": "DELETE /caf\u00e9/{id}", "DELETE /caf\u00e9/1": "DELETE /caf\u00e9/{id}", "GET http://example.com/orders/1": "GET /orders/{id}",
		"GET HTTPS://example.com:8443": "/", "GET /orders%2F1": "GET /orders/{id}", "GET /orders%5c1": "GET /orders/{id}", "GET /orders\\1": "GET /orders/{id}",
		"GET /orders;v=1/1": "GET /orders/{id}", "GET /orders/1;jsessionid=2": "GET /orders/{id}", "GET /orders;x%2F1": "GET /orders/{id}", "GET /orders/%ff": "GET /orders/{id}",
		"GET /orders/a%2Fb": "GET /orders/{id}", "GET /static": "/static/{path...}", "GET /static/a/b/c": "/static/{path...}", "GET /static/a%2Fb": "/static/{path...}",
		"GET /orders/%252F": "GET /orders/{id}", "GET /orders/a:b@c": "GET /orders/{id}",
		// Servers would disagree about these paths, or refuse them.
		"GET /orders/1%2Fitems": refused, "GET /orders/1%2fitems": refused, "GET /orders/1\\items": refused, "GET /orders/../health": refused, "GET /orders/.": refused,
		"GET /orders/%2e%2e/x": refused, "GET /orders/..;x/1": refused, "GET /static/..%2forders/1": refused, "GET /orders/%zz": refused, "GET /orders/1%2": refused,
		"GET /orders/%00": refused, "GET /orders/1#x": refused, "GET /orders/1%": refused,
		// No path.
		"OPTIONS *": "other", "CONNECT example.com:443": "other", "GET orders/1": "other",
		"GET /" + strings.Repeat("a/", 8000): "other", "GET /static/" + strings.Repeat("a/", 8000): "/static/{path...}", "GET /orders/" + strings.Repeat("a", 8000): "GET /orders/{id}",
	} {
		method, path, _ := strings.Cut(uri, " ")
		for way, a := range map[string]asked{
			"forwarded":    {method: "GET", headers: []string{"X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + path}},
			"original":     {method: "POST", headers: []string{"X-Original-Method: " + method, "X-Original-URI: " + path}},
			"original URL": {method: "GET", headers: []string{"X-Original-Method: " + method, "X-Original-URL: " + path}},
			"path":         {method: method, target: path},
			"all":          {method: method, target: path, headers: []string{"X-Original-URI: " + path, "X-Forwarded-Uri: " + path}},
		} {
			a.headers = append(a.headers, "X-User: ada")
			d := a.of(t, c)
			got := d.Resource
			if d.Verdict == Refuse {
				got = string(d.Code)
			}
			require.Equal(t, want, got, "%s, %s", uri[:min(len(uri), 50)], way)
			require.Equal(t, map[string]int64{"orders:create": 9, refused: 3}[want]+map[bool]int64{true: 3}[want != "orders:create" && want != refused], d.Cost, uri[:min(len(uri), 50)])
		}
	}
}

// A customer who sends another gateway's headers cannot choose the template.
func TestContradictions(t *testing.T) {
	c := compiled(t, func(r *Route) { r.Resources = []Template{{Match: "GET /cheap"}, {Match: "GET /dear"}} })
	for _, a := range []asked{
		{method: "GET", headers: []string{"X-Original-URI: /dear", "X-Forwarded-Uri: /cheap"}},
		{method: "GET", headers: []string{"X-Original-URI: /dear", "X-Forwarded-Uri: /elsewhere"}},
		{method: "GET", headers: []string{"X-Original-URI: /elsewhere", "X-Original-URL: http://a/dear"}},
		{method: "GET", target: "/dear", headers: []string{"X-Original-URI: /cheap"}},
		{method: "GET", target: "/dear", headers: []string{"X-Forwarded-Method: POST", "X-Forwarded-Uri: /dear"}},
		{method: "GET", headers: []string{"X-Forwarded-Uri: /dear", "X-Forwarded-Uri: /dear"}},
		{method: "GET", headers: []string{"X-Forwarded-Method: GET", "X-Forwarded-Method: POST", "X-Forwarded-Uri: /dear"}},
		{method: "GET", headers: []string{"X-Forwarded-Method: GET", "X-Forwarded-Method: GET", "X-Forwarded-Uri: /dear"}},
	} {
		a.headers = append(a.headers, "X-User: ada")
		require.Equal(t, ResourceInvalid, a.of(t, c).Code, "%v", a)
	}
	// A method without its URI is ignored.
	for _, headers := range [][]string{{"X-Forwarded-Method: POST", "X-Original-URI: /dear"}, {"X-Original-Method: POST", "X-Forwarded-Uri: /dear"}} {
		require.Equal(t, "GET /dear", asked{method: "GET", headers: append(headers, "X-User: ada")}.of(t, c).Resource, "%v", headers)
	}
	require.Equal(t, "default", asked{method: "GET", headers: []string{"X-User: ada"}}.of(t, c).Resource, "the gateway sends no path")
	// A route without templates ignores the path.
	require.Equal(t, Check, asked{method: "GET", target: "/..", headers: []string{"X-User: ada", "X-Forwarded-Uri: %"}}.of(t, compiled(t, nil)).Verdict)
}

func TestAttributes(t *testing.T) {
	c := compiled(t, func(r *Route) {
		r.Attributes = map[string]string{"region": "header:X-Region", "Key": "header:X-Api-Key", "ip": "ip", "tier": "jwt:tier"}
	})
	d := asked{address: "192.0.2.1", headers: []string{"X-User: ada", "X-Region: eu", "X-Api-Key: k", bearer(`{"tier":"pro"}`)}}.of(t, c)
	require.Equal(t, []Attribute{{"Key", []byte(shaOf("k"))}, {"ip", []byte("192.0.2.1")}, {"region", []byte("eu")}, {"tier", []byte("pro")}}, d.Attributes)
	require.Equal(t, []Attribute{{"region", []byte("eu")}}, asked{headers: []string{"X-User: ada", "X-Region: eu", "X-Api-Key:"}}.of(t, c).Attributes)
	for _, line := range []string{"X-Region: \xff", "X-Region: " + strings.Repeat("x", 257), "X-Region: a\x01"} {
		require.Equal(t, AttributeInvalid, asked{headers: []string{"X-User: ada", line}}.of(t, c).Code)
	}
	require.Equal(t, AttributeInvalid, asked{headers: []string{"X-User: ada", "X-Region: eu", "X-Region: eu"}}.of(t, c).Code)
}

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", 300)
	for field, changes := range map[string][]func(r *Route){
		"slug":        {func(r *Route) { r.Slug = "A" }},
		"name":        {func(r *Route) { r.Name = long }},
		"description": {func(r *Route) { r.Description = "\x00" }},
		"subject": {func(r *Route) { r.Subject = nil }, func(r *Route) {
			r.Subject = strings.Split("jwt:a jwt:b jwt:c jwt:d jwt:e jwt:f jwt:g jwt:h jwt:i", " ")
		}},
		"hash":             {func(r *Route) { r.Hash = "" }},
		"no_subject":       {func(r *Route) { r.NoSubject = "maybe" }},
		"fail":             {func(r *Route) { r.Fail = "ajar" }},
		"denied_status":    {func(r *Route) { r.DeniedStatus = 200 }},
		"cost":             {func(r *Route) { r.Cost = -1 }, func(r *Route) { r.Cost = 1e15 + 1 }},
		"default_resource": {func(r *Route) { r.DefaultResource = "" }, func(r *Route) { r.DefaultResource = "a*" }, func(r *Route) { r.DefaultResource = long }},
		"resources":        {func(r *Route) { r.Resources = make([]Template, MaxTemplates+1) }},
		"attributes.a b":   {func(r *Route) { r.Attributes = map[string]string{"a b": "ip"} }},
		"attributes.a":     {func(r *Route) { r.Attributes = map[string]string{"a": ""} }},
		"resources.0.cost": {func(r *Route) { cost := int64(-1); r.Resources = []Template{{Match: "/a", Cost: &cost}} }},
		"resources.0.resource": {func(r *Route) { r.Resources = []Template{{Match: "/a", Resource: "a*"}} },
			func(r *Route) { r.Resources = []Template{{Match: "/a", Resource: "\xff"}} }},
		"resources.1.match": {func(r *Route) { r.Resources = []Template{{Match: "GET /a/{id}"}, {Match: "GET /A/{other}"}} }},
	} {
		for i, change := range changes {
			r := New("edge")
			r.Subject = []string{"ip"}
			change(&r)
			errs := r.Validate()
			require.Len(t, errs, 1, "%s %d: %v", field, i, errs)
			require.Equal(t, field, errs[0].Field)
		}
	}
	for _, text := range []string{
		"", "IP", "query:key", "header:", "header:a b", "header:Weir-Key", "header:" + long, "cookie:", "cookie:a;b", "cookie:a=b", "jwt:", "jwt:\x00", "jwt:" + long, "ip:4",
	} {
		r := New("edge")
		r.Subject = []string{text}
		require.Len(t, r.Validate(), 1, "%q", text)
	}
	for _, match := range []string{
		"", "orders", "GET orders", "get /orders", "GET  /orders", "GET", "/a//b", "/a/", "//", "/a/../b", "/.", "/a?b", "/a#b", "/a%20b", "/a b", "/a*", "/{id", "/a{id}", "/{}", "/{a-b}",
		"/{a...}/b", "/a;b", "/\x00", "/\xff", "/" + long, "GET,POST /a", "* /a",
	} {
		r := New("edge")
		r.Subject, r.Resources = []string{"ip"}, []Template{{Match: match}}
		errs := r.Validate()
		require.Len(t, errs, 1, "%q", match)
		require.Equal(t, "resources.0.match", errs[0].Field)
	}
}

// For any input a route returns a decision, and the checks that result are valid.
func FuzzDecide(f *testing.F) {
	f.Add("ada", "GET", "/orders/1", "a=b; sid=s1", "Bearer a.eyJzdWIiOiJhZGEifQ.c")
	f.Add(`x","plan":"enterprise`, "get", "/orders/%2e%2e;x\\..", `sid="%00"`, "Bearer ..")
	f.Add("\xff", "", "http://a", ";;=", "Basic")
	c := compiled(f, func(r *Route) {
		r.Subject = []string{"jwt:sub.id", "cookie:sid", "header:X-User"}
		r.Hash = HashNone
		r.Attributes = map[string]string{"user": "header:X-User", "auth": "header:Authorization"}
		r.Resources = []Template{{Match: "GET /orders/{id}"}, {Match: "/files/{path...}"}, {Match: "/orders/{id}/items"}}
	})
	f.Fuzz(func(t *testing.T, user, method, uri, cookies, authorization string) {
		d := asked{method: "GET", headers: []string{
			"X-User: " + user, "X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + uri, "Cookie: " + cookies, "Authorization: " + authorization,
		}}.of(t, c)
		switch d.Verdict {
		case Check:
			require.Empty(t, limit.ValidName(string(d.Subject)))
			require.Contains(t, []string{"default", "GET /orders/{id}", "/files/{path...}", "/orders/{id}/items"}, d.Resource)
			for _, a := range d.Attributes {
				require.Empty(t, limit.ValidName(string(a.Value)))
			}
		case Refuse:
			require.NotEmpty(t, d.Code)
		default:
			t.Fatal("allowed without a subject")
		}
	})
}

// Every encoding of a path that a server decodes matches the same template as the plain path, or is
// denied.
func FuzzSpelling(f *testing.F) {
	f.Add(uint64(0b1011))
	c := compiled(f, func(r *Route) {
		r.Resources = []Template{{Match: "GET /orders/{id}"}, {Match: "GET /health"}, {Match: "GET /orders/{id}/items"}}
	})
	f.Fuzz(func(t *testing.T, how uint64) {
		plain := []string{"/orders/1", "/health", "/orders/1/items"}[how%3]
		how /= 3
		var spelled strings.Builder
		for _, b := range []byte(plain) {
			switch how & 3 {
			case 1:
				fmt.Fprintf(&spelled, "%%%02x", b)
			case 2:
				spelled.WriteString(strings.ToUpper(string(b)))
			case 3:
				spelled.WriteByte(b)
				if b == '/' {
					spelled.WriteString("/")
				}
			default:
				spelled.WriteByte(b)
			}
			how >>= 2
		}
		want := asked{method: "GET", target: plain, headers: []string{"X-User: ada"}}.of(t, c)
		if spelled.String()[0] != '/' {
			return // an encoded first slash is not a path
		}
		got := asked{method: "GET", headers: []string{"X-User: ada", "X-Forwarded-Uri: " + spelled.String()}}.of(t, c)
		require.True(t, got.Code == ResourceInvalid || got.Resource == want.Resource, "%s: %s", spelled.String(), got.Resource)
	})
}

// A route decides thousands of requests per second.
func TestDecideAllocatesNothing(t *testing.T) {
	c := compiled(t, func(r *Route) {
		r.Subject = []string{"cookie:sid", "header:X-Api-Key", "ip"}
		r.Resources = []Template{{Match: "GET /health"}, {Match: "GET /orders/{id}"}}
		r.Attributes = map[string]string{"ip": "ip"}
	})
	in := &Input{}
	names, values := [][]byte{[]byte("X-Forwarded-Method"), []byte("X-Forwarded-Uri"), []byte("X-Api-Key"), []byte("User-Agent")},
		[][]byte{[]byte("GET"), []byte("/orders/%37?x=1"), []byte("secret"), []byte("curl")}
	method, address := []byte("GET"), netip.MustParseAddr("2001:db8::1")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		in.Reset()
		in.Method, in.Address = method, address
		for i := range names {
			c.Take(in, names[i], values[i])
		}
		if d := c.Decide(in); d.Verdict != Check || d.Resource != "GET /orders/{id}" {
			panic(d)
		}
	}))
}

// A token is read once, however many claims the route looks for, and however deep they are. The
// test counts allocations: each reading of a token needs some.
func TestTokensAreReadOnce(t *testing.T) {
	const levels = maxClaimBytes/2 - 2
	deepest := strings.Repeat("a.", levels)
	c := compiled(t, func(r *Route) {
		r.Subject, r.Attributes = nil, map[string]string{}
		for i := range MaxSources - 1 {
			r.Subject = append(r.Subject, "jwt:"+deepest+strconv.Itoa(i))
		}
		r.Subject = append(r.Subject, "jwt:"+deepest+"id")
		for i := range limit.MaxAttributes {
			r.Attributes["n"+strconv.Itoa(i)] = "jwt:" + deepest + "n" + strconv.Itoa(i)
		}
	})
	claims := strings.Repeat(`{"a":`, levels) + `{"list":[` + strings.Repeat("[],", 1000) + `0],"id":"ada","n3":7}` + strings.Repeat("}", levels)
	name, token, _ := strings.Cut(bearer(claims), ": ")
	in, header, value := &Input{}, []byte(name), []byte(token)
	allocations := testing.AllocsPerRun(10, func() {
		in.Reset()
		c.Take(in, header, value)
		d := c.Decide(in)
		require.Equal(t, "ada", string(d.Subject))
		require.Len(t, d.Attributes, 1)
		require.Equal(t, "n3=7", d.Attributes[0].Name+"="+string(d.Attributes[0].Value))
	})
	require.Less(t, allocations, float64(200))
}

// Cookies are read once for all sources of a route. Before, each source read all of them.
func TestCookiesAreReadOnce(t *testing.T) {
	c := compiled(t, func(r *Route) {
		r.Hash, r.Subject, r.Attributes = HashNone, nil, map[string]string{}
		for i := range MaxSources {
			r.Subject = append(r.Subject, "cookie:s"+strconv.Itoa(i))
		}
		for i := range limit.MaxAttributes {
			r.Attributes["n"+strconv.Itoa(i)] = "cookie:k" + strconv.Itoa(i/2)
		}
	})
	const count = 1000
	value := strings.Repeat(";", count) + strings.Repeat("k0=%41; ", count) + "k2=%42; s1=ada; s7=%62ob; k3=1; k3=2"
	in, header := &Input{}, []byte("cookie")
	decide := func(value string) Decision {
		in.Reset()
		c.Take(in, header, []byte(value))
		return c.Decide(in)
	}
	require.Equal(t, AttributeInvalid, decide(value).Code, "k3 has two values")
	d := decide(value[:strings.Index(value, "; k3")])
	require.Equal(t, "ada", string(d.Subject))
	require.Equal(t, count+len("B")+len("bob"), len(in.text), "each is decoded once")
	found := map[string]string{}
	for _, a := range d.Attributes {
		found[a.Name] = string(a.Value)
	}
	require.Equal(t, map[string]string{"n0": "A", "n1": "A", "n4": "B", "n5": "B"}, found)
	require.Equal(t, SubjectMissing, decide("").Code, "nothing is left from the request before")
	few := []byte("s3=eve; k1=%43")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		in.Reset()
		c.Take(in, header, few)
		c.Decide(in)
	}))
}

// What precedes an error in a token counts. So a claim is the same, whatever follows it.
func TestTokensWithErrors(t *testing.T) {
	for claims, want := range map[string]string{
		`{"sub":"ada","x":`:                    "ada",
		`{"sub":"ada","sub":"bob"}`:            "ada",
		`{"sub":"ada"}]`:                       "ada",
		`{"x":{"y":{"z":1,"sub":2`:             "",
		`{"x":[{"sub":"bob"}],"sub":"ada"}`:    "ada",
		`{"x":{"sub":"bob"},"sub":"ada"`:       "ada",
		`{"x":1,"x":2,"sub":"ada"}`:            "",
		`{"x":"` + "\xff" + `","sub":"ada"}`:   "",
		strings.Repeat(`{"a":`, 200) + `"ada"`: "",
	} {
		d := asked{headers: []string{bearer(claims)}}.of(t, compiled(t, func(r *Route) { r.Subject = []string{"jwt:sub"} }))
		require.Equal(t, want, string(d.Subject), claims)
	}
}

func BenchmarkClaim(b *testing.B) {
	c := compiled(b, func(r *Route) { r.Subject = []string{"jwt:sub"} })
	name, token, _ := strings.Cut(bearer(`{"iss":"https://id.example.com/","sub":"user_42","aud":"https://api.example.com","iat":1795358939,"exp":1795362539,"scope":"openid profile","realm_access":{"roles":["a","b"]}}`), ": ")
	in, header, value := &Input{}, []byte(name), []byte(token)
	b.ReportAllocs()
	for b.Loop() {
		in.Reset()
		c.Take(in, header, value)
		if c.Decide(in).Verdict != Check {
			b.Fatal("no subject")
		}
	}
}

// A route with too many attributes has one problem, not one of each of them.
func TestManyAttributes(t *testing.T) {
	r := New("edge")
	r.Subject, r.Attributes = []string{"ip"}, map[string]string{}
	for i := range 16_000 {
		r.Attributes["a b"+strconv.Itoa(i)] = "x"
	}
	errs := r.Validate()
	require.Len(t, errs, 1)
	require.Equal(t, "attributes may be at most 16", errs[0].Error())
}
