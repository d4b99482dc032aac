# `make help` lists the targets. Everything works without arguments; these change something:
#
#     PKG       the packages of test, unit and bench (default ./...)
#     TESTARGS  more arguments for go test, as in TESTARGS='-run Outbox -v'
#     BROKER    the RabbitMQ of test, demo and bench: 4.0, 4.3 or nothing for the installed one
#     ARGS      arguments of the demo

GO       ?= go
PKG      ?= ./...
BROKER   ?= $(MILLPOND_BROKER)
TESTARGS ?=
ARGS     ?=

# The latest release. It wants Go 1.26, which an older Go downloads for it.
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

BENCH      := ./internal/testbench
INSTALL    := BROKER='$(BROKER)' sh internal/testbench/install.sh
# $$PPID is this make: what it started ends with it.
WITHBROKER := MILLPOND_BROKER='$(BROKER)' $(GO) run $(BENCH)/withbroker -parent $$PPID --
GOTEST     := $(GO) run $(BENCH)/gotest

.DEFAULT_GOAL := help
.PHONY: help demo test unit lint bench clean clean-brokers

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## run the example with a RabbitMQ of its own; installs what is missing
	@test -n "$$AMQP_URL" || $(INSTALL) broker
	@$(WITHBROKER) $(GO) run ./examples/webhooks $(ARGS)

test: ## run all tests with -race on a real RabbitMQ; installs what is missing
	@$(INSTALL) compiler broker
	@MILLPOND_NO_BROKER= MILLPOND_REQUIRE_BROKER=1 $(WITHBROKER) $(GOTEST) -race -count 1 -timeout 20m $(TESTARGS) $(PKG)

unit: ## run the tests that need no broker, and name those that do
	@AMQP_URL= MILLPOND_NO_BROKER=1 $(GOTEST) $(TESTARGS) $(PKG)

lint: ## check formatting, vet and staticcheck
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then printf 'gofmt would change:\n%s\n' "$$files" >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

bench: ## run the benchmarks on a real RabbitMQ; installs what is missing
	@$(INSTALL) broker
	@$(WITHBROKER) $(GO) test -run '^$$' -bench . -benchmem $(TESTARGS) $(PKG)

clean: ## remove what builds and tests leave in this folder
	rm -rf bin
	find . -name '*.test' -type f -delete
	find . -name '*.prof' -type f -delete

clean-brokers: ## remove the RabbitMQ versions that BROKER=… has put into the user's cache
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/millpond/brokers"
