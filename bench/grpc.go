package main

import (
	"encoding/binary"
	"strings"

	"weir/bench/load"
)

// grpcPath is the path of the method of Envoy's rate-limit service.
const grpcPath = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// appendField appends a length-delimited field to a message.
func appendField(b []byte, number byte, value []byte) []byte {
	b = append(b, number<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

// descriptor returns a RateLimitDescriptor of alternating keys and values.
func descriptor(entries ...string) (b []byte) {
	for i := 0; i < len(entries); i += 2 {
		entry := appendField(appendField(nil, 1, []byte(entries[i])), 2, []byte(entries[i+1]))
		b = appendField(b, 1, entry)
	}
	return b
}

// rateLimitRequest returns a call with some descriptors. Without a key, it sends none.
func rateLimitRequest(key string, descriptors ...[]byte) load.Request {
	b := appendField(nil, 1, []byte("weir"))
	for _, d := range descriptors {
		b = appendField(b, 2, d)
	}
	return load.Request{Path: grpcPath, Key: key, Body: b}
}

// rateLimitCalls returns calls with one descriptor for each subject. With together, they have two
// descriptors.
func rateLimitCalls(key string, together bool) *load.Traffic {
	requests := make([]load.Request, subjects)
	for i := range requests {
		descriptors := [][]byte{descriptor("subject", subject(i))}
		if together {
			descriptors = append(descriptors, descriptor("subject", subject((i+1)%subjects)))
		}
		requests[i] = rateLimitRequest(key, descriptors...)
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// The rows that have a goal.
const (
	weirCalls  = "weir, uniform"
	envoyCalls = envoyName + ", uniform"
)

// grpcGroup compares the rate-limit service with a bare gRPC server, and with envoyproxy/ratelimit.
func (c *cast) grpcGroup(peers bool) group {
	call := func(name, server string, traffic *load.Traffic) cell {
		return cell{name: name, server: server, protocol: load.GRPC, traffic: traffic, checks: 1}
	}
	hot := func(key string) *load.Traffic {
		return load.NewTraffic([]load.Request{rateLimitRequest(key, descriptor("subject", "tight"))}, load.Uniform, seed)
	}
	base := call("bare gRPC server", bareName, rateLimitCalls("", false))
	base.base = true
	denied := call("weir, one hot subject, denied", weirName, hot(c.denied.key))
	denied.denied = true
	g := group{"grpc", "Envoy's rate-limit service over gRPC", []cell{
		base, call(weirCalls, weirName, rateLimitCalls(c.plain.key, false)), denied,
		call("weir, two descriptors", weirName, rateLimitCalls(c.plain.key, true)),
	}}
	if peers {
		envoyDenied := call(envoyName+", one hot subject, denied", envoyName, hot(""))
		envoyDenied.denied = true
		g.cells = append(g.cells, call(envoyCalls, envoyName, rateLimitCalls("", false)), envoyDenied,
			call(envoyName+", two descriptors", envoyName, rateLimitCalls("", true)))
	}
	return g
}

// authorizeGroup compares the endpoint for gateways with a check.
func (c *cast) authorizeGroup(bare cell, weir func(string, *load.Traffic) cell, uniform *load.Traffic) group {
	requests := make([]load.Request, subjects)
	for i := range requests {
		requests[i] = load.Request{Path: "/v1/authorize", Head: strings.Join([]string{
			"Weir-Key: " + c.plain.key, "Weir-Subject: " + subject(i), "Weir-Resource: " + resource, "",
		}, "\r\n")}
	}
	return group{"authorize", "Gateways: /v1/authorize beside a check", []cell{
		bare, weir("/v1/check", uniform), weir("/v1/authorize", load.NewTraffic(requests, load.Uniform, seed)),
	}}
}
