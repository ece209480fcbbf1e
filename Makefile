# Everything runs in the project's locked environment (.venv), which `uv` makes; nothing has to be installed by hand.
# Two things are kept between runs: build/ here, and ~/.cache/elastic-tfjob with what takes long to build.

SHELL := /bin/sh
.DEFAULT_GOAL := help
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/elastic-tfjob

# Found or installed when a target first needs it.
UV = $(eval UV := $$(shell e2e/bootstrap))$(or $(UV),$(error no uv: see above))
RUN = PYTHONPATH=tests $(UV) run --frozen --quiet

# Also what is marked `thorough` (pyproject.toml).
ALL = -m 'not kueue and not linters and not people and not trainer'

# Tests start hundreds of Pythons. Where the environment has nothing written down, each would compile all that it imports
# (TensorFlow: 13 s instead of 4).
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  \033[1m%-26s\033[0m %s\n", "make " $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv ## from nothing to a trained model: cluster, operator, a real TensorFlow job, a table; PAGE=1: the live page, until Ctrl-C
	@$(RUN) python -m harness.demo

.PHONY: test
test: .venv ## unit, integration and conformance tests on a real kube-apiserver and etcd: each promise once
	@$(RUN) python -m harness.binaries kube kwok training-operator helm >/dev/null
	$(RUN) pytest -n 4 --dist loadgroup $(PYTEST)

.PHONY: test-all
test-all: ## those, and all further variants of them: 40 minutes
	@$(MAKE) --no-print-directory test PYTEST="$(ALL) $(PYTEST)"

.PHONY: test-page
test-page: .venv ## the live page in a real Chromium, with axe (needs chromium and npm); PICTURES=1: writes docs/images
	@command -v "$(or $(CHROMIUM),chromium)" >/dev/null || { echo "Chromium is missing: apt-get install chromium, or CHROMIUM=PATH"; exit 1; }
	@command -v npm >/dev/null || { echo "npm is missing: apt-get install npm"; exit 1; }
	PYTHONPATH=tests $(UV) run --frozen --quiet --group page pytest tests/page $(PYTEST)

.PHONY: test-kueue
test-kueue: .venv ## jobs that a real Kueue admits, evicts and resumes, on a real control plane
	@$(RUN) python -m harness.binaries kube kwok kueue >/dev/null
	$(RUN) pytest tests/integration/test_kueue.py -m kueue $(PYTEST)

.PHONY: test-trainer
test-trainer: .venv ## TrainJobs of a real Kubeflow Trainer v2 that run as TFJobs, on a real control plane
	@$(RUN) python -m harness.binaries kube kwok jobset trainer-controller-manager >/dev/null
	$(RUN) pytest tests/integration/test_trainer.py -m trainer $(PYTEST)

.PHONY: test-scheduler
test-scheduler: .venv ## what the real kube-scheduler counts for PODS=500 generated pods, beside what the operator counts
	@$(RUN) python -m harness.binaries kube >/dev/null
	PODS=$(or $(PODS),500) $(RUN) pytest tests/integration/test_what_pods_take.py $(PYTEST)

.PHONY: lint-manifests
lint-manifests: .venv ## what kubeconform (by the schemas of a real API server) and kube-score say of the manifests
	@$(RUN) python -m harness.binaries kube kubeconform kube-score >/dev/null
	$(RUN) pytest tests/integration/test_manifest_linters.py -m linters $(PYTEST)

.PHONY: page-vendor
page-vendor: .venv ## the foreign files of the live page anew, from npm by tests/page/package-lock.json; CHECK=1: compare
	$(RUN) python -m page.vendor $(if $(CHECK),--check)

.PHONY: e2e
e2e: .venv ## scenarios on a real kind cluster: each promise once; MONKEY=1: while the leading operator is killed every 30 s
	@$(RUN) python -m harness.deploy
	MONKEY=$(MONKEY) $(RUN) pytest e2e $(if $(MONKEY),,-n 2 --dist load --maxschedchunk=1) $(PYTEST)

.PHONY: e2e-all
e2e-all: ## all scenarios on that cluster; MONKEY=1 as above
	@$(MAKE) --no-print-directory e2e PYTEST="$(ALL) $(PYTEST)"

.PHONY: e2e-people
e2e-people: .venv ## on the kind cluster: the live page in a real Chromium, what-if questions, pipelines in containers; PICTURES=1: docs/images
	@command -v "$(or $(CHROMIUM),chromium)" >/dev/null || { echo "Chromium is missing: apt-get install chromium, or CHROMIUM=PATH"; exit 1; }
	UV=$(UV) PYTHONPATH=tests $(UV) run --frozen --quiet --group page pytest e2e -m people $(PYTEST)

.PHONY: test-versions
test-versions: .venv ## programs with other Pythons and TensorFlows (VERSIONS="3.9/2.15 3.12/2.21"): a table, and build/bench/versions.json
	UV=$(UV) $(RUN) python -m harness.versions $(VERSIONS)

.PHONY: conformance-upstream
conformance-upstream: .venv ## the conformance suite against the Go training-operator: what proves the suite
	@$(RUN) python -m harness.binaries kube training-operator >/dev/null
	$(RUN) pytest tests/conformance -n 6 --operator=upstream $(ALL) $(PYTEST)

.PHONY: test-power-loss
test-power-loss: .venv ## checkpoints on a disk whose power is cut at INSTANTS=200 random instants, on FILE_SYSTEM=ext4 or xfs (root; a few minutes); also SEED, MOUNT_OPTIONS
	$(RUN) python -m harness.power_loss --instants $(or $(INSTANTS),200) --seed $(or $(SEED),1) --file-system $(or $(FILE_SYSTEM),ext4) --mount-options '$(MOUNT_OPTIONS)'

.PHONY: bench-operator
bench-operator: .venv ## speed of the operator beside the Go one: a table, and build/bench/operator.json
	@$(RUN) python -m harness.binaries kube kwok training-operator training-operator-unlimited >/dev/null
	$(RUN) python benchmarks/bench_operator.py

.PHONY: bench-scale
bench-scale: .venv ## 10,000 TFJobs on a real control plane: memory, idle CPU, restart, takeover: build/bench/scale.json
	@$(RUN) python -m harness.binaries kube kwok training-operator >/dev/null
	$(RUN) python benchmarks/bench_operator.py --jobs '' --replicas '' --output build/bench/scale.json

.PHONY: bench-capacity
bench-capacity: .venv ## memory and idle CPU of 10,000 jobs, plain and elastic, with a function as API server
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_capacity.py --jobs 10000
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_capacity.py --jobs 10000 --elastic --profile kips --nodes 1000

.PHONY: bench-query
bench-query: .venv ## CPU of a page of 50 among 10,000 jobs of the query API, and memory of the rows
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_query.py

.PHONY: bench-rescale
bench-rescale: .venv ## how long training stops when a job changes its size, beside today's ways; PROGRAM=all: by kind of program; COUNT=10 each way: build/bench/rescale.json
	$(RUN) python benchmarks/bench_rescale.py --rescales $(or $(COUNT),10) $(if $(PROGRAM),--program $(PROGRAM))

.PHONY: bench-moves
bench-moves: .venv ## how long training stops when a worker or a PS goes to another node, COUNT=10 times each: build/bench/moves.json
	$(RUN) python benchmarks/bench_moves.py --count $(or $(COUNT),10)

.PHONY: bench-hook
bench-hook: .venv ## what reporting costs at 1,000 steps/s, in the program and beside it: build/bench/hook.json
	$(RUN) python benchmarks/bench_hook.py --check --json build/bench/hook.json

.PHONY: bench-kips
bench-kips: .venv ## job completion times with kips, fixed and the Go operator on a cluster of real CPU: build/bench/kips.json
	$(RUN) python benchmarks/bench_kips.py

.PHONY: bench-kips-simulation
bench-kips-simulation: .venv ## kips beside fixed, DRF and Optimus in simulation: tables, and build/bench/kips-simulation.json
	$(RUN) python benchmarks/bench_kips_simulation.py

.PHONY: bench-deadline
bench-deadline: .venv ## deadlines met with deadline, fixed and the Go operator on a cluster of real CPU: build/bench/deadline.json
	$(RUN) python benchmarks/bench_deadline.py

.PHONY: bench-specon
bench-specon: .venv ## jobs from an uneven start with specon and the Go operator on a cluster of real CPU: build/bench/specon.json
	$(RUN) python benchmarks/bench_specon.py

.PHONY: bench-dl2
bench-dl2: .venv ## jobs under drf, optimus and a policy that learns from them on a cluster of real CPU: build/bench/dl2.json
	$(RUN) python benchmarks/bench_dl2.py

.PHONY: bench-deadline-qos
bench-deadline-qos: .venv ## the deadlines of Xing et al. in simulation, one job alone: build/bench/deadline-qos.json
	$(RUN) python benchmarks/bench_deadline_qos.py

.PHONY: bench-deadline-simulation
bench-deadline-simulation: .venv ## deadlines met beside edf, fixed and the bounds: a table, and build/bench/deadline-simulation.json (needs the public traces)
	$(RUN) python benchmarks/bench_deadline_simulation.py

.PHONY: bounds
bounds: .venv ## how many deadlines anybody could meet on those inputs, by linear programs: build/bench/bounds.json (needs the public traces)
	$(RUN) python benchmarks/bounds.py

.PHONY: bench-hull-simulation
bench-hull-simulation: .venv ## hull beside fifo, srtf, drf, Optimus and a bound in simulation: a table, and build/bench/hull-simulation.json
	$(RUN) python benchmarks/bench_hull_simulation.py

.PHONY: bench-dl2-ablations
bench-dl2-ablations: .venv ## what each part of training dl2 is worth, an hour: a table, and build/bench/dl2-ablations.json
	$(RUN) python benchmarks/bench_dl2_ablations.py

.PHONY: bench-dl2-simulation
bench-dl2-simulation: .venv ## dl2 beside drf, Optimus, hull and the bound in simulation: a table, and build/bench/dl2-simulation.json
	$(RUN) python benchmarks/bench_dl2_simulation.py

.PHONY: bench-specon-simulation
bench-specon-simulation: .venv ## specon, SpeCon as published and rebalance in simulation: a table, and build/bench/specon-simulation.json
	$(RUN) python benchmarks/bench_specon_simulation.py

.PHONY: bench-aryl-simulation
bench-aryl-simulation: .venv ## aryl beside FIFO and SJF, with and without loans and scaling: a table, and build/bench/aryl-simulation.json (needs the public traces)
	$(RUN) python benchmarks/bench_aryl_simulation.py

.PHONY: bench-aryl-reclaim
bench-aryl-reclaim: .venv ## jobs stopped by each rule of a reclaim beyond the fewest that are possible: a table, and build/bench/aryl-reclaim.json (needs the public traces)
	$(RUN) python benchmarks/bench_aryl_reclaim.py

.PHONY: bench-aryl
bench-aryl: .venv ## jobs and a model server with loans of nodes, without, and with the Go operator: build/bench/aryl.json
	$(RUN) python benchmarks/bench_aryl.py

.PHONY: bench-elastic
bench-elastic: .venv ## many kinds of jobs and a model server with elastic, kips, fixed and the Go operator: build/bench/elastic.json
	$(RUN) python benchmarks/bench_elastic.py

.PHONY: bench-elastic-simulation
bench-elastic-simulation: .venv ## elastic on the ground of each other profile, beside that one: a table, and build/bench/elastic-simulation.json
	$(RUN) python benchmarks/bench_elastic_simulation.py

.PHONY: bench-elastic-mix
bench-elastic-mix: .venv ## elastic and each profile alone on a common mix of jobs: a table, and build/bench/elastic-mix.json
	$(RUN) python benchmarks/bench_elastic_mix.py

.PHONY: campaign
campaign: .venv ## the operator against crashes, broken watches, seeded defects, tenants, and faults by seed for SECONDS=600 (RESUME=1: go on where one was stopped): build/bench/campaign.json
	PYTHONPATH=tests $(UV) run --frozen --quiet python -m campaign.run --seconds $(or $(SECONDS),600) $(if $(RESUME),--resume)

.PHONY: bench-scheduling
bench-scheduling: .venv ## cost of a scheduling round from 100 to 10,000 jobs: a table, and build/bench/scheduling.svg
	@mkdir -p build/bench
	$(RUN) python benchmarks/bench_scheduling.py --plot build/bench/scheduling.svg

.PHONY: bench-simulator
bench-simulator: .venv ## jobs that the simulator gets through per CPU-second (needs the public traces)
	$(RUN) python benchmarks/bench_simulator.py

.PHONY: anchors
anchors: .venv ## numbers of other simulators on the same input, and ours beside them (needs the public traces)
	$(RUN) python benchmarks/anchors.py

.PHONY: lint
lint: .venv ## format, style, types, import rules, and that the CRD and docs/reference are the generated ones
	@$(MAKE) --no-print-directory -j 2 -O lint-types lint-rest

.PHONY: lint-types lint-rest
lint-types:
	$(RUN) mypy
lint-rest:
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) lint-imports
	@$(RUN) elastic-tfjob crd | diff -u manifests/base/crd.yaml - \
	  || { echo "manifests/base/crd.yaml is old: elastic-tfjob crd > manifests/base/crd.yaml"; exit 1; }
	@PYTHONPATH=tests $(UV) run --frozen --quiet python -m unit.reference --check
	@$(RUN) python -m harness.names --check

.PHONY: record
record: .venv ## what every profile decides, anew, for tests/unit/scheduling/test_recorded.py: a minute
	$(RUN) python -m unit.scheduling.recorded

.PHONY: reference
reference: .venv ## docs/reference and docs/contract.md, from the code
	PYTHONPATH=tests $(UV) run --frozen --quiet python -m unit.reference

# An environment of its own, so that .venv is left as it is.
DOCS = NO_MKDOCS_2_WARNING=1 UV_PROJECT_ENVIRONMENT=build/docs-environment $(UV) run --frozen --quiet --only-group docs

.PHONY: docs
docs: ## the site of docs/ into build/site, with all links checked
	$(DOCS) mkdocs build --strict

.PHONY: docs-publish
docs-publish: ## the site as VERSION=1.2 (ALIAS=latest) onto the branch gh-pages of the remote origin
	@[ -n "$(VERSION)" ] || { echo "VERSION is missing: make docs-publish VERSION=1.2"; exit 1; }
	$(DOCS) mike deploy --push --update-aliases $(VERSION) $(ALIAS)

.PHONY: names
names: .venv ## where released images (REGISTRY=ghcr.io/you) and the source (REPOSITORY=https://...) are: written wherever it is said
	@$(RUN) python -m harness.names $(REGISTRY) $(REPOSITORY)

.PHONY: pipelines
pipelines: ## the components for Kubeflow Pipelines, compiled from their sources
	$(UV) run --quiet --locked --script kubeflow_pipelines/compile.py

.PHONY: cluster
cluster: .venv ## a kind cluster of three nodes (kubeconfig and kubectl in build/)
	@$(RUN) python -m harness.cluster

.PHONY: image
image: .venv ## the images of operator and trainer
	@$(RUN) python -m harness.images operator trainer

.PHONY: deploy
deploy: .venv ## the CRD and the operator on the kind cluster, by kustomize
	@$(RUN) python -m harness.deploy

.PHONY: clean
clean: ## delete the cluster, the images, build/ and .venv; the cache stays
	@python=.venv/bin/python; [ -x $$python ] || python=python3; PYTHONPATH=tests $$python -m harness.clean
	rm -rf build .venv

.PHONY: distclean
distclean: clean ## and the cache: built programs, Go
	rm -rf $(CACHE)

.venv: pyproject.toml uv.lock
	@begin=$$(date +%s); echo "▸ making the Python environment (.venv)"; $(UV) sync --frozen --quiet && touch .venv \
	  && echo "✓ making the Python environment: $$(($$(date +%s) - begin)) s"
