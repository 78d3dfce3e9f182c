package dashboard

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Empty fields of filters do not stand in the address: the server redirects a browser without
// scripts to the address without them.
func TestAddressesHaveNoEmptyFilters(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for asked, clean := range map[string]string{
		"/decisions?subject=&rule=&show=all&since=": "/decisions?show=all",
		"/subjects?q=&plan=&state=&label=":          "/subjects",
		"/usage?rule=a%26b&plan=":                   "/usage?rule=a%26b",
	} {
		got := b.get(asked)
		require.Equal(t, http.StatusSeeOther, got.status, asked)
		require.Equal(t, clean, got.header.Get("Location"))
	}
	require.Equal(t, http.StatusOK, b.get("/decisions?show=all").status)
}
