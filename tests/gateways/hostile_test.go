package gateways

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An attack is a raw request of a customer. GATEWAY becomes the subject of the gateway's test, KEY
// is the key of the gateway.
type attack struct{ name, raw string }

// attacks are values for the header with the subject, forged headers of the gateway, and requests
// that programs interpret differently.
var attacks = append(append(hostileValues(), hostileHeaders()...), hostileRequests()...)

func request(headers ...string) string {
	return "GET /orders HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

func hostileValues() (all []attack) {
	values := map[string]string{
		"JSON member":            `x","plan":"enterprise`,
		"JSON object":            `x"},{"plan":"enterprise"}`,
		"JSON escape":            `x\","plan\":\"enterprise`,
		"JSON escape at the end": `x\`,
		"JSON unicode escape":    `x\u0022,\u0022plan\u0022:\u0022enterprise`,
		"JSON null":              `null`,
		"single quotes":          `x','plan':'enterprise`,
		"form":                   `x&plan=enterprise&cost=0`,
		"query":                  `x?plan=enterprise#cost=0`,
		"list":                   `x, Weir-Plan: enterprise`,
		"semicolons":             `x; plan=enterprise; cost=0`,
		"encoded CR LF":          `x%0d%0aWeir-Plan:%20enterprise`,
		"doubly encoded CR LF":   `x%250d%250aWeir-Plan:%20enterprise`,
		"encoded NUL":            `x%00y`,
		"malformed encoding":     `x%zz%`,
		"encoded quote":          `x%22,%22plan%22:%22enterprise`,
		"backslash CR LF":        `x\r\nWeir-Plan: enterprise`,
		"overlong UTF-8":         "x\xc0\x8d\xc0\x8aWeir-Plan: enterprise",
		"Unicode line ends":      "x\u2028Weir-Plan: enterprise\u0085y",
		"encoded CR LF in UTF-8": "x\u560d\u560aWeir-Plan: enterprise",
		"not UTF-8":              "x\xff\xfe",
		"half a character":       "x\xe2\x82",
		"surrogates":             "x\xed\xa0\x80",
		"wide quotes":            "x\uff02,\uff02plan\uff02:\uff02enterprise",
		"right to left":          "x\u202eesirpretne",
		"emoji":                  "\U0001f98a\U0001f98a",
		"one letter twice":       "e\u0301\u00e9",
		"byte order mark":        "\ufeffx",
		"NUL":                    "x\x00y",
		"CR alone":               "x\rWeir-Plan: enterprise",
		"LF alone":               "x\nWeir-Plan: enterprise",
		"CR LF":                  "x\r\nWeir-Plan: enterprise",
		"a second head":          "x\r\n\r\nGET /v1/authorize HTTP/1.1\r\nHost: weir\r\nWeir-Plan: enterprise",
		"folded line":            "x\r\n Weir-Plan: enterprise",
		"tab":                    "x\ty",
		"escape":                 "x\x1b[31m",
		"delete":                 "x\x7f",
		"vertical tab":           "x\x0by",
		"only spaces":            "   ",
		"256 bytes":              strings.Repeat("a", 256),
		"257 bytes":              strings.Repeat("b", 257),
		"4 KiB":                  strings.Repeat("c", 4<<10),
		"7 KiB":                  strings.Repeat("d", 7<<10),
		"20 KiB":                 strings.Repeat("e", 20<<10),
		"100 KiB":                strings.Repeat("f", 100<<10),
		"nginx variable":         "$weir_key ${http_weir_plan} $host",
		"HAProxy variable":       "%[var(txn.weir)] %{+Q}o",
		"Caddy placeholder":      "{env.HOME} {http.request.header.Weir-Plan} {$HOME}",
		"Apache expression":      "%{reqenv:HOME} ${HOME}",
		"Lua":                    "x]]..os.exit(1)..[[",
		"JavaScript":             "${process.exit()} `x`",
		"shell":                  "$(touch owned) `touch owned`; touch owned",
		"SQL":                    "x' OR plan = 'enterprise' --",
		"Redis":                  "x:*{y}\r\n*1\r\n$8\r\nFLUSHALL",
		"path":                   "../../v1/rules",
		"URL":                    "http://127.0.0.1:1/v1/authorize",
		"comma":                  "x,y",
		"quoted":                 `"x"`,
		"undefined":              "undefined",
		"number":                 "1e999",
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		// Each gateway has its own subjects, because the limit is counted for each.
		all = append(all, attack{name, request("X-User: GATEWAY " + value)}, attack{name + " at the start", request("X-User: " + value + " GATEWAY")})
	}
	return all
}

func hostileHeaders() (all []attack) {
	for i, headers := range [][]string{
		{"Weir-Key: forged"},
		{"Weir-Key: KEY"},
		{"Weir-Subject: forged"},
		{"weir-subject: forged"},
		{"WEIR-SUBJECT: forged"},
		{"Weir_Subject: forged"},
		{"Weir-Subject : forged"},
		{" Weir-Subject: forged"},
		{"Weir-Subject:"},
		{"Weir-Plan: enterprise"},
		{"weir-plan: enterprise"},
		{"Weir_Plan: enterprise"},
		{"Weir-Plan\t: enterprise"},
		{"Weir-Plan: enterprise", "Weir-Plan: enterprise"},
		{"Weir-Cost: 0"},
		{"Weir-Cost: x"},
		{"Weir-Cost: -1"},
		{"Weir-Resource: forged"},
		{"Weir-Encoding: percent"},
		{"Weir-Encoding: x"},
		{"Weir-Denied-Status: 403"},
		{"Weir-Denied-Status: 200"},
		{"Weir-Attribute-Ip: 1"},
		{"Weir-Attribute-" + strings.Repeat("x", 100) + ": 1"},
		{"Weir-Decision: allow"},
		{"Weir-Unknown: x"},
		{"Idempotency-Key: always-the-same"},
		{"Authorization: Bearer KEY"},
		{"X-User:"},
		{"X-User: GATEWAY other"},
		{"x-user: GATEWAY other"},
		{"X_User: GATEWAY other"},
		{"Connection: Weir-Key, Weir-Resource"},
		{"Connection: Weir-Subject, X-User"},
		{"Connection: keep-alive, Weir-Denied-Status"},
		{"Upgrade: websocket", "Connection: Upgrade"},
		{"TE: trailers", "Trailer: Weir-Plan"},
		{"Expect: 100-continue"},
		{"X-HTTP-Method-Override: DELETE"},
		{"X-Original-URL: /v1/rules", "X-Rewrite-URL: /v1/rules"},
		{"X-Accel-Redirect: /_weir_check", "X-Sendfile: /etc/passwd"},
		{"X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1"},
		{"X-Forwarded-Uri: /free", "X-Forwarded-Method: OPTIONS", "X-Original-URI: /free", "X-Original-URL: /free", "X-Original-Method: OPTIONS"},
		{"X-Forwarded-Uri: /free\r\nX-Forwarded-Uri: /orders"},
		{"Connection: X-Forwarded-Uri, X-Forwarded-Method, X-Forwarded-For, X-Original-URI, Weir-Key"},
		{"X-Weir-State: allowed", "X-Weir-Decision: allow", "X-Weir-Restarts: 1"},
		{"Cookie: weir=" + strings.Repeat("c", 6<<10)},
		{"Cookie: weir=" + strings.Repeat("c", 30<<10)},
		{strings.Repeat("X-Many: x\r\n", 60) + "X-Last: x"},
		{strings.Repeat("X-Many: x\r\n", 500) + "X-Last: x"},
		{"X-Long-" + strings.Repeat("n", 5<<10) + ": x"},
		{"If-None-Match: *", "If-Modified-Since: Sat, 29 Oct 2044 19:43:31 GMT", "Range: bytes=0-0"},
		{"Content-Length: 0"},
	} {
		subject := fmt.Sprintf("X-User: GATEWAY header %d", i)
		name := "header " + headers[0][:min(len(headers[0]), 40)]
		all = append(all, attack{name, request(append([]string{subject}, headers...)...)},
			attack{name + " first", request(append(append([]string{}, headers...), subject)...)})
	}
	return all
}

func hostileRequests() (all []attack) {
	const subject = "Host: gateway.test\r\nConnection: close\r\nX-User: GATEWAY request "
	for i, raw := range []string{
		"GET /%0d%0aWeir-Plan:%20enterprise HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /x%00y HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /..%2f..%2f_weir_check HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /_weir_check HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /v1/authorize HTTP/1.1\r\nSUBJECT\r\nWeir-Key: KEY\r\n\r\n",
		"GET //_weir_check HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /orders?Weir-Plan=enterprise&x=%22%7d HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /" + strings.Repeat("x", 3<<10) + " HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /" + strings.Repeat("x", 20<<10) + " HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET http://127.0.0.1:1/v1/authorize HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"GET /orders HTTP/1.0\r\nSUBJECT\r\n\r\n",
		"HEAD /orders HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"TRACE /orders HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"CONNECT 127.0.0.1:1 HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"BREW /orders HTTP/1.1\r\nSUBJECT\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: 44\r\n\r\nGET /v1/authorize HTTP/1.1\r\nWeir-Cost: 0\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nWeir-Plan: enterprise\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/authorize HTTP/1.1\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: +4\r\n\r\nbody",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: 100\r\n\r\ncut off",
		"POST /orders HTTP/1.1\r\nSUBJECT\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody",
		"GET /orders HTTP/1.1\r\nSUBJECT\r\nHost: other.test\r\n\r\n",
		"GET /orders HTTP/1.1\nSUBJECT\nWeir-Plan: enterprise\n\n",
		"GET /orders HTTP/1.1\r\nHost: gateway.test\r\n\r\nGET /orders HTTP/1.1\r\nSUBJECT\r\nWeir-Plan: enterprise\r\n\r\n",
		"GET /orders\r\n\r\n",
		"\r\n\r\nGET /orders HTTP/1.1\r\nSUBJECT\r\n\r\n",
	} {
		all = append(all, attack{fmt.Sprintf("request %d %.40q", i, raw), strings.ReplaceAll(raw, "SUBJECT", subject+fmt.Sprint(i))})
	}
	return all
}
