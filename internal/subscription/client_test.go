package subscription

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A proxy in front of the provider may repeat the request in an answer that is not JSON. The error,
// which is logged and shown to members, does not have the key.
func TestErrorsOfTheProviderHaveNoKey(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusBadRequest} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "refused: "+r.Header.Get("Authorization"))
		}))
		defer server.Close()
		c := NewClient("rk_test_secret", server.URL, nil)
		_, err := c.Subscription(t.Context(), "sub_1")
		require.ErrorContains(t, err, "cannot be read")
		require.NotContains(t, err.Error(), "rk_test_secret")
		err = c.Subscriptions(t.Context(), "", func(Fetched) error { return nil })
		require.Error(t, err)
		require.NotContains(t, err.Error(), "rk_test_secret")
	}
	c := NewClient("rk_test_secret", "http://127.0.0.1:1", nil)
	_, err := c.Subscription(t.Context(), "sub_1")
	require.ErrorContains(t, err, "refused", "an error of the network says what it is")
}
