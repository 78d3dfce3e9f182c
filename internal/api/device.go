package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// Device logins give a program without a browser, such as the command weir, an API key that a
// member approves on the dashboard (RFC 8628). They need no key, and anybody can send them, so they
// are limited by network and in number, and a few at a time use Postgres. The limits are those of
// each instance. Checks are not affected.

const (
	deviceLoginPath = "/v1/device-logins"
	devicePollPath  = "/v1/device-logins/poll"

	maxDeviceBody    = 4 << 10         // bytes
	deviceConcurrent = 3               // requests that use Postgres
	deviceWait       = 2 * time.Second // for a turn
)

// The limits of requests, by network and for the instance. A site has less than half of the burst
// of the instance. A sign-in that waits for ten minutes polls 120 times.
var (
	deviceStarts = startRules()
	devicePolls  = throttle.Networks(limit.Rule{Slug: "address", Algorithm: limit.TokenBucket, Limit: 120, Burst: 60, Window: throttle.Every(time.Minute)})
)

func startRules() []limit.Rule {
	rules := throttle.Networks(limit.Rule{Slug: "address", Algorithm: limit.TokenBucket, Limit: 10, Burst: 10, Window: throttle.Every(10 * time.Minute)})
	rules[2].Burst = 45
	return append(rules, limit.Rule{Slug: "instance", Algorithm: limit.TokenBucket, Limit: 300, Burst: 100, Window: throttle.Every(time.Minute)})
}

// devices answers device logins.
type devices struct {
	*server
	publicURL     string
	working       chan struct{}
	starts, polls *throttle.Throttle
}

// DeviceLoginRequest asks for the codes of a sign-in.
type DeviceLoginRequest struct {
	Machine string   `json:"machine" minLength:"1" maxLength:"100" doc:"The machine that asks, such as its host name. The member sees it, and it names the key"`
	Scopes  []string `json:"scopes,omitempty" minItems:"1" maxItems:"4" enum:"check,read,write,manage" doc:"Scopes of the key; default: check, read, write"`
}

// DeviceLogin is a sign-in that waits for a member.
type DeviceLogin struct {
	DeviceCode              string `json:"device_code" doc:"Secret for polls. Do not show it"`
	UserCode                string `json:"user_code" doc:"The code that the member compares, such as BCDF-GHJK. It is no secret"`
	VerificationURI         string `json:"verification_uri" doc:"The page on which the member enters the code"`
	VerificationURIComplete string `json:"verification_uri_complete" doc:"The same page with the code. The member must confirm there"`
	ExpiresIn               int64  `json:"expires_in" doc:"Seconds until the codes expire"`
	Interval                int64  `json:"interval" doc:"Minimum seconds between two polls"`
}

// DevicePollRequest is a poll.
type DevicePollRequest struct {
	DeviceCode string `json:"device_code" doc:"The device_code of the sign-in"`
}

// DevicePoll is the state of a sign-in.
type DevicePoll struct {
	Status   string  `json:"status" enum:"pending,slow_down,approved,denied,expired" doc:"slow_down: pending, and the polls come too fast: interval is longer now. expired: also for an unknown code, or one whose key was collected"`
	Interval *int64  `json:"interval" doc:"Minimum seconds until the next poll; null if there is nothing to wait for"`
	Tenant   *string `json:"tenant" doc:"Slug of the tenant, if the sign-in is approved"`
	Key      *APIKey `json:"key,omitempty" doc:"The new key with its secret; only if the sign-in is approved, and only once"`
}

func newDevices(s *server) *devices {
	counters := throttle.Memory(time.Now)
	return &devices{
		server: s, publicURL: strings.TrimSuffix(s.PublicURL, "/"), working: make(chan struct{}, deviceConcurrent),
		starts: throttle.New("start", counters, throttle.Plain, time.Now, deviceStarts...), polls: throttle.New("poll", counters, throttle.Plain, time.Now, devicePolls...),
	}
}

// mountDevices adds device logins to r.
func mountDevices(r chi.Router, s *server) {
	d := newDevices(s)
	r.Post(deviceLoginPath, d.handle(d.mayStart, d.start))
	r.Post(devicePollPath, d.handle(d.mayPoll, d.poll))
}

// handle makes a handler of a function that answers a body.
func (d *devices) handle(may func(*http.Request) time.Duration, answer func(r *http.Request, body []byte) (status int, v any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, v, p := d.answer(w, r, may, answer)
		if p != nil {
			writeProblem(w, r, p)
			return
		}
		text, err := json.Marshal(v)
		if err != nil { // not of these types
			writeProblem(w, r, problemOf(err))
			return
		}
		w.Header()["Content-Type"], w.Header()["Cache-Control"] = jsonContentType, noStore
		w.WriteHeader(status)
		_, _ = w.Write(append(text, '\n'))
	}
}

func (d *devices) answer(w http.ResponseWriter, r *http.Request, may func(*http.Request) time.Duration,
	answer func(*http.Request, []byte) (int, any, error),
) (status int, v any, p *Problem) {
	if wait := may(r); wait > 0 {
		return 0, nil, newProblem(http.StatusTooManyRequests, codeLoginRateExceeded,
			"Too many sign-ins were requested from this address.").withRetryAfter(wholeSeconds(wait))
	}
	setBodyDeadline(w, r, checkBodyTimeout)
	body, p := d.capacity.readKeyless(r, maxDeviceBody)
	if p != nil {
		return 0, nil, p
	}
	leave, ok := d.capacity.takeKeyless(d.capacity.devices, r)
	if !ok {
		d.capacity.refuse()
		return 0, nil, overloaded()
	}
	requestFrom(r.Context()).place = leave
	if !take(r.Context(), d.working, deviceWait) {
		return 0, nil, newProblem(http.StatusServiceUnavailable, codeOverloaded, "Too many sign-ins are in progress. Try again.").withRetryAfter(1)
	}
	defer give(d.working)
	status, v, err := answer(r, body)
	var problem *Problem
	switch {
	case errors.As(err, &problem):
		return 0, nil, problem
	case err != nil:
		p := problemOf(err)
		if p.Status >= http.StatusInternalServerError {
			d.logger.ErrorContext(r.Context(), "device login failed", "request_id", requestID(r.Context()), "code", p.Code, "error", err)
		}
		return 0, nil, p
	}
	return status, v, nil
}

// mayStart counts a sign-in that is asked for. If there were too many, it returns how long to wait.
func (d *devices) mayStart(r *http.Request) time.Duration {
	names := networksOf(r).Names()
	_, wait := d.starts.Begin(r.Context(), names[0], names[1], names[2], "all")
	return wait
}

// mayPoll is mayStart for a poll.
func (d *devices) mayPoll(r *http.Request) time.Duration {
	names := networksOf(r).Names()
	_, wait := d.polls.Begin(r.Context(), names[:]...)
	return wait
}

// networksOf returns the networks of a client.
func networksOf(r *http.Request) origin.Networks { return origin.WithinHost(originOf(r).Address) }

func (d *devices) start(r *http.Request, body []byte) (int, any, error) {
	var in DeviceLoginRequest
	if err := decodeSmall(body, &in, []string{"machine", "scopes"}); err != nil {
		return 0, nil, err
	}
	n := tenants.NewDeviceLogin{Machine: in.Machine, Address: originOf(r).Address}
	if n.Scopes = scopesOf(in.Scopes); in.Scopes == nil {
		n.Scopes = []tenants.Scope{tenants.ScopeCheck, tenants.ScopeRead, tenants.ScopeWrite}
	}
	login, code, err := d.Store.StartDeviceLogin(r.Context(), n)
	if err != nil {
		return 0, nil, err
	}
	base := d.publicURL
	if base == "" {
		base = baseOf(r)
	}
	return http.StatusCreated, DeviceLogin{
		DeviceCode: code, UserCode: login.UserCode, VerificationURI: base + "/device", VerificationURIComplete: base + "/device?code=" + login.UserCode,
		ExpiresIn: int64(tenants.DeviceLoginLife / time.Second), Interval: int64(tenants.DevicePollEvery / time.Second),
	}, nil
}

func (d *devices) poll(r *http.Request, body []byte) (int, any, error) {
	var in DevicePollRequest
	if err := decodeSmall(body, &in, []string{"device_code"}); err != nil {
		return 0, nil, err
	}
	ctx := tenants.WithOrigin(r.Context(), originOf(r)) // for the audit trail of the key
	poll, err := d.Store.PollDeviceLogin(ctx, in.DeviceCode)
	if err != nil {
		return 0, nil, err
	}
	out := DevicePoll{Status: string(poll.State)}
	switch poll.State {
	case tenants.DevicePending, tenants.DeviceSlowDown:
		seconds := int64(poll.Interval / time.Second)
		out.Interval = &seconds
	case tenants.DeviceApproved:
		d.follow(r.Context(), poll.Tenant)
		out.Tenant = &poll.Tenant.Slug
		out.Key = ptr(newKeyAnswer(poll.Key, poll.Secret))
	}
	return http.StatusOK, out, nil
}

// follow makes this instance accept the new key before the program uses it.
func (d *devices) follow(ctx context.Context, tenant tenants.Membership) {
	if d.Follow != nil {
		d.Follow(ctx, limit.TenantID(tenant.TenantID))
	}
}

// decodeSmall reads a body of a few fields.
func decodeSmall(body []byte, into any, fields []string) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); err == io.EOF {
			return nil
		}
		return newProblem(http.StatusBadRequest, codeMalformedJSON, "The body must be one JSON object.")
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return invalid(wrongField("/"+wrong.Field, limit.MustBe("of the type that the API description states")))
	}
	if _, name, unknown := strings.Cut(err.Error(), "unknown field "); unknown {
		name = strings.Trim(name, `"`)
		return newProblem(http.StatusBadRequest, codeUnknownField, "The body has the unknown field "+name+". "+fixName(name, fields))
	}
	return newProblem(http.StatusBadRequest, codeMalformedJSON, "The body must be a JSON object.")
}

// describeDevices adds device logins to the OpenAPI document.
func describeDevices(api huma.API) {
	add := func(path, id, summary, text string, request *huma.Schema, status string, response *huma.Response) {
		op := &huma.Operation{
			Method: http.MethodPost, Path: path, OperationID: id, Summary: summary, Description: text, Tags: []string{"device-logins"},
			RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {Schema: request}}},
			Responses:   map[string]*huma.Response{status: response},
		}
		for _, status := range []int{400, 408, 413, 422, 429, 500, 503} {
			op.Responses[itoa(int64(status))] = problemResponse(api, status)
		}
		api.OpenAPI().AddOperation(op)
	}
	add(deviceLoginPath, "start-device-login", "Ask for the codes of a sign-in",
		"For programs without a browser. Needs no API key. Show the user verification_uri_complete and user_code, and poll. A member confirms the code on the dashboard.",
		schemaOf[DeviceLoginRequest](api), "201", jsonResponse[DeviceLogin](api, "The sign-in waits for a member"))
	add(devicePollPath, "poll-device-login", "Get the state of a sign-in",
		"Needs no API key. When a member has approved the sign-in, the answer has a new API key, once. It expires after 90 days.",
		schemaOf[DevicePollRequest](api), "200", jsonResponse[DevicePoll](api, "The state of the sign-in"))
}
