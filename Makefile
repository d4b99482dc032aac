# `make help` lists the targets. Everything works without arguments; these change something:
#
#     PKG       the packages of test, unit and bench-go (default ./..., and those of the modules inside this one)
#     PARALLEL  how many tests of a package run at once (default 10: they mostly wait)
#     TESTARGS  more arguments for go test, as in TESTARGS='-run Outbox -v'
#     BROKER    the RabbitMQ of test, demo and bench: 4.0, 4.3 or nothing for the installed one
#     ARGS      arguments of the demo, bench, chaos and soak
#     FUZZTIME  how long fuzz runs each target (default 1m)
#     FUZZ      the targets of fuzz, a pattern (default all)
#     CHAOS_MINUTES, CHAOS_SEED   of chaos (default 5, 1); SOAK_MINUTES of soak (default 10)

GO       ?= go
PKG      ?= ./...
BROKER   ?= $(MILLPOND_BROKER)
PARALLEL ?= 10
TESTARGS ?=
ARGS     ?=
FUZZTIME ?= 1m
FUZZ     ?= ^Fuzz
CHAOS_MINUTES ?= 5
CHAOS_SEED    ?= 1
SOAK_MINUTES  ?= 10

# The latest release. It wants Go 1.26, which an older Go downloads for it.
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.8.0

INSTALL    := BROKER='$(BROKER)' sh internal/testing/testbroker/install.sh
# $$PPID is this make: what it started ends with it.
WITHBROKER := MILLPOND_BROKER='$(BROKER)' $(GO) run ./internal/tools/withbroker -parent $$PPID --
GOTEST     := $(GO) run ./internal/tools/gotest
# The modules inside this one, which ./... does not reach.
INNER      := $(patsubst ./%/go.mod,%,$(sort $(shell find . -mindepth 2 -name '.?*' -prune -o -name go.mod -print)))
# Those whose tests need PostgreSQL, for make examples.
POSTGRES   := middleware/delayed/postgresql examples/outbox
TESTED     := $(filter-out $(POSTGRES),$(INNER))
# The package that takes longest begins first, beside all the others.
ORDERED    := $(if $(filter ./...,$(PKG)),./internal/testing/e2e) $(PKG)
# $(call each,command,arguments) goes on to the inner modules where PKG is everything, and fails if one of them did. -C
# comes first. The one that takes longest runs beside the others.
LONGEST    := topology/amqpv3
each        = code=0; $(1) $(2) $(ORDERED) || code=1$(if $(filter ./...,$(PKG)),; $(1) -C $(LONGEST) $(2) ./... & beside=$$!$(foreach m,$(filter-out $(LONGEST),$(TESTED)),; $(1) -C $(m) $(2) ./... || code=1); wait $$beside || code=1); exit $$code

.DEFAULT_GOAL := help
.PHONY: help demo test test-here test-matrix examples examples-here monitoring-test unit fuzz lint lint-more vuln api bench bench-scale bench-docs bench-go bench-here chaos chaos-bugs soak clean clean-brokers

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## run the example with a RabbitMQ of its own; installs what is missing
	@test -n "$$AMQP_URL" || $(INSTALL) broker
	@$(WITHBROKER) $(GO) run ./examples/webhooks $(ARGS)

test: ## run all tests with -race on a real RabbitMQ; installs what is missing
	@$(INSTALL) compiler broker
	@MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 $(WITHBROKER) $(MAKE) --no-print-directory test-here

test-here: # on the broker that AMQP_URL names; make lint vets, and no debugger reads the binaries
	@$(call each,$(GOTEST),-race -vet=off -ldflags=-w -count 1 -timeout 20m -parallel $(PARALLEL) $(TESTARGS))

examples: ## run the tests that need PostgreSQL beside RabbitMQ; installs what is missing
	@$(INSTALL) compiler broker postgres
	@MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_REQUIRE_POSTGRES=1 $(WITHBROKER) $(MAKE) --no-print-directory examples-here

examples-here: # on the broker that AMQP_URL names
	@code=0; for module in $(POSTGRES); do \
		$(GOTEST) -C $$module -race -count 1 -timeout 10m -parallel $(PARALLEL) $(TESTARGS) ./... || code=1; \
	done; exit $$code

monitoring-test: ## check alerts and dashboard with a real Prometheus that scrapes the example; installs what is missing
	@$(INSTALL) compiler broker prometheus
	@MILLPOND_BROKER='$(BROKER)' MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 MILLPOND_REQUIRE_PROMETHEUS=1 \
		$(GOTEST) -C examples/monitored -race -count 1 -timeout 10m $(TESTARGS) ./...

test-matrix: ## run all tests on RabbitMQ 3.10 (the installed one), 4.0 and 4.3; ends with a table
	@$(GO) run ./internal/tools/matrix $(MAKE) --no-print-directory test

unit: ## run the tests that need no broker, and name those that do
	@export AMQP_URL= MILLPOND_NO_BROKER=1; $(call each,$(GOTEST),$(TESTARGS))

fuzz: ## run every fuzz target for FUZZTIME; the first finding ends it
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' sh internal/tools/fuzz.sh '$(FUZZ)'

lint: ## check formatting, vet and staticcheck
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then printf 'gofmt would change:\n%s\n' "$$files" >&2; exit 1; fi
	@for module in . $(INNER); do \
		echo "vet and staticcheck of $$module"; \
		$(GO) vet -C $$module ./... && $(GO) run -C $$module $(STATICCHECK) ./... || exit; \
	done

lint-more: ## check with golangci-lint as .golangci.yml says; it takes minutes to build the first time
	@for module in . $(INNER); do \
		echo "golangci-lint of $$module"; \
		$(GO) run -C $$module $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./... || exit; \
	done

vuln: ## look for known vulnerabilities in what is used; says so where the database cannot be reached
	@for module in . $(INNER); do \
		echo "govulncheck of $$module"; \
		said=$$($(GO) run -C $$module $(GOVULNCHECK) ./... 2>&1); code=$$?; \
		printf '%s\n' "$$said"; \
		case $$said in *'fetching vulnerabilities: '*) \
			echo 'vuln: NOTHING WAS CHECKED, for the database https://vuln.go.dev cannot be reached from here' >&2; exit 0 ;; \
		esac; \
		test $$code = 0 || exit $$code; \
	done

api: ## write the exported API of every public package to docs/api, which a test compares
	@$(GO) run ./internal/tools/api

bench: ## measure the library beside what one would pick instead, in one run; installs what is missing
	@$(INSTALL) broker
	@mkdir -p bin
	@$(GO) build -C internal/bench -o '$(CURDIR)/bin/bench' .
	@MILLPOND_BROKER='$(BROKER)' ./bin/bench -out bin/contests.json $(ARGS)

bench-scale: ## measure how figures grow; takes a quarter of an hour, and some GiB of memory
	@$(INSTALL) broker
	@mkdir -p bin
	@$(GO) build -C internal/bench -o '$(CURDIR)/bin/bench' .
	@MILLPOND_BROKER='$(BROKER)' ./bin/bench -scale -rounds 3 -out bin/scale.json $(ARGS)

bench-docs: ## draw the pictures of docs/performance.md, and fill its tables, from what the two have measured
	@$(GO) run -C internal/bench ./plot -docs '$(CURDIR)/docs' $(wildcard $(CURDIR)/bin/contests.json $(CURDIR)/bin/scale.json)

bench-go: ## run the benchmarks of go test on a real RabbitMQ; installs what is missing
	@$(INSTALL) broker
	@$(WITHBROKER) $(MAKE) --no-print-directory bench-here

bench-here:
	@$(call each,$(GO) test,-run '^$$' -bench . -benchmem $(TESTARGS))

# Built, not `go run`: signals reach the program, and it starts itself again as its consumers.
chaos: ## let everything break for CHAOS_MINUTES on a cluster of three, and check that nothing is lost
	@$(INSTALL) broker
	@$(GO) build -o bin/storm ./internal/testing/chaos/storm
	@MILLPOND_BROKER='$(BROKER)' ./bin/storm -minutes '$(CHAOS_MINUTES)' -seed '$(CHAOS_SEED)' $(ARGS)

# On 4.0, where all three cost messages.
chaos-bugs: ## the same with three planted mistakes, one after the other, which the checker must find
	@BROKER=4.0 sh internal/testing/testbroker/install.sh broker
	@$(GO) build -o bin/storm ./internal/testing/chaos/storm
	@for bug in ack-early hard-nack at-most-once; do \
		code=0; MILLPOND_BROKER=4.0 ./bin/storm -minutes 1.5 -seed 2 -strategy perqueue -timer 10s -bug $$bug $(ARGS) || code=$$?; \
		if [ $$code != 1 ]; then echo "$$bug was not found" >&2; exit 1; fi; \
	done

soak: ## load a service for SOAK_MINUTES, and check that nothing grows
	@$(INSTALL) broker
	@$(GO) build -o bin/soak ./internal/testing/soak
	@MILLPOND_BROKER='$(BROKER)' ./bin/soak -minutes '$(SOAK_MINUTES)' $(ARGS)

clean: ## remove what builds and tests leave in this folder
	rm -rf bin
	find . -name '*.test' -type f -delete
	find . -name '*.prof' -type f -delete

clean-brokers: ## remove the RabbitMQ versions that BROKER=… has put into the user's cache
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/millpond/brokers"
