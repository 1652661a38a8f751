# Punctual's commands; `make help` lists them. The only needs are make and Python 3.11 or newer.
PYTHON ?= python3
SETUP := $(PYTHON) -I launch/environment.py
PY := .venv/bin/python
# Tests that a developer wants to single out: make test T=tests/core
T ?= tests
export PYTHONDONTWRITEBYTECODE :=
# Kept for the next clone: nothing is checked again that has not changed.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/punctual
export MYPY_CACHE_DIR ?= $(CACHE)/mypy
export RUFF_CACHE_DIR ?= $(CACHE)/ruff

.DEFAULT_GOAL := help
# Of attacks in `make hostile`, and the seed of their order: make hostile MINUTES=3 SEED=7
MINUTES ?= 10
# Of faults in `make chaos`: seeds 1 to SCHEDULES, or SEED alone; CLOCK=1, SERVERS=1, RESERVE=2, PLANT=short-fence
SCHEDULES ?= 200

.PHONY: help setup setup-dev run demo status down nine test test-live test-all test-gpu chaos hostile images test-images core database lint style types contracts check drift format openapi schema screenshots bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make the environment in .venv (run and test do this too)
	@$(SETUP)

setup-dev:
	@$(SETUP) --dev --browser

run: setup ## Start the whole platform on this machine; Ctrl-C stops it, the data stays
	@exec $(PY) -m launch up

demo: ## On a running platform: submit a mixed workload for some minutes
	@$(PY) -m launch demo

status: ## Show the processes of the running platform
	@$(PY) -m launch status

down: ## Stop the running platform from another terminal; YES=1 skips the question
	@$(PY) -m launch down $(if $(YES),--yes)

nine: MINUTES = 20
nine: setup ## Run all nine systems at once on a separate platform for MINUTES=20; report promises and effects
	@$(PY) -m benchmarks.nine_systems --live --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(WRITE),--write $(WRITE))

# Processes of tests: as many as cores, so that no lane computes beside more others than there are.
CORES := $(shell cores=$$(nproc 2>/dev/null || echo 2); [ $$cores -gt 8 ] && cores=8; echo $$cores)
LANES ?= $(CORES)
PARALLEL := -n $(LANES) --dist worksteal
# Whatever fails, the rest runs. Pytest's closing line is the last one of a good run.
define gate
@failed=; \
echo "== lint, types, contracts, drift; the compiled core and the schema that tests begin with"; \
$(MAKE) --no-print-directory -k -j$(CORES) --output-sync=target types core database style contracts drift || failed="$$failed checks"; \
$(if $(filter tests,$(T)),echo "== smoke"; $(PY) -m pytest -m smoke tests/end_to_end || failed="$$failed smoke";) \
echo "== tests"; $(PY) -m pytest $(PARALLEL) $(1) $(T) || failed="$$failed tests"; \
if [ -n "$$failed" ]; then echo "FAILED:$$failed (see above)" >&2; exit 1; fi
endef

test: setup-dev ## Lint, types, contracts, drift, one life cycle on a running platform, all quick tests
	$(call gate,)

test-live: setup-dev ## Tests by the real clock, one after the other; leave the machine idle meanwhile
	@$(PY) -m tests.live $(T)

# Random tests draw new examples, by a seed that is printed: make test-all SEED=7 draws the same again.
test-all: setup-dev ## test and test-live, the slow tests, and ten times as many random examples
	$(eval SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')))
	@echo "random tests draw with SEED=$(SEED)"
	$(call gate,-m 'not live and not smoke and not images' --hypothesis-profile=thorough --hypothesis-seed=$(SEED))
	@$(PY) -m tests.live --slow $(T)

# Sets nothing up: it runs with the torch that is found on a machine with a GPU, and without a network.
test-gpu: ## Tests on a real GPU, if there is one
	@$(PYTHON) -m tests.gpu

chaos: setup-dev ## Run two hundred seeded schedules of faults on separate platforms; resumes where it stopped
	@$(PY) -m tests.faults --schedules $(SCHEDULES) $(if $(SEED),--seed $(SEED)) $(if $(CLOCK),--clock) $(if $(SERVERS),--servers) $(if $(RESERVE),--reserve $(RESERVE)) $(if $(PLANT),--plant $(PLANT)) $(if $(RECORD),--record $(RECORD)) $(if $(EVIDENCE),--evidence $(EVIDENCE))

hostile: setup-dev ## Run hostile and careless users on a separate platform for ten minutes and check invariants
	@$(PY) -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(EVIDENCE),--evidence $(EVIDENCE))

images: setup ## Build the images without a container engine, by buildah and mmdebstrap (docker/README.md)
	@$(PY) docker/build_images.py

test-images: setup-dev ## Build the images and train a job with them, in a quarter of an hour
	$(PY) -m pytest -m images tests/images

core: setup-dev
	$(PY) -m launch.compile_core

database: setup-dev
	$(PY) -m tests.plugins.embedded_servers

lint: style types contracts ## Style, types and import contracts

style: setup-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup-dev
	$(PY) -m mypy

contracts: setup-dev
	.venv/bin/lint-imports

check: drift

drift: setup-dev ## Django's checks, missing migrations, drift of the OpenAPI document
	$(PY) -m tests.drift

format: setup-dev ## Format the code and sort its imports
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .

schema: setup-dev ## Write launch/schema.sql from the migrations
	@$(PY) -m tests.schema

openapi: setup-dev ## Write docs/openapi.yaml from the code
	@$(PY) manage.py spectacular --file docs/openapi.yaml --validate

screenshots: setup-dev ## Take pictures of every page of the running platform: make screenshots LOGIN="demo PASSWORD"
	@$(PY) -m tests.dashboard.take_screenshots $(or $(URL),http://127.0.0.1:8000) $(LOGIN)

# What takes minutes or a running platform is in benchmarks/long: each by itself.
BENCH = $(foreach package,experts gradients lending runtime scheduling,benchmarks/$(package)/*.py)
bench: setup-dev ## The short set of benchmarks: ratios, not bare times
	@for file in $$(grep -l '"__main__"' $(BENCH)); do echo "== $$file"; \
		$(PY) -m $$(echo $${file%.py} | tr / .) || exit 1; done

lock: setup-dev ## Write constraints.txt from the requirements
	@.tool/bin/uv pip compile --quiet --no-header --no-annotate --upgrade requirements-dev.txt requirements-storage.txt -o constraints.txt
	@sed -i 's/+cpu$$//' constraints.txt

clean: ## Remove the environment and all caches; the platform's data stays
	rm -rf .venv .tool .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
