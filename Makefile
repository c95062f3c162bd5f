# Every step of CI is a target here. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3
# CUDA=12: torch for CUDA 12, which runs with drivers from 525 on (docs/image.md), in an environment of its own. What a
# site's modules call CUDA does not count.
ifeq ($(filter 12 13,$(CUDA)),)
ifeq ($(origin CUDA),command line)
$(error CUDA=$(CUDA) is neither 13 nor 12)
endif
CUDA := 13
endif
VARIANT := $(if $(filter 12,$(CUDA)),-cuda12)
LOCK := requirements$(VARIANT).lock
# CPU_INDEX=URL: torch and torchvision come from this index, which has builds for the CPU: 1 GB instead of 6.
VENV ?= .venv$(VARIANT)$(if $(CPU_INDEX),-cpu)
BIN := $(VENV)/bin
export CUDA
# How many test files run at a time.
JOBS ?= $(shell nproc)
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate
# Proofs of docs/evidence/reliability.md: one JSON object a line, more of each than CI runs.
TRIALS := chaos bitexact crashpoints bitrot badinputs preempt detect
SHELL_FILES = $(shell git ls-files ':!*.py' ':!entrypoint/scripts' | xargs -r grep -lE -m 1 '^\#!/(usr/)?bin/(env )?(ba)?sh$$')

.PHONY: help run test test-slow test-image test-cluster test-reliability test-all test-share lint format env env-dev lock testbed image sif sbom sign verify reliability-page bench reference docs pictures clean $(TRIALS)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 18

run: env ## make .venv and train the quickstart
	@$(BIN)/train

# A caller's TESTS are run whatever their tier.
PYTEST = PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test: env-dev ## run the quick tests: ten minutes, no root, no container engine, no cluster
	@$(PYTEST) $(or $(TESTS),--tier=test)

.PHONY: test-entrypoint
test-entrypoint: BIN := .venv-entrypoint/bin
test-entrypoint: VENV := .venv-entrypoint
test-entrypoint: .venv-entrypoint/.installed ## test the launcher without torch: a minute from nothing
	@$(INSTALL_PROJECT)
	$(PYTEST) --tier=test $(or $(TESTS),tests/entrypoint)

test-slow: env-dev ## run longer trainings and measurements, which need no engine either
	@$(PYTEST) --tier=slow $(TESTS)

test-image test-cluster test-reliability: env-dev testbed
	@$(PYTEST) --tier=$(@:test-%=%) $(TESTS)
test-image: ## build the image and test it with a real container engine
test-cluster: ## as root on Debian: run jobs on a real Slurm with Apptainer
test-reliability: ## inject faults into trainings, and kill and resume them

test-all: env-dev testbed ## run every test, as before a release, and measure what of the code they run
	@rm -rf .coverage .coverage.* build/mutants
	COVERAGE_FILE=$(CURDIR)/.coverage COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='entrypoint/*' --fail-under=90
	$(BIN)/coverage report --include='train/*' --fail-under=85

# SHARE=3/7: the fourth seventh of the slower tests (0/7 is the first), and the few of them that run each time.
test-share: env-dev testbed
	@$(PYTEST) --tier=slow,image,cluster,reliability --share=$(SHARE)

lint: env-dev ## check style, types, shell scripts, and that documents and code agree
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck $(SHELL_FILES) entrypoint/job_functions.sh
	$(PYTEST) --tier=lint tests/lint

format: env-dev ## rewrite the code in the one format
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

env: $(VENV)/.runtime ## make .venv from requirements.lock
	@$(INSTALL_PROJECT)

env-dev: $(VENV)/.dev
	@$(INSTALL_PROJECT)

# What takes minutes says what it does. pip's word for its own new version would be about a pip that is not locked.
PIP := --disable-pip-version-check

# Again for another checkout or another pyproject.toml: an environment may be shared (CI keeps one outside the checkout).
INSTALL_PROJECT = state="$(CURDIR) $$(sha256sum < pyproject.toml)"; \
	[[ $$(cat $(VENV)/.checkout 2>/dev/null) == "$$state" ]] || { \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e . && \
	echo "$$state" > $(VENV)/.checkout; }

%/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	  echo 'ERROR: Python 3.11 or newer is needed'; echo '  fix: apt-get install python3, or make PYTHON=python3.13 ...'; exit 1; } >&2
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || {
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
	  echo 'ERROR: $(PYTHON) cannot make a virtual environment'; echo "  fix: apt-get install $$package"; exit 1; } >&2
	$(PYTHON) -m venv $(@D)
	touch $@

ifeq ($(CPU_INDEX),)
$(VENV)/.runtime: $(LOCK) $(VENV)/.python
	@echo 'installing the locked packages (once; about two minutes and 6 GB, most of it CUDA)'
	$(BIN)/python -m pip install $(PIP) --require-hashes -r $(LOCK)
	touch $@
else
# The lock has no hashes of these builds. What only CUDA needs is left out.
$(VENV)/.runtime: $(LOCK) $(VENV)/.python
	@echo 'installing torch and torchvision of CPU_INDEX, without hashes, then the other locked packages (once)'
	$(BIN)/python -m pip install $(PIP) --no-deps --index-url '$(CPU_INDEX)' $$(grep -oE '^torch(vision)?==[0-9.]+' $(LOCK))
	awk '/^[a-z]/ {keep = !/^(torch|triton|cuda-|nvidia-[^m])/} keep' $(LOCK) > $(VENV)/cpu.lock
	$(BIN)/python -m pip install $(PIP) --no-deps --require-hashes -r $(VENV)/cpu.lock
	touch $@
endif

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@echo 'installing what checks and tests need (once; less than a minute)'
	$(BIN)/python -m pip install $(PIP) --no-deps --require-hashes -r requirements-dev.lock
	touch $@

# What the launcher and its tests import, and what those packages need.
LAUNCHER_NEEDS := coverage|execnet|hypothesis|iniconfig|nvidia-ml-py|packaging|pluggy|pygments|pytest|pytest-timeout|pytest-xdist|pyyaml|setuptools|sortedcontainers
.venv-entrypoint/.installed: requirements.lock requirements-dev.lock .venv-entrypoint/.python
	@echo 'installing what the tests of the launcher need (once; a few seconds)'
	awk '/^[a-z]/ {keep = /^($(LAUNCHER_NEEDS))==/} keep' requirements.lock requirements-dev.lock > $(@D)/needs.lock
	$(@D)/bin/python -m pip install $(PIP) --quiet --no-deps --require-hashes -r $(@D)/needs.lock
	touch $@

lock: env-dev ## write the lock files from pyproject.toml
	@$(UV_COMPILE) --extra build pyproject.toml -o requirements.lock
	cp requirements.lock requirements-cuda12.lock # uv keeps the versions that it finds, where they fit
	$(UV_COMPILE) --extra build --extra cuda12 pyproject.toml -o requirements-cuda12.lock
	# Only what the runtime locks do not hold: it is installed beside either of them.
	$(UV_COMPILE) --extra build --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock \
	  $$(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package \1/p' requirements.lock | sort -u)
	$(UV_COMPILE) docs/requirements.txt -o requirements-docs.lock
	# boto3 takes an older python-dateutil than matplotlib here: the peers get their own.
	$(UV_COMPILE) bench/peers/requirements.txt -o requirements-bench.lock \
	  $$(sed -nE '/^python-dateutil=/d; s/^([a-z0-9-]+)==.*/--no-emit-package \1/p' requirements.lock | sort -u)

testbed: ## as root on Debian: install and build the real engines that the tests use
	@tests/testbed

image: ## build the OCI image `train` with docker, podman or buildah (CUDA=12: for drivers from 525 on)
	@tools/build-image image

sif: ## build train.sif (with CUDA=12 train-cuda12.sif)
	@tools/build-image sif $(SIF)

sbom: env-dev ## list every package of the built image in sbom/train.cdx.json
	@$(BIN)/python tools/sbom

SIF ?= train$(VARIANT).sif

sign: ## sign SIF (train.sif) with the private key KEY (docs/image.md)
	@tools/signature sign "$(SIF)" "$(KEY)"

verify: ## check the signature of SIF (train.sif) with the public key KEY
	@tools/signature verify "$(SIF)" "$(KEY)"

chaos: ## inject every fault of docs/evidence/failures.md, SEEDS=5 times, and compare what happens
bitexact: ## kill -9 at N=200 random times, resume, and compare the final weights bit by bit
crashpoints: ## fail and kill a checkpoint's commit in each of its system calls
bitrot: ## flip N=10000 random bits of checkpoints, one at a time
badinputs: ## give the program every bad input that the tests know
preempt: ## stop, preempt, requeue and cut off jobs of a real Slurm cluster
detect: ## measure how soon a death and a hang are named, and count orphans
SEEDS ?= 5
$(TRIALS): env-dev
	@PATH=$(abspath $(BIN)):$$PATH SEEDS=$(SEEDS) N=$(N) $(BIN)/python tests/reliability/$@.py

reliability-page: env-dev ## write what the proofs saw into docs/evidence/reliability.md
	@$(BIN)/python tests/reliability/page.py

# Only the processes of the peers look there: bench/input.py.
.venv-bench/.installed: requirements-bench.lock $(VENV)/.runtime
	@echo 'installing the loaders that are compared with (once)'
	rm -rf .venv-bench
	$(BIN)/python -m pip install $(PIP) --quiet --no-deps --require-hashes --target .venv-bench -r requirements-bench.lock
	touch $@

bench: env .venv-bench/.installed ## measure every row of docs/evidence/performance.md that this machine can, beside its peers, and write it there
	@code=0
	$(BIN)/python -m bench all --output build/bench $(if $(wildcard $(SIF)),--sif $(SIF)) $(BENCH) || code=$$?
	((code == 0 || code == 69)) || exit "$$code" # 69: a peer ended, and the other rows are measured
	$(BIN)/python bench/write_page.py build/bench/bench.json
	exit "$$code"

reference: env ## write the tables of docs/reference.md and the quickstart's comments from the code
	@$(BIN)/python docs/write_reference.py

# Its own environment, since a site needs no torch.
.venv-docs/.installed: requirements-docs.lock $(VENV)/.python
	@echo 'installing what builds the site (once)'
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install $(PIP) --quiet --require-hashes -r requirements-docs.lock
	touch $@

docs: .venv-docs/.installed ## build the documentation as a site with search in build/site, and check its links
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	echo 'build/site/index.html; with search: python3 -m http.server --bind 127.0.0.1 --directory build/site'

pictures: env-dev ## take the pictures in docs/pictures anew, of a real training (needs tmux and chromium)
	@$(BIN)/python docs/pictures.py

clean: ## remove what was built here (not the caches)
	@rm -rf .venv .venv-* build *.egg-info .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
