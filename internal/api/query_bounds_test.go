package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

// A refusal names at most 100 unknown parameters, and says how many there are. Each name is
// compared with the known ones, so 4000 would take 20 ms of a processor. So many are not read.
func TestManyUnknownParameters(t *testing.T) {
	t.Parallel()
	known := map[string]parameter{"limit": {}, "after": {}}
	var names []string
	for i := range 4000 {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	p := checkQuery(strings.Join(names, "&"), known)
	require.Equal(t, http.StatusBadRequest, p.Status)
	require.Equal(t, "The query string has more than 200 parameters.", p.Detail)
	p = checkQuery(strings.Join(names[:maxParameters], "&"), known)
	require.Equal(t, http.StatusBadRequest, p.Status)
	require.Len(t, p.Errors, maxProblemFields)
	require.Equal(t, "200 fields are not valid; errors names 100 of them.", p.Detail)
	for i, f := range p.Errors {
		require.Equal(t, i >= suggestions, f.Fix == "Omit it.", "the nearest known names are looked up for a few only")
	}
	p = checkQuery("limitt=1", known)
	require.Equal(t, "query:limitt", p.Errors[0].Pointer)
}

// A list has at most as many items as there are values. The validator has an error for each item.
func TestLongListsInQueries(t *testing.T) {
	t.Parallel()
	op := &huma.Operation{Parameters: []*huma.Param{
		{Name: "group_by", In: "query", Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Enum: []any{"rule", "plan"}}}},
	}}
	known := queryParameters(op)
	require.Nil(t, checkQuery("group_by=rule,plan", known))
	p := checkQuery("group_by=rule"+strings.Repeat(",rule", 3000), known)
	require.Equal(t, http.StatusUnprocessableEntity, p.Status)
	require.Len(t, p.Errors, 1)
	require.Equal(t, "must have at most 2 items", p.Errors[0].Message)
}

// countedError is an error of the validator that counts how often one is converted.
type countedError struct {
	error
	converted *int
}

func (e countedError) ErrorDetail() *huma.ErrorDetail {
	*e.converted++
	return &huma.ErrorDetail{Message: "expected string", Location: "body.a"}
}

// Of very many invalid fields, the first 100 are converted, in order.
func TestManyInvalidFieldsInASmallBody(t *testing.T) {
	s := newAdminStack(t)
	p := s.call(s.readKey, http.MethodPost, "/v1/simulate", repeated(`{"rules":[{"slug":"a","limit":1,"window":"1s"}],"requests":[`, `{}`, `]}`, 4000)).
		problem(422, codeInvalidRequest)
	require.Len(t, p.Errors, maxProblemFields)
	require.Regexp(t, `^\d{4} fields are not valid; errors names 100 of them\.$`, p.Detail)
	for _, f := range p.Errors {
		require.Regexp(t, `^/requests/\d+/(at_ms|subject)$`, f.Pointer)
		require.Equal(t, isRequired.Message, f.Message)
	}

	var errs []error
	converted := 0
	for range 4000 {
		errs = append(errs, countedError{converted: &converted})
	}
	require.Len(t, validationProblem(http.StatusUnprocessableEntity, "", errs, nil).Errors, maxProblemFields)
	require.Equal(t, maxProblemFields, converted)
}
