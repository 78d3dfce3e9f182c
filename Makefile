# Frequent tasks, one line each. `make` without a target lists them.
#
# A new machine needs Go and make: scripts/dev.sh finds or installs PostgreSQL, Redis and, for the
# tests, a C compiler (for the race detector) and Chromium.

SHELL := /bin/bash
GOTESTSUM := go tool -modfile=tools/gotestsum.mod gotestsum

# The race detector makes hashing and compression four to six times slower. These packages compute on
# data of one goroutine, so they cannot have races: `make test` does not instrument them,
# neither in tests nor in the servers that tests build. A package that uses a generic type of sync or
# sync/atomic must not be added: the linker may take its copy of the code for all packages, and the
# detector would then report races that do not exist. Tests are linked without tables for debuggers,
# which takes a third of the time away, and `make verify` runs go vet.
NO_RACE := golang.org/x/crypto/argon2 golang.org/x/crypto/blake2b compress/flate \
	crypto/internal/fips140/sha256 crypto/internal/fips140/hmac
# All tests with the race detector use the same flags, so the standard library is compiled once.
RACE = GOFLAGS="$$(go env GOFLAGS) -ldflags=-w $(NO_RACE:%=-gcflags=%=-race=false)"

# `make test` begins with the packages that take longest, and tests one package more at once than
# there are processors: many tests wait, for a browser or for a server that was killed. Processes
# with the race detector end at once: they would wait a second each for other reports. Their garbage
# is collected at half the usual growth: memory that is used again is cheaper than more memory,
# because the detector keeps four times the size beside it. The server is compiled before: three
# packages need it at once, and each would compile it.
SLOWEST := ./tests/browser ./tests ./tests/gateways ./internal/api
PACKAGES = $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))

.DEFAULT_GOAL := help
.PHONY: help run test test-clients test-client-go test-client-typescript test-client-python test-terraform generate-terraform test-envoy screenshots readme-pictures gateways test-idempotency faults exactness soak fuzz conformance bench microbench build generate web verify clean-dev test-billing vulnerabilities sbom

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## start Weir with demo data on http://localhost:8080 and https://localhost:8443; Ctrl-C stops it
	@scripts/dev.sh with bin/server demo --serve

test: ## run all tests under the race detector, with a private PostgreSQL and Redis
	@scripts/dev.sh --test compiler
	@scripts/dev.sh --test browser
	@scripts/dev.sh --test gateways
	@scripts/dev.sh --test node
	@$(RACE) go build -race -o /dev/null ./cmd/server
	@scripts/dev.sh --test with env GORACE=atexit_sleep_ms=0 $(RACE) \
		$(GOTESTSUM) --format standard-quiet -- -race -vet=off -exec 'env GOGC=50' -timeout 60m -p $(PACKAGES) $(SLOWEST) ./...
	@scripts/dev.sh --test with go test ./internal/engine ./internal/engine/redis -run '^TestLeasesNeverExceed$$|^TestGrantsNeverExceed$$|^TestRandomSequences$$'
	@cd bench && ../scripts/dev.sh --test with go test ./...
	@cd tests/faults && ../../scripts/dev.sh --test with go test -parallel 4 ./...
	@cd tests/stripe && ../../scripts/dev.sh --test with go test -count=1 ./...
	@go -C tests/container test ./...
	@$(MAKE) --no-print-directory test-client-go
	@scripts/dev.sh --test with go run ./tests/withserver go -C terraform test -timeout 30m -tags server ./...

test-clients: test-client-go test-client-typescript test-client-python ## run the shared suite of the clients in every language, against a scripted server and a real one

test-client-go: ## run the tests of the Go client
	@scripts/dev.sh --test compiler
	@scripts/dev.sh --test with go run ./tests/withserver env $(RACE) go -C sdk/go test -race -tags server ./...
	@go -C sdk/go/frameworks test ./...
	@$(RACE) go -C sdk/go/weirotel test -race ./...
	@$(RACE) go -C sdk/go/weirgrpc test -race ./...

test-client-typescript: ## run the tests of the TypeScript client, verify its types against the server's OpenAPI document, and pack it
	@scripts/dev.sh --test node
	@cd sdk/typescript && { cmp -s package-lock.json node_modules/.installed || { \
		npm ci --ignore-scripts --omit=optional --no-audit --no-fund && cp package-lock.json node_modules/.installed; }; }
	@cd sdk/typescript && npm run --silent compile
	@scripts/dev.sh --test with go run ./tests/withserver go -C sdk/go run ./internal/withscripted npm --prefix ../typescript run --silent verify
	@cd sdk/typescript && npm pack --dry-run --ignore-scripts

test-client-python: ## run the tests of the Python client with Debian's Python, verify its types, and build it
	@scripts/dev.sh --test python
	@cd sdk/python && mypy --strict src
	@scripts/dev.sh --test with go run ./tests/withserver go -C sdk/go run ./internal/withscripted \
		sh -c 'cd ../python && PYTHONPATH=src exec /usr/bin/python3 -W error -W ignore:unclosed:ResourceWarning -m unittest discover --top-level-directory . tests'
	@cd sdk/python && rm -rf build src/*.egg-info && /usr/bin/python3 -m build --no-isolation --outdir build/dist >build.log 2>&1 || { cat build.log >&2; exit 1; }
	@cd sdk/python/build/dist && for file in LICENSE README.md CHANGELOG.md; do \
		tar tzf *.tar.gz | grep -q "^[^/]*/$$file$$" || { echo "the Python package lacks $$file" >&2; exit 1; }; done; ls

test-terraform: ## run the tests of the Terraform provider with Terraform or OpenTofu, which is built if neither is installed
	@program=$$(scripts/terraform.sh) && scripts/dev.sh --test with go run ./tests/withserver \
		env WEIR_TEST_TERRAFORM="$$program" go -C terraform test -timeout 30m -tags server,terraform ./...

generate-terraform: ## write the schemas and the reference of the Terraform provider, after a change of the API
	@scripts/dev.sh --test with go run ./tests/withserver env WEIR_TEST_UPDATE=1 go -C terraform test -tags server -count=1 -run '^TestSchemasAreCurrent$$' ./internal/provider
	@go -C terraform run ./internal/reference

test-envoy: ## ask the rate-limit service with the client of envoyproxy/ratelimit and with grpcurl; the first build takes minutes
	@scripts/dev.sh --test with go test -tags envoy ./tests -run 'EnvoyRatelimit|Grpcurl' -count=1 -v

screenshots: ## write an image of every page, in light, dark and phone layout, to DIR=path (.dev/screenshots)
	@scripts/dev.sh --test browser
	@scripts/dev.sh --test with go test ./tests/browser -run '^TestLooks$$' -count=1 -args -screenshots "$(abspath $(or $(DIR),.dev/screenshots))"

readme-pictures: ## write docs/img/page-*.png, the screenshots in the README
	@scripts/dev.sh --test browser
	@scripts/dev.sh --test with go test ./tests/browser -run '^TestLooks$$' -count=1 -args -readme "$(abspath docs/img)"

gateways: ## try every gateway of docs/gateways, and print the latency that Weir adds and what happens when it fails
	@scripts/dev.sh --test gateways
	@mkdir -p .dev/gateways
	@echo 'building Caddy and Traefik: the first build takes several minutes'
	@CGO_ENABLED=0 go -C tests/gateways/caddy build -o "$(abspath .dev/gateways)/caddy-2.11" github.com/caddyserver/caddy/v2/cmd/caddy
	@CGO_ENABLED=0 go -C tests/gateways/traefik build -o "$(abspath .dev/gateways)/traefik" github.com/traefik/traefik/v3/cmd/traefik
	@set -o pipefail; scripts/dev.sh --test with go test ./tests/gateways -count=1 -v -timeout 20m -args -tables -built "$(abspath .dev/gateways)" | \
		grep -vE '^ *(=== |--- PASS)'

test-idempotency: ## send 10 000 idempotent writes while the server is killed repeatedly; takes about twenty minutes
	@scripts/dev.sh --test with env WEIR_TEST_IDEMPOTENT_WRITES=10000 go test ./tests -run '^TestKilledWhileWriting$$' -v -timeout 45m

faults: ## measure what the service does during faults, and write the table in docs/reliability.md; ROWS=R1,R2 runs some rows, all take seventeen minutes
	@mkdir -p .dev && cd tests/faults && go test -c -o ../../.dev/faults.test . && ../../scripts/dev.sh --test with ../../.dev/faults.test \
		-test.run '^TestRows$$' -test.timeout 30m -rows "$(or $(ROWS),all)" -report "$(abspath docs/reliability.md)"

exactness: ## send 10^6 concurrent checks for each algorithm to three instances, and check 1000 histories of 2000 checks; then both again while a Redis Cluster is resharded and failed over
	@cd tests/faults && ../../scripts/dev.sh --test with go test -count=1 -v -timeout 6h -run '^TestRows$$' . -args -rows N1,N2,N10,N11 -many $(or $(MANY),1000000)

soak: ## inject a random fault every 30 s under load, and write the section in docs/reliability.md; an hour, or TIME=10m
	@set -o pipefail; cd tests/faults && ../../scripts/dev.sh --test with go test -count=1 -v -timeout 26h -run '^TestSoak$$' . \
		-args -soak $(or $(TIME),1h) -soak-every 30s -soak-seed $(or $(SEED),1) -soak-report "$(abspath docs/reliability.md)" | grep -vE '^ *(=== |--- PASS)'

test-billing: ## send 10 000 billing events in order, and shuffled and repeated while the server is killed; takes about ten minutes
	@scripts/dev.sh --test with go test ./tests -run '^TestBillingEventsSurviveKills$$' -count=1 -v -timeout 45m -args -billing-events 10000 -billing-kills 20

fuzz: ## run every fuzz target for TIME=30s; NAME=pattern selects
	@scripts/dev.sh --test with scripts/fuzz.sh $(or $(TIME),30s) '$(or $(NAME),.)'

conformance: ## run the test vectors under DIR=path against both engines
	@[ -n "$(DIR)" ] || { echo 'usage: make conformance DIR=path' >&2; exit 2; }
	@scripts/dev.sh --test with sh -c 'exec go run ./internal/engine/enginetest/conformance -redis "$$WEIR_TEST_REDIS_URL" "$$1"' sh "$(DIR)"

bench: ## benchmark the service, a bare HTTP server and other rate limiters; ARGS="-h" lists the options, ARGS=clients measures the Go client
	@bench/run.sh $(ARGS)

microbench: ## run the Go benchmarks of a check; ARGS="-old REV" compares with another commit
	@scripts/microbench.sh $(ARGS)

generate: ## regenerate code from queries and pages, the charts of the algorithms, and docs/schema.sql
	@scripts/queries.sh generate
	@go tool templ generate -path internal/dashboard
	@go run ./internal/engine/enginetest/pictures docs/img
	@scripts/dev.sh --test with go test ./migrations -run SchemaDocument -update

web: ## fetch the vendored files of web/ with npm; only after a change of web/package.json
	@web/vendor.sh

build: ## build the static binary bin/server
	@[ -e bin/server ] || echo 'building Weir: the first build takes a minute or two'
	@CGO_ENABLED=0 go build -trimpath -o bin/server ./cmd/server

verify: ## fail on stale generated code, unformatted files, vet findings and untidy modules
	@scripts/verify.sh

vulnerabilities: ## fail if the code reaches a known vulnerability of a dependency; needs the network, for the database at vuln.go.dev
	@go tool -modfile=tools/govulncheck.mod govulncheck ./... || { code=$$?; [ $$code = 3 ] || \
		echo 'make vulnerabilities: nothing was verified, see the error above; it needs to reach https://vuln.go.dev' >&2; exit $$code; }

sbom: ## write the software bill of materials of both binaries to bin/*.cdx.json (CycloneDX)
	@scripts/sbom.sh

clean-dev: ## stop the servers of run and test, and delete their data
	@scripts/dev.sh reset
