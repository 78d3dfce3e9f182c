package load

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
)

// Request is a prepared request, so that sending it costs only a write.
type Request struct {
	Path string // such as /v1/check
	Key  string // API key; "" sends none
	Body []byte // JSON, or a gRPC message
	Head string // additional header lines, each with its line end

	http1 []byte // the complete request in HTTP/1.1
}

// Choice is how a connection chooses its next request.
type Choice int

const (
	Uniform Choice = iota // all equally often
	Zipf                  // with the exponent 1.1; the first is the most frequent
	InTurn                // each after the one before it, over all connections
)

// Traffic is a fixed set of requests and the way to choose among them. With the same seed, every
// connection sends the same requests in the same order in each run, except with InTurn.
type Traffic struct {
	requests []Request
	choice   Choice
	seed     uint64
	next     atomic.Uint64 // InTurn
}

const zipfExponent = 1.1

// NewTraffic prepares the requests. There must be at least one.
func NewTraffic(requests []Request, choice Choice, seed uint64) *Traffic {
	if len(requests) == 0 {
		panic("load: traffic without requests")
	}
	for i := range requests {
		requests[i].prepare()
	}
	return &Traffic{requests: requests, choice: choice, seed: seed}
}

func (r *Request) prepare() {
	head := "POST " + r.Path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(r.Body)) + "\r\n"
	if r.Key != "" {
		head += "Authorization: Bearer " + r.Key + "\r\n"
	}
	r.http1 = slices.Concat([]byte(head+r.Head+"\r\n"), r.Body)
}

// picker returns the sequence of requests of one connection. It must not be used concurrently.
func (t *Traffic) picker(connection int) func() *Request {
	if len(t.requests) == 1 {
		return func() *Request { return &t.requests[0] }
	}
	if t.choice == InTurn {
		return func() *Request { return &t.requests[(t.next.Add(1)-1)%uint64(len(t.requests))] }
	}
	random := rand.New(rand.NewPCG(t.seed, uint64(connection)))
	if t.choice == Zipf {
		zipf := rand.NewZipf(random, zipfExponent, 1, uint64(len(t.requests)-1))
		return func() *Request { return &t.requests[zipf.Uint64()] }
	}
	return func() *Request { return &t.requests[random.IntN(len(t.requests))] }
}
