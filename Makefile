# `make help` lists the targets. All of them work without arguments; these variables change something:
#
#     PKG       packages of test, unit and bench-go (default: those of all modules)
#     TESTARGS  more arguments for go test: TESTARGS='-run Outbox -v'
#     PARALLEL  how many tests of a package run at once (default 10: they mostly wait)
#     BROKER    the RabbitMQ of test, demo, bench and lab: 4.0, 4.3, or nothing for the installed one
#     SCENARIO  of lab: chaos (the default), keys, outage, overload, soak
#     LENGTH    of lab: 10m (default: the scenario's own); SEED decides all that breaks (default: 1)
#     ARGS      arguments of demo, bench, lab and model

GO       ?= go
BROKER   ?= $(MILLPOND_BROKER)
PARALLEL ?= 10
FUZZTIME ?= 1m
SCENARIO ?= chaos
SEED     ?= 1
GOLANGCI    ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.8.0
GOTESTSUM   ?= gotest.tools/gotestsum@v1.13.0

# The folders of all modules, as go.work lists them. Some have tests that need PostgreSQL or Chromium.
MODULES  := $(shell sed -n 's/^\t\(\..*\)/\1/p' go.work)
POSTGRES := ./examples/outbox
PAGETEST := ./cmd/millpond/internal/pagetest
# The packages that take longest begin first.
LONGEST  := ./internal/testing/e2e ./topology/operate ./cmd/millpond \
	./internal/lab ./topology/operate/doctor
PKG      ?= $(LONGEST) $(patsubst %,%/...,$(filter-out $(POSTGRES) $(PAGETEST),$(MODULES)))

INSTALL  := BROKER='$(BROKER)' sh internal/testing/testbroker/install.sh
# Starts a broker, sets AMQP_URL for the command behind it, and stops the broker when this make ends.
WITHBROKER = MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_BROKER='$(BROKER)' \
	$(GO) run ./internal/tools/withbroker -parent $$PPID $(DATA) --
# Tests keep their brokers' data in memory. A benchmark measures the disk, too.
test test-postgres: DATA := -memory
# Two packages at once leave two cores idle for a quarter of the time: many tests wait for a deadline of the broker.
test: TOGETHER := -p 3
# The heaps of tests are small, and the race detector makes each collection dear.
test: export GOGC ?= 300
# gotestsum prints the lines of go test, and at the end the failed tests with their output, the skipped
# tests with their reasons, and the counts. GOTESTSUM_FORMAT=standard-verbose prints everything.
GOTEST    = bin/gotestsum $(SUMMARY) -- -count 1 -timeout 20m -parallel $(PARALLEL)
export GOTESTSUM_FORMAT ?= standard-quiet
RACE     := -race -vet=off -ldflags=-w
# Programs that tests build share the packages that are compiled for the tests.
test: export GOFLAGS += -race -ldflags=-w
# A program with the race detector sleeps for a second at its end by default.
test: export GORACE ?= atexit_sleep_ms=10

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

bin/gotestsum:
	@GOFLAGS= GOBIN='$(CURDIR)/bin' $(GO) install $(GOTESTSUM)

demo: DATA := $(if $(MILLPOND_DELAYED_PLUGIN),$(if $(findstring delayed,$(ARGS)),-delayed))
demo: ## run the example on a RabbitMQ that it starts; installs what is missing
	@test -n "$$AMQP_URL" || $(INSTALL) broker
	@$(WITHBROKER) $(GO) run ./examples/webhooks $(ARGS)

test: bin/gotestsum ## run all tests with -race on a real RabbitMQ; installs what is missing
	@$(INSTALL) compiler broker
	@$(WITHBROKER) $(GOTEST) $(TOGETHER) -vet=off $(TESTARGS) $(PKG)

test-matrix: ## run all tests on RabbitMQ 3.10 (the installed one), 4.0 and 4.3; ends with a table
	@sh internal/tools/matrix.sh $(MAKE) --no-print-directory test

test-postgres: bin/gotestsum ## run the tests that need PostgreSQL beside RabbitMQ; installs what is missing
	@$(INSTALL) compiler broker postgres
	@MILLPOND_REQUIRE_POSTGRES=1 $(if $(PGHOST),,pg_virtualenv -t) env $(WITHBROKER) $(GOTEST) $(RACE) $(TESTARGS) $(patsubst %,%/...,$(POSTGRES))

test-monitoring: bin/gotestsum ## check alerts and dashboard with a Prometheus that scrapes the example; installs what is missing
	@$(INSTALL) compiler broker prometheus
	@MILLPOND_BROKER='$(BROKER)' MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_REQUIRE_PROMETHEUS=1 \
		$(GOTEST) $(RACE) $(TESTARGS) ./examples/monitored/...

test-page: bin/gotestsum ## drive millpond serve in a Chromium; installs what is missing
	@$(INSTALL) compiler broker browser
	@MILLPOND_BROKER='$(BROKER)' MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_REQUIRE_CHROMIUM=1 \
		$(GOTEST) $(TESTARGS) $(PAGETEST)

world: ## build a virtual host with twelve services and all kinds of trouble, until Ctrl-C
	@MILLPOND_BROKER='$(BROKER)' MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_WORLD=1 \
		$(GO) test -count 1 -timeout 0 -run 'TestWorld$$' -v ./cmd/millpond

test-install: bin/gotestsum ## build every module by its version, from a repository that is made of this checkout
	@MILLPOND_REQUIRE_INSTALL=1 $(GOTEST) $(TESTARGS) ./internal/tools/release

unit: SUMMARY := --hide-summary skipped
unit: bin/gotestsum ## run the tests that need no broker, and count the others
	@AMQP_URL= MILLPOND_NO_BROKER=1 $(GOTEST) $(TESTARGS) $(PKG)

fuzz: ## run every fuzz target, or those that FUZZ names, for FUZZTIME; the first finding ends it
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' sh internal/tools/fuzz.sh '$(FUZZ)'

lint: ## check every module as .golangci.yml says; builds golangci-lint the first time
	@$(GO) run $(GOLANGCI) run $(patsubst %,%/...,$(MODULES))

format: ## format every file as make lint wants it
	@$(GO) run $(GOLANGCI) fmt $(MODULES)

vuln: ## look for known vulnerabilities; says so where the database cannot be reached
	@sh internal/tools/vuln.sh '$(GO)' '$(GOVULNCHECK)' $(patsubst %,%/...,$(MODULES))

words: ## count the words of the user's pages, of the first reading path, and of the notes
	@wc -w README.md docs/*.md | sed 's/total$$/user, at most 28000/'
	@cat README.md docs/getting-started.md docs/adopting.md | wc -w | sed 's/$$/ first path, at most 4500/'
	@find docs/notes -name '*.md' -exec cat {} + | wc -w | sed 's/$$/ notes, at most 43000/'

tidy: ## tidy go.mod and go.sum of every module
	@sh internal/tools/release/tidy.sh

bench: ## measure the library beside what a user would pick instead, in one run; installs what is missing
	@$(INSTALL) broker
	@$(GO) build -o bin/bench ./internal/bench
	@MILLPOND_BROKER='$(BROKER)' ./bin/bench -out bin/contests.json $(ARGS)

bench-scale: ## measure how figures grow; takes an hour, and some GiB of memory and disk
	@$(MAKE) --no-print-directory bench ARGS="-scale -rounds 3 -out bin/scale.json $(ARGS)"

bench-peers: ## measure other systems that try jobs again, beside the library; installs PostgreSQL and Redis
	@$(INSTALL) broker postgres redis
	@$(GO) build -o bin/bench ./internal/bench
	@MILLPOND_BROKER='$(BROKER)' pg_virtualenv -t -o fsync=on \
		./bin/bench -peers -rounds 1 -out bin/peers.json $(ARGS)

bench-docs: ## fill the tables of performance.md and sizing.md from what the other targets have left in bin
	@for page in docs/notes/performance.md docs/sizing.md; do \
		$(GO) run ./internal/bench -fill $$page $(wildcard bin/contests.json bin/scale.json bin/peers.json); done

bench-go: ## run the benchmarks of go test on a real RabbitMQ; installs what is missing
	@$(INSTALL) broker
	@$(WITHBROKER) $(GO) test -run '^$$' -bench . -benchmem $(TESTARGS) $(PKG)

# Built, not `go run`: signals reach the program, and it starts itself again as its instances.
lab: ## run the service of a SCENARIO for LENGTH while everything around it breaks, and judge; ARGS=-help says more
	@$(INSTALL) broker
	@$(GO) build -o bin/lab ./internal/lab
	@MILLPOND_BROKER='$(BROKER)' ./bin/lab -scenario '$(SCENARIO)' $(if $(LENGTH),-length '$(LENGTH)') -seed '$(SEED)' $(ARGS)

model: ## search all states of a model of the hand-over, and find planted defects; installs what is missing
	@$(INSTALL) compiler spin
	@$(GO) run ./internal/model $(ARGS)

clean: ## remove what builds and tests leave in this folder
	rm -rf bin
	find . \( -name '*.test' -o -name '*.prof' \) -type f -delete

clean-brokers: ## remove the RabbitMQ versions that BROKER=… has put into the user's cache
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}"/millpond/brokers "$${XDG_CACHE_HOME:-$$HOME/.cache}"/millpond/homes
