package dashboard

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"weir/internal/check"
)

// codeSample is a program that sends a check, for copying.
type codeSample struct{ ID, Language, Text string }

// codeSamples are programs that send this check, with the clients of docs/clients.md. They read
// WEIR_URL and WEIR_KEY from the environment, so that they contain no key.
func codeSamples(r *check.Request) []codeSample {
	return []codeSample{
		{"curl", "curl", curlCheck(r)}, {"go", "Go", goCheck(r)}, {"ts", "TypeScript", typeScriptCheck(r)},
		{"python", "Python", pythonCheck(r)},
	}
}

// checkJSON returns the body of the check, without defaults.
func checkJSON(r *check.Request) string {
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
	_ = encoder.Encode(body)     // strings and numbers can be encoded
	return strings.TrimSpace(b.String())
}

func curlCheck(r *check.Request) string {
	quoted := "'" + strings.ReplaceAll(checkJSON(r), "'", `'\''`) + "'"
	return `curl "$WEIR_URL/v1/check" \
  -H "Authorization: Bearer $WEIR_KEY" \
  -H 'Content-Type: application/json' \
  -d ` + quoted
}

// argument is an argument of a check as source code.
type argument struct{ name, value string }

// checkArguments returns the arguments that are no defaults, in the order of the clients. text
// quotes a text, and pairs writes the attributes, which are sorted.
func checkArguments(r *check.Request, text func(string) string, pairs func(keysAndValues string) string) []argument {
	out := []argument{{"subject", text(r.Subject)}}
	if r.Resource != "default" {
		out = append(out, argument{"resource", text(r.Resource)})
	}
	if r.Cost != 1 {
		out = append(out, argument{"cost", strconv.FormatInt(r.Cost, 10)})
	}
	if r.Plan != "" {
		out = append(out, argument{"plan", text(r.Plan)})
	}
	if len(r.Attributes) > 0 {
		sorted := slices.SortedFunc(slices.Values(r.Attributes), func(a, b check.Attribute) int { return strings.Compare(a.Name, b.Name) })
		list := make([]string, len(sorted))
		for i, a := range sorted {
			list[i] = text(a.Name) + ": " + text(a.Value)
		}
		out = append(out, argument{"attributes", pairs(strings.Join(list, ", "))})
	}
	return out
}

// jsonText returns a JSON string, which is a literal of JavaScript and Python, too.
func jsonText(s string) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // templ escapes it on pages
	_ = encoder.Encode(s)        // a string can be encoded
	return strings.TrimSpace(b.String())
}

func inBraces(pairs string) string { return "{" + pairs + "}" }

func goCheck(r *check.Request) string {
	call, fields := "Check", []string{}
	for _, a := range checkArguments(r, strconv.Quote, func(pairs string) string { return "map[string]string{" + pairs + "}" }) {
		if a.name == "cost" && a.value == "0" {
			call = "Peek"
			continue
		}
		fields = append(fields, strings.ToUpper(a.name[:1])+a.name[1:]+": "+a.value)
	}
	return strings.NewReplacer("CALL", call, "FIELDS", strings.Join(fields, ", ")).Replace(goTemplate)
}

const goTemplate = `package main

import (
	"context"
	"fmt"
	"log"
	"os"

	weir "github.com/weir-dev/weir-go"
)

func main() {
	client, err := weir.New(os.Getenv("WEIR_URL"), os.Getenv("WEIR_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	decision, err := client.CALL(context.Background(), weir.Check{FIELDS})
	if err != nil {
		log.Fatal(err) // the call is wrong: the error names the field and the fix
	}
	fmt.Println("allowed:", decision.Allowed)
}
`

func typeScriptCheck(r *check.Request) string {
	fields := []string{}
	for _, a := range checkArguments(r, jsonText, inBraces) {
		fields = append(fields, a.name+": "+a.value)
	}
	return `import { Client } from "@weir-dev/client";

const client = new Client({ url: process.env.WEIR_URL, key: process.env.WEIR_KEY });
const decision = await client.check({ ` + strings.Join(fields, ", ") + ` });
console.log("allowed:", decision.allowed);
`
}

func pythonCheck(r *check.Request) string {
	arguments := []string{}
	for _, a := range checkArguments(r, jsonText, inBraces) {
		if a.name != "subject" && a.name != "resource" {
			a.value = a.name + "=" + a.value
		}
		arguments = append(arguments, a.value)
	}
	return `import os

from weir_client import Client

client = Client(os.environ["WEIR_URL"], os.environ["WEIR_KEY"])
decision = client.check(` + strings.Join(arguments, ", ") + `)
print("allowed:", decision.allowed)
`
}
