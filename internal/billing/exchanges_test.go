package billing_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
)

var exchanges = flag.String("exchanges", "", "append what was asked of the fake of Stripe, and its answers, to this file; tests/stripe validates them")

// exchange is a line of the file: a request to the fake, and its answer.
type exchange struct {
	Test    string
	Method  string
	URI     string
	Header  http.Header
	Body    string
	Status  int
	Answer  json.RawMessage
	Answers string // the Content-Type
}

var exchangesMu sync.Mutex

// recorded returns a handler that appends each exchange to the file, if there is one. An exchange
// whose answer is lost is not recorded.
func recorded(t *testing.T, next http.Handler) http.Handler {
	if *exchanges == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
		appendExchange(t, exchange{
			Test: t.Name(), Method: r.Method, URI: r.RequestURI, Header: r.Header, Body: string(body),
			Status: answer.Code, Answer: answer.Body.Bytes(), Answers: answer.Header().Get("Content-Type"),
		})
	})
}

func appendExchange(t *testing.T, e exchange) {
	exchangesMu.Lock()
	defer exchangesMu.Unlock()
	file, err := os.OpenFile(*exchanges, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Error(err)
		return
	}
	if err := json.NewEncoder(file).Encode(e); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}
