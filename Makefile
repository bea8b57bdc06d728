# Everything a newcomer, a maintainer or CI runs. `make` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
# uv from the PATH, else one of our own: pip may not write into a Debian Python.
UV := $(shell command -v uv || echo .cache/uv/bin/uv)

.PHONY: help setup kube-tools lint check test test-next e2e images demo observe grid bench-gate bench-control bench-kube \
	bench-fence bench-composition bench-exactness bench-distributed bench-cost bench-dominance bench-churn bench-copies bench-cpu \
	scoreboard docs docs-reference proto clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## install everything into .venv (and redis-server, chromium, when root on Debian)
	@UV=$(UV) scripts/setup

kube-tools: ## build etcd, the Kubernetes control plane, kubectl and helm for the tests (needs Go)
	@scripts/kube-tools

lint: setup ## rules, formatting, types and layers; no tests
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/basedpyright
	.venv/bin/lint-imports

check: lint ## lint, and the tests that need neither servers nor vLLM (under 2 minutes)
	$(PY) scripts/run_tests.py architecture protocol mailbox fence

test: lint ## lint, and every test but those of the images (makes the Kubernetes binaries: needs Go)
	$(PY) scripts/run_tests.py

test-next: setup ## the engine's tests on vLLM 0.32.0, in an environment of its own (docs/vllm-versions.md)
	@UV=$(UV) scripts/setup-next
	.cache/next/venv/bin/python scripts/run_tests.py fence tier engine engine_api -- -W ignore

e2e: setup kube-tools ## helm install on a real API server, pods as processes, every scenario (needs root)
	$(PY) scripts/run_tests.py kubernetes e2e

images: setup ## build and try the container images with buildah and podman (needs root)
	scripts/images
	$(PY) scripts/run_tests.py images

demo: setup ## the story of a superseded coding agent, beside abort and resend (out/demo)
	UV=$(UV) .venv/bin/retire demo

observe: setup ## the demo's stack with collector, Jaeger and Prometheus, and where to look (needs Go)
	@scripts/observe-tools
	$(PY) -m bench.observe

grid: setup ## every state x event cell on a real engine, as a table
	$(PY) -m bench.grid

bench-gate: setup ## what one publication check costs, in ns
	$(PY) -m bench.gate

bench-control: setup ## SUPERSEDE to UNPUBLISHABLE without an engine, 1 and 64 gates
	$(PY) -m bench.control

bench-fence: setup ## what is left of superseded work, on every path of the paper's Table 10
	for paths in long speculation two_groups; do $(PY) -m bench.fence --paths $$paths; done

bench-composition: setup ## what each half of a transition saves, and both (the paper's Table 5)
	$(PY) -m bench.composition

bench-exactness: setup ## successors say what a clean run says, and the comparison can tell
	$(PY) -m bench.exactness

bench-distributed: setup ## several ranks: fence, inheritance, a co-tenant (the paper's Table 6; TOPOLOGIES=tp2,pp2)
	$(PY) -m bench.distributed --topologies $(or $(TOPOLOGIES),tp2)

bench-cost: setup ## what the plugin costs where nothing is revised (the paper's Table 11)
	$(PY) -m bench.cost

bench-dominance: setup ## overlap x instant x quantum: never slower than abort + prefix caching? (12 min)
	$(PY) -m bench.dominance

bench-churn: setup ## a retained prefix under cache pressure, in HBM and in DRAM (5 min)
	$(PY) -m bench.churn

bench-copies: setup ## transfers of the DRAM tier against plain copies (1 min)
	$(PY) -m bench.copies

bench-replay: setup ## agents that revise in bursts, beside abort and resend (SESSIONS=FILE: recorded ones)
	$(PY) -m bench.replay $(if $(SESSIONS),--sessions $(SESSIONS))

bench-kube: setup kube-tools ## kubectl apply to UNPUBLISHABLE, 500 scopes, the operator's memory
	PYTHONPATH=. $(PY) -m bench.kube

bench-cpu: setup ## every table's command in small, as tests of its rows, controls and pictures
	$(PY) scripts/run_tests.py bench

scoreboard: setup ## every result against its goal, missed ones first
	$(PY) -m bench.scoreboard

docs: setup ## the documentation as a site, in out/docs; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-reference: setup ## write docs/reference and the pictures of "how it works" from the code again
	$(PY) scripts/docs_reference.py

proto: setup ## generate the gRPC code of the sidecar again
	$(PY) -m grpc_tools.protoc -Iretire/sidecar/pb=node/retire/sidecar \
		--python_out=node --pyi_out=node --grpc_python_out=node retire/sidecar/pb/node.proto

clean: ## remove what can be made again: environment, caches, outputs
	rm -rf .venv .cache out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
