# Leasehold: two commands do everything on a fresh machine that has Rust (rustup), Go and Python; as
# root on Debian `make test` installs Node.js, too.
#   make demo      make test

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

# In CI a stale Cargo.lock is an error.
CARGO_FLAGS ?= $(if $(CI),--locked)
export CARGO_FLAGS
# A build in CI begins with nothing, so what an incremental one writes down is never read.
ifeq ($(CI),true)
export CARGO_INCREMENTAL ?= 0
endif
KEEP ?=
# The tools that `make tools` installs; all if empty.
TOOLS ?=
PROFILE ?= release
SEEDS ?= 20000
# For `make simulate`: any value looks for the cores' deliberate faults instead.
FAULTS ?=
# For `make test`: any value also runs what has passed with the same program and files.
FRESH ?=
export FRESH
# For `make flaky`: a part of a test's name, and how many times to run it.
TEST ?=
RUNS ?= 20
# How long `make chaos` injects faults, the client of `make hostile` attacks and `make fuzz` runs each
# fuzzer. Only a SECONDS of the command line counts: bash sets its own.
RUN_SECONDS := $(if $(filter command%,$(origin SECONDS)),$(SECONDS),600)
FUZZ_SECONDS := $(if $(filter command%,$(origin SECONDS)),$(SECONDS),60)
# For `make fuzz`: one fuzzer.
FUZZER ?= all
# For `make reconnects`: how often the leader ends.
FAILOVERS ?= 200
# For `make images` and `make release`: amd64, arm64 or both; if empty, this machine's and both. Only
# an ARCH of the command line counts: some environments have one of their own.
ARCHITECTURES := $(if $(filter command%,$(origin ARCH)),$(ARCH))
# For both: the registry and folder that the images are published in. Also of the command line only.
REGISTRY := $(if $(filter command%,$(origin IMAGES)),$(IMAGES))
RELEASE = --profile $(PROFILE) $(ARCHITECTURES:%=--architecture %) $(REGISTRY:%=--images %)
TARGET := $${CARGO_TARGET_DIR:-target}
BUF := .cache/bin/buf

comma := ,
# The demo needs no Kubernetes: without its client the first build takes half as long.
DEMO := --no-default-features -p leasehold-coordinator -p leasehold-agent -p leasehold-demo
say = @printf '\n==> %s\n' "$(1)"

.PHONY: help
help: ## Lists the targets. `make help`
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { \
	    text = $$2; example = text; sub(/ *`.*/, "", text); sub(/^[^`]*/, "", example); \
	    gsub(/`/, "", example); printf "  %-10s %s\n  %-10s     %s\n", $$1, text, "", example }' Makefile

.PHONY: demo
demo: ## Two coordinators and six agents with real workers; about a minute. `make demo` or `make demo KEEP=1`
	$(call say,building coordinator$(comma) agent and demo (a few minutes the first time))
	@cargo build $(CARGO_FLAGS) $(DEMO)
	$(call say,running the demo (about a minute))
	@KEEP=$(KEEP) "$(TARGET)/debug/demo"

.PHONY: test
test: enough-space fresh-notes tools ## Every test: crates, simulator, fuzzers, processes, contract, grpcurl, Kubernetes; .cache/test has their logs. `make test`
	@tests/tools/test

.PHONY: check
check: ## What every commit must pass: format, clippy of what changed, both cores, 500 seeds. `make check`
	@tests/tools/check

.PHONY: flaky
flaky: ## Runs a test many times beside a load on all cores and the disk. `make flaky TEST=failover RUNS=50`
	@tests/tools/flaky "$(TEST)" $(RUNS)

.PHONY: simulate
simulate: ## Many seeds of the simulator, or with FAULTS=1 every deliberate fault. `make simulate SEEDS=100000`
ifeq ($(FAULTS),)
	$(call say,simulating $(SEEDS) seeds)
	@cargo run $(CARGO_FLAGS) --release -p leasehold-simulator -- --seeds $(SEEDS)
else
	$(call say,looking for every deliberate fault of the cores; about half an hour)
	@tests/tools/with-faults cargo run $(CARGO_FLAGS) --release -p leasehold-simulator -- --mutations
endif

.PHONY: chaos
chaos: binaries ## Real processes under faults, ten minutes. `make chaos`, `make chaos SECONDS=60`, or a given seed: `make chaos SEED=7`
	@cargo build $(CARGO_FLAGS) -p tests --bin chaos --bin job_worker
	@cargo run --quiet $(CARGO_FLAGS) -p tests --bin chaos -- --seconds $(RUN_SECONDS) \
	    $(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: ## Made-up input for each decoder, a minute each, or an hour before a release. `make fuzz SECONDS=3600` or `make fuzz FUZZER=session`
	@$(MAKE) tools TOOLS=cxx
	$(call say,building the fuzzers (some minutes the first time))
	@tests/tools/fuzz "$(FUZZER)" $(FUZZ_SECONDS)

.PHONY: model
model: ## Explores every state of small worlds; some minutes. `make model`
	$(call say,building the model)
	@tests/tools/with-faults cargo build $(CARGO_FLAGS) --release -p leasehold-model
	$(call say,exploring every scope)
	@tests/tools/with-faults cargo run --quiet $(CARGO_FLAGS) --release -p leasehold-model
	$(call say,looking for every deliberate fault of the cores)
	@tests/tools/with-faults cargo run --quiet $(CARGO_FLAGS) --release -p leasehold-model -- \
	    --mutations

.PHONY: lint
lint: fresh-notes tools ## Formatting, clippy, the protos' rules, dependencies, Python's syntax, Go, TypeScript's types, the book and its links, commit messages. `make lint`
	$(call say,formatting)
	@cargo fmt --all --check
	$(call say,clippy on everything (a few minutes the first time))
	@cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@tests/tools/with-faults cargo clippy $(CARGO_FLAGS) -p leasehold-types --all-targets -- -D warnings
	$(call say,protos)
	@if [[ -x $(BUF) ]]; then \
	    $(BUF) lint; \
	    $(BUF) format --diff --exit-code; \
	    $(BUF) breaking --against tests/tools/contract.binpb; \
	else \
	    echo "!!! LEFT OUT: buf is not installed, so the protos were not checked"; \
	    [[ "$${CI:-}" != true ]]; \
	fi
	$(call say,dependencies)
	@tests/tools/check_dependencies
	$(call say,Python)
	@git ls-files -z -- '*.py' | xargs -0 -r python3 tests/tools/check_syntax.py
	$(call say,Go)
	@tests/tools/check_go
	$(call say,TypeScript)
	@if [[ -x .cache/bin/tsc ]]; then \
	    .cache/bin/tsc --noEmit --project agent/sdk/typescript; \
	else \
	    echo "!!! LEFT OUT: TypeScript is not installed, so its types were not checked"; \
	    [[ "$${CI:-}" != true ]]; \
	fi
	$(call say,the book and its links)
	@if [[ -x .cache/bin/mdbook ]]; then \
	    tests/tools/book; \
	else \
	    echo "!!! LEFT OUT: mdbook is not installed, so the book was not built"; \
	    [[ "$${CI:-}" != true ]]; \
	fi
	$(call say,commit messages)
	@tests/tools/check_commits

.PHONY: book
book: ## The book, out of docs, in target/book; open index.html there. `make book`
	@$(MAKE) tools TOOLS=mdbook
	$(call say,building the book)
	@tests/tools/book

# The agent as it is built for the image: `make bench BENCH=agent` builds and measures it, and where it
# is there, the report does.
IMAGE_AGENT := $(TARGET)/agent/leasehold-agent
IS_IMAGE_AGENT_BUILT := $(shell ls "$(IMAGE_AGENT)" 2> /dev/null)
WITH_IMAGE_AGENT := $(and $(filter release,$(PROFILE)),$(if $(BENCH),$(filter agent,$(BENCH)),$(IS_IMAGE_AGENT_BUILT)))
BUILD_IMAGE_AGENT := $(if $(WITH_IMAGE_AGENT),cargo rustc $(CARGO_FLAGS) --profile agent \
    -p leasehold-agent --bin leasehold-agent -- -C target-feature=+crt-static)

.PHONY: bench
ifeq ($(BENCH),)
bench: ## One report of every figure that has a goal, in target/bench, or one benchmark; DOCUMENT=1 renews docs/PERFORMANCE.md. `make bench`, `make bench BENCH=fleet`, or with less to build `make bench PROFILE=dev`
	@$(MAKE) tools TOOLS="kubernetes kafka dapr"
	$(call say,building coordinator$(comma) agent and report as $(PROFILE) (release takes some minutes))
	@cargo build $(CARGO_FLAGS) --profile $(PROFILE) -p leasehold-coordinator -p leasehold-agent
	@$(BUILD_IMAGE_AGENT)
	@cargo build $(CARGO_FLAGS) --profile $(PROFILE) -p tests --bin bench_report
	$(call say,measuring (some minutes))
	@cargo run --quiet $(CARGO_FLAGS) --profile $(PROFILE) -p tests --bin bench_report -- \
	    $(if $(DOCUMENT),--document docs/PERFORMANCE.md) \
	    $(if $(WITH_IMAGE_AGENT),--image-agent "$(IMAGE_AGENT)")
else
bench: $(if $(filter planner agent fleet page reconnects,$(BENCH)),,tools)
	$(call say,building programs and benchmarks as $(PROFILE) (release takes some minutes))
	@$(if $(filter planner,$(BENCH)),:,cargo build $(CARGO_FLAGS) --profile $(PROFILE) \
	    -p leasehold-coordinator -p leasehold-agent -p leasehold-cli)
	@$(BUILD_IMAGE_AGENT)
	@$(if $(filter page,$(BENCH)),$(MAKE) tools TOOLS=chromium,:)
	@cargo bench $(CARGO_FLAGS) --profile $(PROFILE) -p tests --bench $(BENCH) \
	    $(if $(WITH_IMAGE_AGENT),-- --program "$(IMAGE_AGENT)")
endif

.PHONY: hostile
hostile: tools ## One hostile client against two coordinators of 256 MiB, ten minutes. `make hostile` or `make hostile SECONDS=60`
	$(call say,building the coordinator and the bench as $(PROFILE) (release takes some minutes))
	@cargo build $(CARGO_FLAGS) --profile $(PROFILE) -p leasehold-coordinator
	@cargo bench $(CARGO_FLAGS) --profile $(PROFILE) -p tests --bench hostile -- \
	    --seconds $(RUN_SECONDS)

.PHONY: reconnects
reconnects: ## How long 50 agents wait for a grant after each of 200 failovers. `make reconnects` or `make reconnects FAILOVERS=20`
	$(call say,building the coordinator and the bench as $(PROFILE) (release takes some minutes))
	@cargo build $(CARGO_FLAGS) --profile $(PROFILE) -p leasehold-coordinator
	@cargo bench $(CARGO_FLAGS) --profile $(PROFILE) -p tests --bench reconnects -- \
	    --failovers $(FAILOVERS)

.PHONY: screenshots
screenshots: binaries ## Pictures of each view of the page, in target/page; README=1 renews README's. `make screenshots`
	@$(MAKE) tools TOOLS=chromium
	@cargo build $(CARGO_FLAGS) -p tests --bin screenshots
	$(call say,taking pictures of a real fleet (two minutes))
	@"$(TARGET)/debug/screenshots" --folder "$(TARGET)/page" \
	    $(if $(README),--readme docs/images/page.png)

.PHONY: generate
generate: ## Code from the protos, CRDs and docs/METRICS.md from the types, docs/reference, the chart's copies and table. `make generate`
	@cargo run --quiet $(CARGO_FLAGS) -p leasehold-generate
	@UPDATE_EXPECT=1 cargo test --quiet $(CARGO_FLAGS) --workspace --test prometheus the_document
	@cargo run --quiet $(CARGO_FLAGS) -p leasehold-coordinator -- crds | awk '\
	    /^---$$/ { next } /^# deploy\/crds\// { file = substr($$2, 1, length($$2) - 1) } \
	    { print > file }'
	@cp deploy/crds/*.leasehold.dev.yaml deploy/helm/leasehold/files/crds/
	@cp deploy/components/prometheus/alerts.yaml deploy/helm/leasehold/files/
	@tests/tools/chart_readme
	@cargo build --quiet $(CARGO_FLAGS) -p leasehold-coordinator -p leasehold-agent -p leasehold-cli
	@tests/tools/reference "$(TARGET)/debug"

.PHONY: contract
contract: tools ## At a release: writes the contract that later protos must keep. `make contract`
	$(call say,writing tests/tools/contract.binpb)
	@$(BUF) build --exclude-source-info -o tests/tools/contract.binpb

.PHONY: binaries
binaries: ## The coordinator, the agent, the command line and the demo, not optimised. `make binaries`
	$(call say,building coordinator$(comma) agent$(comma) command line and demo (a few minutes the first time))
	@cargo build $(CARGO_FLAGS) -p leasehold-coordinator -p leasehold-agent -p leasehold-cli -p leasehold-demo
	@cargo build $(CARGO_FLAGS) -p leasehold --example worker --example backups

.PHONY: images
images: ## Container images without a builder, in .cache/images. `make images`, `make images PROFILE=dev` or `make images ARCH="amd64 arm64"`
	@cargo run --quiet $(CARGO_FLAGS) -p leasehold-release -- images --output .cache/images $(RELEASE)

.PHONY: release
release: ## Programs, images, packages, chart and checksums for amd64 and arm64, in target/dist. `make release` or `make release IMAGES=registry.example/leasehold`
	@$(MAKE) tools TOOLS=packaging
	@cargo run --quiet $(CARGO_FLAGS) -p leasehold-release -- all --output "$(TARGET)/dist" $(RELEASE)

.PHONY: tools
tools: ## buf, grpcurl, mdbook, Helm, otelcol, Prometheus, PostgreSQL, ffmpeg, Kafka's clients, Dapr's placement, TypeScript, what packs releases, the last release, a Kubernetes and its neighbours, a browser and g++; the first time some 30 minutes. `make tools` or `make tools TOOLS=grpcurl`
	@tests/tools/install $(TOOLS)

.PHONY: cluster
cluster: tools ## A real Kubernetes to try things by hand in, until Ctrl-C. `make cluster` or `make cluster NODE=1`
	@cargo build $(CARGO_FLAGS) -p tests --bin cluster
	@cargo run --quiet $(CARGO_FLAGS) -p tests --bin cluster -- $(if $(NODE),--node)

.PHONY: clean
clean: ## Removes everything that was built. `make clean`
	@cargo clean
	@rm -rf .cache agent/sdk/typescript/dist agent/sdk/typescript/node_modules

.PHONY: enough-space
enough-space:
	@tests/tools/check_free_space

.PHONY: fresh-notes
fresh-notes:
	@mkdir -p .cache && rm -f .cache/left-out
