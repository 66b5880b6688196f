# Two targets are enough to begin: make demo, make test. "make help" lists all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

DATA ?= .data
ARGS ?=
PKG ?= ./...
TESTFLAGS ?=
RACEFLAGS ?=
FUZZTIME ?= 10
# Packages whose goroutines share memory. The pure ones are in it because their
# caches are shared; a full race build of everything takes several times as long.
RACE_DIRS ?= internal/protocol internal/trust internal/groups internal/events internal/authority internal/registry \
	internal/sessions internal/wsapi internal/config internal/cli client
KERNEL_DIRS ?= internal/protocol internal/trust internal/groups
below = $(patsubst %,./%/...,$(wildcard $(1)))

##@ Use
.PHONY: demo dev
demo: setup ## set everything up and play one Mission from creation to approval
	go build -trimpath -o bin/ ./cmd/mw
	exec bin/mw demo $(ARGS)
dev: setup build ## keep a development server running (DATA=folder, ARGS=flags)
	exec bin/mw dev --data "$(DATA)" $(ARGS)

##@ Build
.PHONY: build generate setup tools
build: ## build all programs into bin/
	go build -trimpath -o bin/ ./cmd/...
generate: ## run all code generators
	go generate ./...
setup: ## install what is missing (PostgreSQL server programs)
	@scripts/setup
tools: ## build the pinned check tools into .tools/ (minutes the first time)
	@for t in gofumpt golangci-lint staticcheck govulncheck; do scripts/tool $$t --help >/dev/null 2>&1 || true; done

##@ Check
.PHONY: test check format fmt vet lint lint-rules staticcheck race fuzz vulncheck generated deploy-check
test: setup ## run all tests (PKG=packages, TESTFLAGS=flags)
	@go test -timeout 15m $(TESTFLAGS) $(PKG)
check: format vet lint staticcheck race ## everything a change must pass
format: ## show what gofumpt would change
	@out=$$(scripts/tool gofumpt -d $$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ ! -f "$$f" ] || echo "$$f"; done)) || true; \
	if [ -n "$$out" ]; then echo "$$out"; echo "run: make fmt"; exit 1; fi
fmt: ## format all Go files
	@scripts/tool gofumpt -w $$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ ! -f "$$f" ] || echo "$$f"; done)
vet:
	go vet ./...
lint: ## architecture and quality rules of .golangci.yaml
	scripts/tool golangci-lint run ./...
lint-rules: ## prove that the architecture rules fail on a violation
	scripts/check-lint-rules
staticcheck:
	scripts/tool staticcheck ./...
race: ## race tests of the packages that share memory
	@scripts/setup --check
	go test -race -timeout 20m $(RACEFLAGS) $(call below,$(RACE_DIRS))
fuzz: ## every fuzz target for FUZZTIME seconds
	scripts/fuzz $(FUZZTIME)
vulncheck: ## known vulnerabilities in what is called (needs the network)
	scripts/tool govulncheck ./...
deploy-check: ## try Dockerfile and compose file as far as possible without an engine
	scripts/check-deploy
generated: ## fail if a generated file is not what its generator makes
	@state() { git diff HEAD; git status --porcelain; }; before=$$(state); go generate ./...; \
	if [ "$$before" != "$$(state)" ]; then git --no-pager diff --stat; echo "generated files were stale: run make generate and commit"; exit 1; fi

.PHONY: matrix
matrix: setup build ## play the behavioural matrix and keep its results for docs/conformance.md
	bin/mw conformance matrix --results internal/matrix/results.json
	go run ./internal/docgen

##@ Measure
.PHONY: bench bench-growth bench-delivery bench-kernel
bench: setup build ## signed Commands per second beside a bare batched insert
	exec bin/mw bench $(ARGS)
bench-growth: setup build ## what a Command costs in a large Group, and loading one
	exec bin/mw bench growth $(ARGS)
bench-delivery: setup build ## Events to many subscribers beside a bare broadcast; idle subscribers
	exec bin/mw bench delivery $(ARGS)
bench-kernel: ## ratios of the kernel against bare Ed25519, then every benchmark below it
	go test ./internal/trust -count=1 -run TestKernelTable -kernel-table -v
	go test ./internal/protocol -count=1 -run '^$$' -bench 'Validat' -benchmem
	go test -run '^$$' -bench . -benchmem $(call below,$(KERNEL_DIRS))

.PHONY: help clean
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
clean: ## remove what was built; data directories stay
	rm -rf bin .tools
