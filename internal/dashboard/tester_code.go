package dashboard

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"weir/internal/check"
)

// codeSample is a program that sends a check, for copying.
type codeSample struct{ ID, Language, Text string }

// codeSamples are programs that send this check. They read WEIR_URL and WEIR_KEY from the
// environment, so that they contain no key.
func codeSamples(r *check.Request) []codeSample {
	return []codeSample{{"curl", "curl", curlCheck(r)}, {"go", "Go", goCheck(r)}, {"ts", "TypeScript", typeScriptCheck(r)}}
}

// checkJSON returns the body of the check, without defaults.
func checkJSON(r *check.Request, indent string) string {
	body := struct {
		Subject    string            `json:"subject"`
		Resource   string            `json:"resource,omitempty"`
		Cost       *int64            `json:"cost,omitempty"`
		Plan       string            `json:"plan,omitempty"`
		Attributes map[string]string `json:"attributes,omitempty"`
	}{Subject: r.Subject, Plan: r.Plan}
	if r.Resource != "default" {
		body.Resource = r.Resource
	}
	if r.Cost != 1 {
		body.Cost = &r.Cost
	}
	for _, a := range r.Attributes {
		if body.Attributes == nil {
			body.Attributes = map[string]string{}
		}
		body.Attributes[a.Name] = a.Value
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // templ escapes it on pages
	if indent != "" {
		encoder.SetIndent(indent, "  ")
	}
	_ = encoder.Encode(body) // strings and numbers can be encoded
	return strings.TrimSpace(b.String())
}

func curlCheck(r *check.Request) string {
	quoted := "'" + strings.ReplaceAll(checkJSON(r, ""), "'", `'\''`) + "'"
	return `curl "$WEIR_URL/v1/check" \
  -H "Authorization: Bearer $WEIR_KEY" \
  -H 'Content-Type: application/json' \
  -d ` + quoted
}

func goCheck(r *check.Request) string {
	body := checkJSON(r, "")
	quoted := "`" + body + "`"
	if !strconv.CanBackquote(body) {
		quoted = strconv.Quote(body)
	}
	return strings.ReplaceAll(goTemplate, "BODY", quoted)
}

const goTemplate = `package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	body := strings.NewReader(BODY)
	request, err := http.NewRequest(http.MethodPost, os.Getenv("WEIR_URL")+"/v1/check", body)
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("WEIR_KEY"))
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		log.Fatal(response.Status)
	}
	var decision struct {
		Allowed      bool   ` + "`json:\"allowed\"`" + `
		RetryAfterMS *int64 ` + "`json:\"retry_after_ms\"`" + ` // nil: no wait helps
	}
	if err := json.NewDecoder(response.Body).Decode(&decision); err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", decision.Allowed)
}
`

func typeScriptCheck(r *check.Request) string {
	return "const response = await fetch(`${process.env.WEIR_URL}/v1/check`, {\n" + `  method: "POST",
  headers: {
` + "    Authorization: `Bearer ${process.env.WEIR_KEY}`,\n" + `    "Content-Type": "application/json",
  },
  body: JSON.stringify(` + checkJSON(r, "  ") + `),
});
if (response.status !== 200 && response.status !== 429) {
  throw new Error(` + "`Weir answered ${response.status}`" + `);
}
const decision: { allowed: boolean; retry_after_ms: number | null } = await response.json();
console.log("allowed:", decision.allowed);

export {};
`
}
