// Package gateways starts real gateways (nginx, HAProxy, Caddy, Apache, Traefik, Varnish) before a
// small application, with a real Weir server beside them, and tries the configurations in
// docs/gateways. Each configuration is read out of its page, so what a page shows is what was
// tested.
//
// Between a gateway and Weir is a relay (relay_test.go). It records what the gateway asks,
// counts connections, and lets Weir hang, die, crash, or answer late. hostile_test.go has the
// requests of customers who try to get around the limiter.
//
// scripts/dev.sh gateways installs the programs. Traefik and a newer Caddy are modules of their
// own, because they are large: `make gateways` builds them, and prints tables of latency and of
// failures.
package gateways
