package provider

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"

	"weir/terraform/internal/client"
)

// addError adds an error of the API. Invalid fields become errors of their attributes.
func addError(diags *diag.Diagnostics, attributes []*attribute, what string, err error) {
	var p *client.Problem
	if !errors.As(err, &p) {
		diags.AddError(what, err.Error()+"\n\nCheck the address of the server (WEIR_URL, or url of the provider) and the network.")
		return
	}
	summary := fmt.Sprintf("%s: %s", what, p.Title)
	tail := fmt.Sprintf("\n\nWeir answered status %d", p.Status)
	if p.Code != "" {
		tail += fmt.Sprintf(" with the code %s, which /docs/errors/%s of the server explains", p.Code, strings.ReplaceAll(strings.ToLower(p.Code), "_", "-"))
	}
	if p.RequestID != "" {
		tail += fmt.Sprintf(" (request %s)", p.RequestID)
	}
	tail += "."
	added := false
	for _, field := range p.Errors {
		if at, found := pathOfPointer(attributes, field.Pointer); found {
			diags.AddAttributeError(at, summary, field.String()+tail)
			added = true
		}
	}
	if added && !slices.ContainsFunc(p.Errors, func(f client.Field) bool {
		_, found := pathOfPointer(attributes, f.Pointer)
		return !found
	}) {
		return
	}
	var lines []string
	if p.Detail != "" {
		lines = append(lines, p.Detail)
	}
	for _, field := range p.Errors {
		if _, found := pathOfPointer(attributes, field.Pointer); !found {
			lines = append(lines, field.String())
		}
	}
	if fix := fixOf(p); fix != "" {
		lines = append(lines, fix)
	}
	diags.AddError(summary, strings.Join(lines, "\n")+tail)
}

// fixOf says what to do about problems that are not about fields.
func fixOf(p *client.Problem) string {
	switch {
	case p.Status == http.StatusUnauthorized:
		return "Set WEIR_KEY, or key of the provider, to an API key of the tenant that is in force."
	case p.Code == "INSUFFICIENT_SCOPE":
		return "Use an API key with this scope. Reads require read; changes of keys, members, billing and notifications require manage, all others write."
	case p.Code == "GRANT_EXCEEDED":
		return "Use an API key whose scopes and expiry include those of the new key."
	case p.Code == "SLUG_TAKEN":
		return "To manage the existing object, import it: terraform import RESOURCE SLUG."
	case p.Code == "MEMBER_EXISTS":
		return "To manage the existing member, import it: terraform import RESOURCE EMAIL."
	case p.Code == "PLAN_IN_USE":
		return "Give its subjects another plan first."
	case p.Code == "DEFAULT_PLAN":
		return "Set default = true on another plan, and omit it here."
	case p.Status == http.StatusPreconditionFailed:
		return "Somebody else changed the object after Terraform read it. Run the plan again."
	case p.Status == http.StatusNotFound:
		return "It does not exist, or belongs to another tenant."
	}
	return ""
}
