package load

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"
)

// streamsPerConnection is the number of askers that share one HTTP/2 connection.
const streamsPerConnection = 8

// http2Asker uses net/http. It costs several times as much as the raw connections, which reduces
// the differences between rates. The server's CPU time remains comparable.
type http2Asker struct {
	client *http.Client
	url    string
	body   bytes.Buffer
	cancel context.CancelFunc
	ctx    context.Context
}

func http2Askers(t Target, n int) []asker {
	askers := make([]asker, n)
	var client *http.Client
	for i := range askers {
		if i%streamsPerConnection == 0 {
			protocols := new(http.Protocols)
			protocols.SetHTTP2(true)
			client = &http.Client{
				Timeout:   grace,
				Transport: &http.Transport{TLSClientConfig: t.TLS.Clone(), Protocols: protocols, IdleConnTimeout: time.Minute},
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		askers[i] = &http2Asker{client: client, url: "https://" + t.addr(i/streamsPerConnection), ctx: ctx, cancel: cancel}
	}
	return askers
}

func (a *http2Asker) ask(r *Request) (answer, error) {
	request, err := http.NewRequestWithContext(a.ctx, http.MethodPost, a.url+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if r.Key != "" {
		request.Header.Set("Authorization", "Bearer "+r.Key)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	if response.ProtoMajor != 2 {
		return answer{}, fmt.Errorf("load: %s answers in %s, not in HTTP/2", a.url, response.Proto)
	}
	a.body.Reset()
	if _, err := a.body.ReadFrom(response.Body); err != nil {
		return answer{}, err
	}
	return answer{status: response.StatusCode, degraded: bytes.Contains(a.body.Bytes(), degradedMark)}, nil
}

func (a *http2Asker) close() {
	a.cancel()
	a.client.CloseIdleConnections()
}
