package api

import (
	"maps"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
	"weir/internal/route"
)

// The document has the bounds of a body, wherever they are validated. huma refuses invalid types by
// the same schemas. The ranges of package limit and of the store are added only to the document: if
// huma validated them, a body with a number out of range and an invalid window would report only
// the number. TestBounds tries both sides of each bound.

// keywords are members of a JSON schema.
type keywords map[string]any

const (
	maxNameText   = 200 // characters
	maxLongText   = 2000
	maxReasonText = 500
	maxSlug       = 63
	maxLabels     = 32
)

var (
	slugText  = keywords{"minLength": 1, "maxLength": maxSlug, "pattern": "^[a-z0-9-]+$"}
	nameText  = keywords{"maxLength": maxNameText}
	longText  = keywords{"maxLength": maxLongText}
	limitOf   = keywords{"minimum": 1, "maximum": limit.MaxFixedLimit}
	burstOf   = keywords{"minimum": 1, "maximum": limit.MaxLimit}
	subjectOf = keywords{"minLength": 1, "maxLength": limit.MaxNameBytes}
	neverNull = keywords{"type": nil} // only the type, which describeBounds adds

	limitBounds    = map[string]keywords{"limit": limitOf, "burst": burstOf}
	planLimitOf    = with(limitBounds, "warn_at", keywords{"minimum": 0, "maximum": 1})
	overrideBounds = with(limitBounds, "reason", keywords{"maxLength": maxReasonText})
	subjectBounds  = map[string]keywords{"billing_ref": {"maxLength": limit.MaxNameBytes}, "labels": {"maxProperties": maxLabels}}
	planBounds     = map[string]keywords{"name": nameText, "description": longText}
	sourcesOf      = keywords{"minItems": 1, "maxItems": route.MaxSources}
	routeCost      = keywords{"minimum": 0, "maximum": limit.MaxFixedLimit}
	routeResource  = keywords{"minLength": 1, "maxLength": limit.MaxNameBytes, "pattern": "^[^*]*$"}
	routeBounds    = map[string]keywords{
		"name": nameText, "description": longText, "subject": sourcesOf, "resources": {"maxItems": route.MaxTemplates},
		"default_resource": routeResource, "cost": routeCost, "attributes": {"maxProperties": limit.MaxAttributes},
		"denied_status": {"enum": []any{429, 403, nil}},
	}
	onlyName = map[string]keywords{"name": nameText}
)

// bodyBounds are the bounds of the fields of bodies, by name of the schema.
var bodyBounds = map[string]map[string]keywords{
	"RuleCreate": ruleBounds(slugText),
	"RulePut":    ruleBounds(neverNull),
	"RulePatch":  ruleBounds(neverNull),

	"RouteCreate": with(routeBounds, "slug", slugText),
	"RoutePut":    with(routeBounds, "slug", neverNull),
	"RoutePatch": with(with(routeBounds, "slug", neverNull), "subject",
		keywords{"type": nil, "minItems": 1, "maxItems": route.MaxSources}),
	"RouteTemplateInput": {"match": {"minLength": 1, "maxLength": route.MaxMatchBytes}, "resource": routeResource, "cost": routeCost},

	"PlanCreate":     with(planBounds, "slug", slugText),
	"PlanPut":        with(planBounds, "slug", neverNull),
	"PlanPatch":      with(planBounds, "slug", neverNull),
	"PlanLimitInput": planLimitOf,

	"SubjectPut":     with(subjectBounds, "subject", neverNull),
	"SubjectPatch":   with(map[string]keywords{"billing_ref": subjectBounds["billing_ref"]}, "subject", neverNull),
	"ConfigSubject":  with(subjectBounds, "subject", subjectOf),
	"BulkSubject":    with(subjectBounds, "subject", subjectOf),
	"OverrideInput":  overrideBounds,
	"ConfigOverride": overrideBounds,

	"BillingEndpointCreate": with(onlyName, "signing_secrets", neverNull),
	"BillingEndpointPatch":  with(onlyName, "signing_secrets", neverNull),
	"BillingPricePut":       {"id": neverNull, "plan": neverNull},

	"NotificationEndpointCreate": {"description": nameText},
	"NotificationEndpointPatch":  {"description": nameText, "url": neverNull},

	"KeyCreate": onlyName,
	"KeyPatch":  with(onlyName, "scopes", neverNull),

	"TenantCreate":        with(onlyName, "slug", slugText),
	"TenantPatch":         onlyName,
	"TenantOperatorPatch": with(onlyName, "slug", neverNull),
	"MemberPatch":         {"role": neverNull},
	"ConfigTenant":        onlyName,
}

func with(bounds map[string]keywords, field string, more keywords) map[string]keywords {
	out := maps.Clone(bounds)
	out[field] = more
	return out
}

// describeBounds adds the bounds to the document, and null to the choices of fields that may be
// null.
func describeBounds(doc *huma.OpenAPI) {
	for name, schema := range doc.Components.Schemas.Map() {
		for field, property := range schema.Properties {
			more := maps.Clone(bodyBounds[name][field])
			if more == nil {
				more = keywords{}
			}
			if _, plain := more["type"]; plain {
				more["type"] = property.Type
			} else if property.Nullable && len(property.Enum) > 0 {
				more["enum"] = append(append([]any{}, property.Enum...), nil)
			}
			if len(more) > 0 {
				property.Extensions = more
			}
		}
	}
}
