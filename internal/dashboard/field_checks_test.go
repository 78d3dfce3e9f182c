package dashboard

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// The browser gets the messages of the server for what it can check itself.
func TestFormsHaveTheMessagesOfTheServer(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	form := b.get("/rules/new").body
	require.NotContains(t, form, "novalidate>")
	require.Contains(t, form, `data-pattern="`+sentence(limit.InvalidSlug.Message)+`"`)
	require.Contains(t, form, `data-limit-range="`+sentence(limit.FixedWindow.OutsideLimit().Message)+`"`)
	require.Contains(t, form, `data-missing="Enter the limit."`)
	got := b.post("/rules", s.planForm("slug", "x y", "limit", "0", "algorithm", "fixed_window", "window", "1", "window_unit", "m", "mode", "enforce", "resource", "*"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, sentence(limit.InvalidSlug.Message))
	require.Contains(t, got.body, sentence(limit.FixedWindow.OutsideLimit().Message))
	require.Contains(t, b.get("/routes/new").body, `data-pattern="`)
}
