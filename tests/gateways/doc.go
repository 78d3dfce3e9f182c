// Package gateways starts real gateways (nginx, HAProxy, Caddy, Apache, Traefik, Varnish) in front
// of a small application, with a real Weir server, and tests the configurations in docs/gateways.
// Each configuration is read from its page, so the tested configuration is the documented one.
//
// Between a gateway and Weir is a relay (relay_test.go). It records the requests of the gateway,
// counts connections, and lets Weir hang, stop, crash, or answer late. hostile_test.go has the
// requests of customers who try to bypass the limits.
//
// scripts/dev.sh gateways installs the programs. Traefik and a newer Caddy are separate modules,
// because they are large: `make gateways` builds them, and prints tables of latency and of
// failures.
package gateways
