package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// seen is what a client sees of an answer.
type seen struct {
	status  int
	length  int64
	header  http.Header
	body    string
	trailer http.Header
	err     bool
}

// secureFor starts a server with TLS for a handler, and returns its address and a client.
func secureFor(t *testing.T, change func(*Config)) (url string, client *http.Client) {
	t.Helper()
	certificate := httptest.NewTLSServer(nil)
	t.Cleanup(certificate.Close)
	config := certificate.TLS.Clone()
	config.NextProtos = []string{"h2"}
	_, addr := serveFor(t, func(c *Config) {
		c.Handshake = func(socket net.Conn) (net.Conn, *tls.ConnectionState, error) {
			conn := tls.Server(socket, config)
			if err := conn.Handshake(); err != nil {
				return nil, nil, err
			}
			state := conn.ConnectionState()
			return conn, &state, nil
		}
		change(c)
	})
	return "https://" + addr, http2Client(t, certificate)
}

func http2Client(t *testing.T, trusted *httptest.Server) *http.Client {
	config := trusted.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: config, Protocols: protocols, DisableCompression: true, ExpectContinueTimeout: time.Minute}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patient, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (r seen) String() string {
	return fmt.Sprintf("%d, %d bytes announced, %v, body of %d: %.80q, %v, error %v", r.status, r.length, r.header, len(r.body), r.body, r.trailer, r.err)
}

// Handlers answer as they do behind the HTTP/2 server of net/http.
func TestHandlersAnswerLikeNetHTTP(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	handlers := map[string]http.HandlerFunc{
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"short":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<p>short</p>") },
		"status":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"not modified": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"body of none": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); err == nil {
				panic("a body is not allowed")
			}
		},
		"typed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Add("Set-Cookie", "a=1")
			w.Header().Add("Set-Cookie", "b=2")
			_, _ = io.WriteString(w, "typed")
		},
		"encoded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "not really")
		},
		"many small writes": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3000 {
				_, _ = fmt.Fprintf(w, "%d,", i)
			}
		},
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "one ")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "two")
		},
		"flushed first": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "later")
		},
		"big": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, big) },
		"file": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.css", time.Unix(1e9, 0), strings.NewReader(big))
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusSeeOther)
		},
		"trailer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("Sum", "4")
		},
		"trailer without body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(http.TrailerPrefix+"Sum", "0")
		},
		"request": func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, r.Method, r.URL, r.RequestURI, r.Proto, r.ContentLength, r.Header["Cookie"], r.Header["X-Two"], r.TLS != nil, r.Host != "",
				r.Context().Value(http.LocalAddrContextKey) != nil, r.RemoteAddr != "", len(body), err)
		},
		"unread body": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) },
		"limited body": func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1000)); err != nil {
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			}
		},
		"late body": func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second))
			if r.ContentLength == 0 {
				return
			}
			for err := error(nil); err == nil; _, err = r.Body.Read(make([]byte, 1<<20)) {
				continue
			}
		},
		"aborted": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handlers[r.Header.Get("Do")](w, r) })
	theirs := httptest.NewUnstartedServer(handler)
	theirs.EnableHTTP2 = true
	theirs.StartTLS()
	t.Cleanup(theirs.Close)
	ours, client := secureFor(t, func(c *Config) { c.Handler = handler })
	for name := range handlers {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT"} {
			for _, expects := range []string{"", "100-continue"} {
				if expects != "" && method != "POST" {
					continue
				}
				t.Run(strings.TrimSpace(method+" "+name+" "+expects), func(t *testing.T) {
					ask := func(client *http.Client, url string) (got seen) {
						var body io.Reader
						switch method {
						case "POST":
							body = strings.NewReader(big[:300_000])
						case "PUT": // of unknown length
							body = io.MultiReader(strings.NewReader("some"))
						}
						r, err := http.NewRequestWithContext(t.Context(), method, url+"/path?a=b&c=%20d", body)
						require.NoError(t, err)
						r.Header = http.Header{"Do": {name}, "Cookie": {"a=b; c=d"}, "X-Two": {"1", "2"}}
						if expects != "" {
							r.Header.Set("Expect", expects)
						}
						response, err := client.Do(r)
						if err != nil {
							return seen{err: true}
						}
						defer response.Body.Close()
						text, err := io.ReadAll(response.Body)
						require.NotEmpty(t, response.Header.Get("Date"))
						response.Header.Del("Date")
						return seen{response.StatusCode, response.ContentLength, response.Header, string(text), response.Trailer, err != nil}
					}
					want := ask(http2Client(t, theirs), theirs.URL)
					got := ask(client, ours)
					want.body = strings.ReplaceAll(want.body, theirs.URL, ours)
					require.Equal(t, want.String(), got.String())
					require.Equal(t, want.body, got.body)
				})
			}
		}
	}
}

// A handler that has set no deadline has those of the server. It can move them.
func TestHandlersHaveDeadlines(t *testing.T) {
	failed := make(chan error, 1)
	url, client := secureFor(t, func(c *Config) {
		c.Limits.Request, c.Limits.Response = time.Millisecond, time.Millisecond
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			switch r.URL.Path {
			case "/body":
				require.NoError(t, control.SetWriteDeadline(time.Time{}))
				_, err := io.ReadAll(r.Body)
				failed <- err
			case "/answer":
				<-r.Context().Done()
				failed <- r.Context().Err()
			case "/patient":
				require.NoError(t, control.SetReadDeadline(time.Time{}))
				require.NoError(t, control.SetWriteDeadline(time.Now().Add(patient)))
				text, err := io.ReadAll(r.Body)
				failed <- err
				_, _ = w.Write(text)
			}
		})
	})
	post := func(path string, body io.Reader) (string, error) {
		response, err := client.Post(url+path, "text/plain", body)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	never, end := io.Pipe()
	defer end.Close()
	_, err := post("/body", never)
	require.NoError(t, err)
	require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
	_, err = post("/answer", nil)
	require.ErrorContains(t, err, http2.ErrCodeInternal.String())
	require.ErrorIs(t, <-failed, context.Canceled)
	in, out := io.Pipe()
	go func() {
		time.Sleep(20 * time.Millisecond) // longer than the server's deadline
		_, _ = io.WriteString(out, "late")
		_ = out.Close()
	}()
	text, err := post("/patient", in)
	require.NoError(t, err)
	require.NoError(t, <-failed)
	require.Equal(t, "late", text)
}

// A direct call that Config.Call does not answer is answered by the handler, with the whole body.
func TestCallsThatTheHandlerAnswers(t *testing.T) {
	_, addr := serveFor(t, func(c *Config) {
		c.Call = func(s *Call) bool {
			if s.Head().Get("do") == "handler" {
				_, _ = s.Body(3, time.Now().Add(patient)) // waits, and leaves the body where it is
				return false
			}
			return echo(s)
		}
	})
	c := dial(t, addr)
	for i := range uint32(200) { // more than there are idle workers and free streams
		id := 4*i + 1
		c.open(id, callPath, false, "do", "handler")
		c.data(id, false, "abc")
		c.open(id+2, callPath, true)
		c.data(id, true, "def")
		answers := c.answers(2)
		require.Equal(t, "abcdef", answers[id].body)
		require.Equal(t, "6", answers[id].trailer["sum"])
		require.Empty(t, answers[id+2].body)
	}
}

// Answers in plain HTTP arrive with any size of windows, also at a client without a table.
func TestPlainAnswers(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 100_000)
	url, client := secureFor(t, func(c *Config) {
		c.Call = func(s *Call) bool {
			status := 200
			if s.Head().Get("do") == "deny" {
				status = 429
			}
			block := AppendField(AppendField(AppendStatus(nil, status), "X-Long", strings.Repeat("v", 300)), "content-type", []byte("text/plain"))
			body := long
			if s.Head().Get("do") == "empty" {
				body = nil
			}
			s.AnswerHTTP(block, body)
			return true
		}
	})
	for do, want := range map[string]struct{ status, length int }{"": {200, len(long)}, "deny": {429, len(long)}, "empty": {200, 0}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+callPath, nil)
		require.NoError(t, err)
		r.Header.Set("Do", do)
		response, err := client.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		_ = response.Body.Close()
		require.Equal(t, want.status, response.StatusCode)
		require.Len(t, body, want.length)
		require.Equal(t, strings.Repeat("v", 300), response.Header.Get("X-Long"))
		require.Equal(t, "text/plain", response.Header.Get("Content-Type"))
	}

	_, addr := serveFor(t, func(c *Config) {
		c.Call = func(s *Call) bool { s.AnswerHTTP(AppendField(AppendStatus(nil, 204), "a", "b"), nil); return true }
	})
	tableless := dial(t, addr)
	require.NoError(t, tableless.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	tableless.open(1, callPath, true)
	require.Equal(t, "204", tableless.answer(1).head[":status"])
}

// Connection: close of a handler asks the client to leave, with HTTP/2's own means.
func TestConnectionClose(t *testing.T) {
	_, addr := serveFor(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "bye")
		})
	})
	c := dial(t, addr)
	c.open(1, handlerPath, true)
	f := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
	require.Equal(t, http2.ErrCodeNo, f.(*http2.GoAwayFrame).ErrCode)
}
