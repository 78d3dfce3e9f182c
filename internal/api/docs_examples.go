package api

import (
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"
)

// docsExamples are the bodies that /docs suggests, by operation. Each is valid if the rule, plan or
// subject exists. Without an example, the suggestion would be a body of zeros, which is refused.
var docsExamples = map[string]string{
	"check":       `{"subject": "user_42", "resource": "orders:create"}`,
	"check-short": `{"subject": "user_42", "resource": "orders:create"}`,
	"check-batch": `{"checks": [{"subject": "user_42", "resource": "orders:create"}, {"subject": "user_43", "cost": 5, "dry_run": true}]}`,

	"grant-lease":  `{"subject": "user_42", "resource": "orders:create", "units": 100}`,
	"return-lease": `{"units": 40, "allowed": 60}`,

	"patch-tenant": `{"name": "Acme Inc."}`,

	"create-key": `{"name": "checkout", "scopes": ["check"]}`,
	"patch-key":  `{"name": "checkout, old"}`,
	"rotate-key": `{"overlap": "24h"}`,

	"create-rule": `{"slug": "orders", "resource": "orders:*", "limit": 100, "window": "1m"}`,
	"put-rule":    `{"resource": "orders:*", "algorithm": "token_bucket", "limit": 100, "window": "1m", "burst": 200}`,
	"patch-rule":  `{"limit": 200, "penalty": "30s"}`,

	"create-route": `{"slug": "shop", "subject": ["jwt:sub", "ip"], "resources": [{"match": "GET /orders/{id}"}, {"match": "POST /orders", "resource": "orders:create", "cost": 5}]}`,
	"put-route":    `{"subject": ["header:X-Api-Key", "ip"], "fail": "open"}`,
	"patch-route":  `{"denied_status": 403, "attributes": {"ip": "ip"}}`,

	"create-plan":    `{"slug": "business", "name": "Business"}`,
	"put-plan":       `{"name": "Business", "description": "For companies"}`,
	"patch-plan":     `{"description": null}`,
	"put-plan-limit": `{"limit": 1000}`,

	"publish-plan":          `{}`,
	"preview-plan":          `{"limits": {}}`,
	"create-plan-migration": `{"dry_run": true}`,

	"put-subject":             `{"state": "active", "labels": {"region": "eu"}, "billing_ref": "cus_8123"}`,
	"patch-subject":           `{"labels": {"region": "us"}}`,
	"put-override":            `{"limit": 5000, "reason": "launch week", "expires_at": "2099-12-31T23:59:59Z"}`,
	"patch-security-settings": `{"session_idle": "1h", "max_sessions": 5}`,
	"patch-portal":            `{"brand": "Acme", "accent": "#1A73E8", "frame_origins": ["https://app.example.com"]}`,
	"create-portal-link":      `{"expires_in": "1h"}`,
	"grant-credits":           `{"rule": "api-requests", "units": 5000, "expires_at": "2099-01-01T00:00:00Z", "reference": "invoice-1001"}`,
	"approve-limit-request":   `{"for": "7d"}`,
	"refuse-limit-request":    `{"answer": "Please choose the plan Business."}`,

	"reset-subject": `{"reason": "a mistake of ours"}`,

	"create-billing-endpoint": `{"provider": "stripe", "name": "Stripe", "signing_secrets": ["whsec_from_stripe"], "subject_from": "metadata.user_id", "grace_days": 7}`,
	"patch-billing-endpoint":  `{"add_signing_secret": "whsec_another_one"}`,
	"put-billing-price":       `{"plan": "default", "multiply": true}`,

	"create-notification-endpoint": `{"url": "https://example.com/weir", "types": ["quota.reached"]}`,
	"patch-notification-endpoint":  `{"description": "on-call channel", "types": null}`,
	"rotate-notification-secret":   `{"overlap": "24h"}`,

	"create-member": `{"email": "ada@example.com", "role": "viewer"}`,
	"patch-member":  `{"role": "editor"}`,

	"put-config": `{"rules": [{"slug": "reports", "resource": "reports:*", "limit": 100, "window": "1m"}]}`,

	"simulate": `{"rules": [{"slug": "orders", "limit": 2, "window": "1m"}],
		"requests": [{"at_ms": 0, "subject": "ada"}, {"at_ms": 1000, "subject": "ada"}, {"at_ms": 2000, "subject": "ada"}]}`,

	"create-tenant":       `{"slug": "globex", "name": "Globex"}`,
	"patch-tenant-by-ref": `{"name": "Globex Inc."}`,
}

// docsFiles are the files that /docs suggests for operations whose body is not JSON, by media type.
var docsFiles = map[string]map[string]string{
	"import-subjects": {
		csvType:        "subject,state,billing_ref,labels\r\nuser_42,active,cus_5127,\"{\"\"region\"\":\"\"eu\"\"}\"\r\nuser_43,blocked,,\r\n",
		jsonLinesType:  `{"subject":"user_42","billing_ref":"cus_5127","labels":{"region":"eu"}}` + "\n" + `{"subject":"user_43","state":"blocked"}` + "\n",
		olderLinesType: `{"subject":"user_44"}` + "\n",
	},
}

// addExamples adds the examples to the document.
func addExamples(doc *huma.OpenAPI) {
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			for contentType, file := range docsFiles[op.OperationID] {
				op.RequestBody.Content[contentType].Example = file
			}
			example, found := docsExamples[op.OperationID]
			if !found || op.RequestBody == nil {
				continue
			}
			for _, contentType := range []string{jsonType, mergePatchType} {
				if body := op.RequestBody.Content[contentType]; body != nil {
					body.Example = json.RawMessage(example)
				}
			}
		}
	}
}
