package weir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	maxAnswer      = 1 << 20
	maxBatchAnswer = 8 << 20
)

// Version is the version of this client.
const Version = "0.1.0"

var (
	contentTypeJSON = []string{"application/json"}
	userAgent       = []string{"weir-go/" + Version}
)

// An answer is an HTTP response.
type answer struct {
	status int
	header http.Header
	body   *bytes.Buffer // from the pool; release returns it
}

var buffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, 4096)) }}

func (a *answer) release() {
	if a.body.Cap() <= 64<<10 {
		a.body.Reset()
		buffers.Put(a.body)
	}
}

// sendCheck sends one question and reads the decision. With an idempotency key, it retries once if
// the connection failed before an answer began.
func (c *Client) sendCheck(ctx context.Context, q *question) (Decision, error) {
	body := q.appendJSON(make([]byte, 0, 96+len(q.Subject)+len(q.Resource)))
	h := c.header(2)
	c.inject(ctx, h)
	var began atomic.Bool // an answer
	if q.IdempotencyKey != "" {
		// With this spelling, net/http does not find the key and does not retry the request by
		// itself. The letter case has no meaning in HTTP.
		h["idempotency-key"] = []string{q.IdempotencyKey}
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { began.Store(true) }})
	}
	a, err := c.exchange(ctx, c.checkURL, h, body, maxAnswer)
	if err != nil && q.IdempotencyKey != "" && !began.Load() && ctx.Err() == nil {
		a, err = c.exchange(ctx, c.checkURL, h.Clone(), body, maxAnswer)
	}
	if err != nil {
		return Decision{}, failureOf(ctx, err)
	}
	defer a.release()
	if err := a.undecided(); err != nil {
		return Decision{}, err
	}
	d, err := decodeDecision(a.body.Bytes())
	if err != nil {
		return Decision{}, a.nonsense(err)
	}
	word := a.header.Get("Weir-Decision")
	switch {
	case d.Allowed && strings.EqualFold(word, "allow") && a.status == http.StatusOK:
	case !d.Allowed && strings.EqualFold(word, "deny"):
	default:
		return Decision{}, a.nonsense(fmt.Errorf("Weir-Decision is %q, status %d and allowed %t", word, a.status, d.Allowed))
	}
	d.Headers = headersOf(a.header)
	return d, nil
}

// sendBatch sends many questions in one request.
func (c *Client) sendBatch(ctx context.Context, questions []question, automatic bool) ([]Decision, error) {
	body := append(make([]byte, 0, 64+128*len(questions)), `{"checks":[`...)
	for i := range questions {
		if i > 0 {
			body = append(body, ',')
		}
		body = questions[i].appendJSON(body)
	}
	body = append(body, "]}"...)
	h := c.header(1)
	if !automatic { // an automatic batch belongs to the traces of several callers
		c.inject(ctx, h)
	}
	a, err := c.exchange(ctx, c.batchURL, h, body, maxBatchAnswer)
	if err != nil {
		return nil, failureOf(ctx, err)
	}
	defer a.release()
	if err := a.undecided(); err != nil {
		return nil, err
	}
	if word := a.header.Get("Weir-Decision"); a.status != http.StatusOK || !strings.EqualFold(word, "allow") && !strings.EqualFold(word, "deny") {
		return nil, a.nonsense(fmt.Errorf("Weir-Decision is %q", word))
	}
	decisions, err := decodeBatch(a.body.Bytes(), len(questions), c.clock.Now())
	if err != nil {
		return nil, a.nonsense(err)
	}
	return decisions, nil
}

func (c *Client) header(more int) http.Header {
	h := make(http.Header, 3+more)
	h["Authorization"] = c.authorization
	h["Content-Type"] = contentTypeJSON
	h["User-Agent"] = userAgent
	return h
}

// exchange sends one request and reads the whole answer. It calls the transport directly, because
// http.Client would follow redirects and so send the key to another server.
func (c *Client) exchange(ctx context.Context, to *url.URL, h http.Header, body []byte, most int64) (*answer, error) {
	r := (&http.Request{
		Method: http.MethodPost, URL: to, Host: to.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
		// With this, net/http may use another connection if the first one was closed before a byte
		// was written. It does not resend written data, because POST is not idempotent.
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}).WithContext(ctx)
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	a := &answer{status: response.StatusCode, header: response.Header, body: buffers.Get().(*bytes.Buffer)}
	if response.ContentLength > most {
		a.release()
		return nil, tooLong(a.status, most)
	}
	_, err = a.body.ReadFrom(io.LimitReader(response.Body, most+1))
	if err == nil && int64(a.body.Len()) > most {
		err = tooLong(a.status, most)
	}
	if err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

func tooLong(status int, most int64) error {
	return &NoDecision{Cause: CauseInvalidAnswer, Status: status, Err: fmt.Errorf("the answer has more than %d bytes", most)}
}

// failureOf classifies a network error. A cancellation by the caller is returned unchanged.
func failureOf(ctx context.Context, err error) error {
	var failure *NoDecision
	var network net.Error
	switch {
	case errors.As(err, &failure):
		return failure
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Canceled
	case ctx.Err() != nil:
		return timedOut(ctx)
	case errors.As(err, &network) && network.Timeout(): // during connect
		return &NoDecision{Cause: CauseTimeout, Err: err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &NoDecision{Cause: CauseConnectionRefused, Err: err}
	case strings.Contains(err.Error(), "malformed HTTP"): // net/http has no type for it
		return &NoDecision{Cause: CauseInvalidAnswer, Err: err}
	}
	return &NoDecision{Cause: CauseConnectionLost, Err: err}
}

// errTimeout is the cause of a context that ends because of the client's timeout.
var errTimeout = errors.New("the timeout of the client has passed")

// timedOut returns the failure of a call whose context has reached its deadline: the client's
// timeout or the caller's own.
func timedOut(ctx context.Context) *NoDecision {
	cause := context.Cause(ctx)
	return &NoDecision{Cause: CauseTimeout, Err: cause, callersDeadline: cause != errTimeout}
}

// undecided returns the misuse or the failure for the status, or nil for 200 and for a 429 that may
// be a decision.
func (a *answer) undecided() error {
	switch a.status {
	case http.StatusOK:
		return nil
	case http.StatusTooManyRequests:
		if strings.EqualFold(a.header.Get("Weir-Decision"), "none") {
			return a.failure(CauseQuotaExceeded)
		}
		return nil
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
		http.StatusRequestHeaderFieldsTooLarge:
		return a.misuse()
	}
	if a.status >= 500 {
		return a.failure(CauseServerError)
	}
	return a.failure(CauseInvalidAnswer)
}

// A problem is an RFC 9457 document of the server.
type problem struct {
	Code      string       `json:"code"`
	Detail    string       `json:"detail"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors"`
}

// problem parses the answer's problem document. If the body is not one, all fields are empty, and
// the status decides.
func (a *answer) problem() problem {
	var p problem
	if json.Unmarshal(a.body.Bytes(), &p) != nil {
		return problem{}
	}
	return p
}

func (a *answer) misuse() *MisuseError {
	p := a.problem()
	m := &MisuseError{Status: a.status, Code: p.Code, Detail: p.Detail, RequestID: p.RequestID, Errors: p.Errors}
	if len(p.Errors) > 0 {
		m.Field, m.Fix = p.Errors[0].Pointer, p.Errors[0].Fix
	}
	return m
}

func (a *answer) failure(cause Cause) *NoDecision {
	n := &NoDecision{Cause: cause, Status: a.status}
	if a.status != http.StatusOK {
		n.Code = a.problem().Code
	}
	if seconds, err := strconv.ParseInt(a.header.Get("Retry-After"), 10, 32); err == nil && seconds >= 0 {
		n.RetryAfterMS = N(seconds * 1000)
	}
	return n
}

// nonsense returns the failure of an answer that is not a decision although its status says so.
func (a *answer) nonsense(err error) *NoDecision {
	n := a.failure(CauseInvalidAnswer)
	n.Err = err
	return n
}
