# Everything a newcomer, a maintainer or CI runs. `make` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
# uv from the PATH, else one of our own: pip may not write into a Debian Python.
UV := $(shell command -v uv || echo .cache/uv/bin/uv)

.PHONY: help setup lint check test demo grid bench-gate bench-control scoreboard proto clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## install everything into .venv (and redis-server, when root on Debian)
	@UV=$(UV) scripts/setup

lint: setup ## rules, formatting, types and layers; no tests
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/basedpyright
	.venv/bin/lint-imports

check: lint ## lint, and the tests that need neither servers nor vLLM (under 2 minutes)
	$(PY) scripts/run_tests.py architecture protocol mailbox

test: lint ## lint, and every test, the cheap ones first
	$(PY) scripts/run_tests.py

demo: setup ## the story of a superseded coding agent, beside abort and resend (out/demo)
	UV=$(UV) .venv/bin/retire demo

grid: setup ## every state x event cell on a real engine, as a table
	$(PY) -m bench.grid

bench-gate: setup ## what one publication check costs, in ns
	$(PY) -m bench.gate

bench-control: setup ## SUPERSEDE to UNPUBLISHABLE without an engine, 1 and 64 gates
	$(PY) -m bench.control

scoreboard: setup ## every result against its goal, missed ones first
	$(PY) -m bench.scoreboard

proto: setup ## generate the gRPC code of the sidecar again
	$(PY) -m grpc_tools.protoc -Iretire/sidecar/pb=node/retire/sidecar \
		--python_out=node --pyi_out=node --grpc_python_out=node retire/sidecar/pb/node.proto

clean: ## remove what can be made again: environment, caches, outputs
	rm -rf .venv .cache out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
