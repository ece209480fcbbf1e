# Everything runs in the project's locked environment (.venv), which `uv` makes; nothing has to be installed by hand.
# Two things are kept between runs: build/ here, and ~/.cache/elastic-tfjob with what takes long to build.

SHELL := /bin/sh
.DEFAULT_GOAL := help
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/elastic-tfjob

# Found or installed when a target first needs it.
UV = $(eval UV := $$(shell e2e/bootstrap))$(or $(UV),$(error no uv: see above))
RUN = PYTHONPATH=tests $(UV) run --frozen --quiet

# Also what is marked `thorough` (pyproject.toml).
ALL = -m 'not autoscaling and not karpenter and not kueue and not linters and not people and not trainer'

# Tests start hundreds of Pythons. Where the environment has nothing written down, each would compile all that it imports
# (TensorFlow: 13 s instead of 4).
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  \033[1m%-26s\033[0m %s\n", "make " $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv ## create a cluster, train a TensorFlow job on it, print a table of its rescales; PAGE=1: also serve the live page until Ctrl-C
	@$(RUN) python -m harness.demo

.PHONY: test
test: .venv ## unit, integration and conformance tests, on a real kube-apiserver and etcd
	@$(RUN) python -m harness.binaries kube kwok training-operator helm >/dev/null
	$(RUN) pytest -n 4 --dist loadgroup $(PYTEST)

.PHONY: test-all
test-all: ## the same with all variants of the tests: 40 minutes
	@$(MAKE) --no-print-directory test PYTEST="$(ALL) $(PYTEST)"

.PHONY: test-page
test-page: .venv ## test the live page in Chromium, also with axe (needs chromium and npm); PICTURES=1: write docs/images
	@command -v "$(or $(CHROMIUM),chromium)" >/dev/null || { echo "Chromium is missing: apt-get install chromium, or CHROMIUM=PATH"; exit 1; }
	@command -v npm >/dev/null || { echo "npm is missing: apt-get install npm"; exit 1; }
	PYTHONPATH=tests $(UV) run --frozen --quiet --group page pytest tests/page $(PYTEST)

.PHONY: test-kueue
test-kueue: .venv ## test jobs that a real Kueue admits, evicts and resumes
	@$(RUN) python -m harness.binaries kube kwok kueue >/dev/null
	$(RUN) pytest tests/integration/test_kueue.py tests/integration/test_kueue_growth.py -m kueue $(PYTEST)

.PHONY: test-karpenter
test-karpenter: .venv ## test jobs for which a real Karpenter adds and removes nodes
	@$(RUN) python -m harness.binaries kube kwok karpenter >/dev/null
	$(RUN) pytest tests/integration/test_karpenter.py -m karpenter $(PYTEST)

.PHONY: test-trainer
test-trainer: .venv ## test TrainJobs of a real Kubeflow Trainer v2 that run as TFJobs
	@$(RUN) python -m harness.binaries kube kwok jobset trainer-controller-manager >/dev/null
	$(RUN) pytest tests/integration/test_trainer.py -m trainer $(PYTEST)

.PHONY: test-scheduler
test-scheduler: .venv ## compare the resources that kube-scheduler and the operator count for PODS=500 generated pods
	@$(RUN) python -m harness.binaries kube >/dev/null
	PODS=$(or $(PODS),500) $(RUN) pytest tests/integration/test_what_pods_take.py $(PYTEST)

.PHONY: lint-manifests
lint-manifests: .venv ## check the manifests with kubeconform (schemas of a real API server) and kube-score
	@$(RUN) python -m harness.binaries kube kubeconform kube-score >/dev/null
	$(RUN) pytest tests/integration/test_manifest_linters.py -m linters $(PYTEST)

.PHONY: page-vendor
page-vendor: .venv ## update the page's vendored files from npm, by tests/page/package-lock.json; CHECK=1: only compare
	$(RUN) python -m page.vendor $(if $(CHECK),--check)

.PHONY: e2e
e2e: .venv ## end-to-end scenarios on a kind cluster; MONKEY=1: the leading operator is killed every 30 s
	@$(RUN) python -m harness.deploy
	MONKEY=$(MONKEY) $(RUN) pytest e2e $(if $(MONKEY),,-n 2 --dist load --maxschedchunk=1) $(PYTEST)

.PHONY: e2e-all
e2e-all: ## all end-to-end scenarios; MONKEY=1 as for e2e
	@$(MAKE) --no-print-directory e2e PYTEST="$(ALL) $(PYTEST)"

.PHONY: e2e-autoscaling
e2e-autoscaling: .venv ## end-to-end scenarios in which nodes join and are drained
	@$(RUN) python -m harness.deploy
	$(RUN) pytest e2e/test_autoscaling.py -m autoscaling $(PYTEST)

.PHONY: e2e-people
e2e-people: .venv ## end-to-end scenarios of the live page, what-if and pipelines; PICTURES=1: write docs/images
	@command -v "$(or $(CHROMIUM),chromium)" >/dev/null || { echo "Chromium is missing: apt-get install chromium, or CHROMIUM=PATH"; exit 1; }
	UV=$(UV) PYTHONPATH=tests $(UV) run --frozen --quiet --group page pytest e2e -m people $(PYTEST)

.PHONY: test-versions
test-versions: .venv ## test training programs with other versions (VERSIONS="3.9/2.15 3.12/2.21", Python/TensorFlow): build/bench/versions.json
	UV=$(UV) $(RUN) python -m harness.versions $(VERSIONS)

.PHONY: conformance-upstream
conformance-upstream: .venv ## run the conformance suite against the Go training-operator, to validate the suite
	@$(RUN) python -m harness.binaries kube training-operator >/dev/null
	$(RUN) pytest tests/conformance -n 6 --operator=upstream $(ALL) $(PYTEST)

.PHONY: test-power-loss
test-power-loss: .venv ## test checkpoints on a disk that loses power at INSTANTS=200 random instants, FILE_SYSTEM=ext4 or xfs (root; minutes); also SEED, MOUNT_OPTIONS
	$(RUN) python -m harness.power_loss --instants $(or $(INSTANTS),200) --seed $(or $(SEED),1) --file-system $(or $(FILE_SYSTEM),ext4) --mount-options '$(MOUNT_OPTIONS)'

.PHONY: bench-operator
bench-operator: .venv ## compare the operator's speed with the Go training-operator: build/bench/operator.json
	@$(RUN) python -m harness.binaries kube kwok training-operator training-operator-unlimited >/dev/null
	$(RUN) python benchmarks/bench_operator.py

.PHONY: bench-scale
bench-scale: .venv ## measure memory, idle CPU, restart and takeover with 10,000 TFJobs on a real control plane: build/bench/scale.json
	@$(RUN) python -m harness.binaries kube kwok training-operator >/dev/null
	$(RUN) python benchmarks/bench_operator.py --jobs '' --replicas '' --output build/bench/scale.json

.PHONY: bench-capacity
bench-capacity: .venv ## measure memory and idle CPU with 10,000 jobs, plain and elastic, on a simulated API server
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_capacity.py --jobs 10000
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_capacity.py --jobs 10000 --elastic --profile kips --nodes 1000

.PHONY: bench-query
bench-query: .venv ## measure the query API with 10,000 jobs: CPU per page of 50, and memory
	PYTHONPATH=tests $(UV) run --frozen --quiet python benchmarks/bench_query.py

.PHONY: bench-rescale
bench-rescale: .venv ## measure the training pause of a rescale, compared with other ways; PROGRAM=all: each kind of program; COUNT=10 each: build/bench/rescale.json
	$(RUN) python benchmarks/bench_rescale.py --rescales $(or $(COUNT),10) $(if $(PROGRAM),--program $(PROGRAM))

.PHONY: bench-moves
bench-moves: .venv ## measure the training pause when a worker or PS moves to another node, COUNT=10 times each: build/bench/moves.json
	$(RUN) python benchmarks/bench_moves.py --count $(or $(COUNT),10)

.PHONY: bench-hook
bench-hook: .venv ## measure the cost of reporting 1,000 steps/s, in the program and in its container: build/bench/hook.json
	$(RUN) python benchmarks/bench_hook.py --check --json build/bench/hook.json

.PHONY: bench-kips
bench-kips: .venv ## compare job completion times of kips, fixed and the Go operator on real CPU: build/bench/kips.json
	$(RUN) python benchmarks/bench_kips.py

.PHONY: bench-kips-simulation
bench-kips-simulation: .venv ## compare kips with fixed, DRF and Optimus in simulation: build/bench/kips-simulation.json
	$(RUN) python benchmarks/bench_kips_simulation.py

.PHONY: bench-deadline
bench-deadline: .venv ## compare met deadlines of deadline, fixed and the Go operator on real CPU: build/bench/deadline.json
	$(RUN) python benchmarks/bench_deadline.py

.PHONY: bench-specon
bench-specon: .venv ## compare specon and the Go operator on real CPU, from an uneven placement: build/bench/specon.json
	$(RUN) python benchmarks/bench_specon.py

.PHONY: bench-dl2
bench-dl2: .venv ## compare drf, optimus and a learning dl2 on real CPU: build/bench/dl2.json
	$(RUN) python benchmarks/bench_dl2.py

.PHONY: bench-deadline-qos
bench-deadline-qos: .venv ## simulate the single-job deadlines of Xing et al.: build/bench/deadline-qos.json
	$(RUN) python benchmarks/bench_deadline_qos.py

.PHONY: bench-deadline-simulation
bench-deadline-simulation: .venv ## compare met deadlines with edf, fixed and upper bounds in simulation: build/bench/deadline-simulation.json (needs the public traces)
	$(RUN) python benchmarks/bench_deadline_simulation.py

.PHONY: bench-deadline-windows
bench-deadline-windows: .venv ## compare met deadlines with bounds on windows of traces drawn by seed: build/bench/deadline-windows.json (needs the public traces)
	$(RUN) python benchmarks/bench_deadline_windows.py

.PHONY: bounds
bounds: .venv ## compute upper bounds of met deadlines by linear programs: build/bench/bounds.json (needs the public traces)
	$(RUN) python benchmarks/bounds.py

.PHONY: bench-hull-simulation
bench-hull-simulation: .venv ## compare hull with fifo, srtf, drf, Optimus and a lower bound in simulation: build/bench/hull-simulation.json
	$(RUN) python benchmarks/bench_hull_simulation.py

.PHONY: bench-dl2-ablations
bench-dl2-ablations: .venv ## measure what each part of the training of dl2 contributes (an hour): build/bench/dl2-ablations.json
	$(RUN) python benchmarks/bench_dl2_ablations.py

.PHONY: bench-dl2-live-simulation
bench-dl2-live-simulation: .venv ## simulate what the live trainer costs, and dl2 with the speeds that a live operator knows (two minutes)
	$(RUN) python benchmarks/bench_dl2_live_simulation.py

.PHONY: bench-dl2-simulation
bench-dl2-simulation: .venv ## compare dl2 with drf, Optimus, hull and a lower bound in simulation: build/bench/dl2-simulation.json
	$(RUN) python benchmarks/bench_dl2_simulation.py

.PHONY: bench-specon-simulation
bench-specon-simulation: .venv ## compare specon, SpeCon as published and rebalance in simulation: build/bench/specon-simulation.json
	$(RUN) python benchmarks/bench_specon_simulation.py

.PHONY: bench-spot-simulation
bench-spot-simulation: .venv ## count the jobs that lose steps on spot nodes after notices of 120, 30 and 15 s, in simulation: build/bench/spot.json
	$(RUN) python benchmarks/bench_spot_simulation.py --json build/bench/spot.json

.PHONY: bench-aryl-simulation
bench-aryl-simulation: .venv ## compare aryl with FIFO and SJF, with and without loans and scaling, in simulation: build/bench/aryl-simulation.json (needs the public traces)
	$(RUN) python benchmarks/bench_aryl_simulation.py

.PHONY: bench-aryl-reclaim
bench-aryl-reclaim: .venv ## compare the reclaim rules of aryl with the fewest possible stops of jobs: build/bench/aryl-reclaim.json (needs the public traces)
	$(RUN) python benchmarks/bench_aryl_reclaim.py

.PHONY: bench-aryl
bench-aryl: .venv ## compare training beside a model server with node loans, without, and with the Go operator: build/bench/aryl.json
	$(RUN) python benchmarks/bench_aryl.py

.PHONY: bench-elastic
bench-elastic: .venv ## compare elastic, kips, fixed and the Go operator on a mix of jobs beside a model server: build/bench/elastic.json
	$(RUN) python benchmarks/bench_elastic.py

.PHONY: bench-elastic-simulation
bench-elastic-simulation: .venv ## compare elastic with each other profile, on that profile's own workload: build/bench/elastic-simulation.json
	$(RUN) python benchmarks/bench_elastic_simulation.py

.PHONY: bench-rivals-simulation
bench-rivals-simulation: .venv ## compare elastic with Pollux' and Sia's policies, ONLY="Pollux, tuned" for a part (an hour in all): build/bench/rivals-simulation.json
	$(RUN) python benchmarks/bench_rivals_simulation.py $(if $(ONLY),--only "$(ONLY)")

.PHONY: bench-memory
bench-memory: .venv ## compare rules for memory that grows, of one replica and on a small cluster, in simulation: build/bench/memory.json
	$(RUN) python benchmarks/bench_memory.py

.PHONY: bench-memory-live
bench-memory-live: .venv ## how soon a replica whose memory grows has more, on kind (15 min): build/bench/memory-live.json
	$(RUN) python benchmarks/bench_memory_live.py

.PHONY: bench-autoscaling
bench-autoscaling: .venv ## compare elastic with fixed on clusters with an autoscaler in simulation: build/bench/autoscaling.json
	$(RUN) python benchmarks/bench_autoscaling.py

.PHONY: bench-elastic-mix
bench-elastic-mix: .venv ## compare elastic with each other profile on a common mix of jobs: build/bench/elastic-mix.json
	$(RUN) python benchmarks/bench_elastic_mix.py

.PHONY: bench-teams
bench-teams: .venv ## simulate three teams on one cluster: no teams, static partitions, shares by stops and by shrinking: build/bench/teams.json
	$(RUN) python benchmarks/bench_teams.py

.PHONY: campaign
campaign: .venv ## test the operator with crashes, broken watches, seeded defects, hostile tenants, and random faults for SECONDS=600 (RESUME=1: continue): build/bench/campaign.json
	PYTHONPATH=tests $(UV) run --frozen --quiet python -m campaign.run --seconds $(or $(SECONDS),600) $(if $(RESUME),--resume)

.PHONY: bench-scheduling
bench-scheduling: .venv ## measure a scheduling round with 100 to 10,000 jobs: build/bench/scheduling.svg
	@mkdir -p build/bench
	$(RUN) python benchmarks/bench_scheduling.py --plot build/bench/scheduling.svg

.PHONY: bench-simulator
bench-simulator: .venv ## measure the simulator: jobs per CPU-second (needs the public traces)
	$(RUN) python benchmarks/bench_simulator.py

.PHONY: anchors
anchors: .venv ## compare results with published simulators on the same input (needs the public traces)
	$(RUN) python benchmarks/anchors.py

.PHONY: lint
lint: .venv ## check format, style, types, import rules, and that generated files are up to date
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
record: .venv ## record the decisions of all profiles for tests/unit/scheduling/test_recorded.py (a minute)
	$(RUN) python -m unit.scheduling.recorded

.PHONY: reference
reference: .venv ## generate docs/reference and docs/contract.md from the code
	PYTHONPATH=tests $(UV) run --frozen --quiet python -m unit.reference

# An environment of its own, so that .venv is left as it is.
DOCS = NO_MKDOCS_2_WARNING=1 UV_PROJECT_ENVIRONMENT=build/docs-environment $(UV) run --frozen --quiet --only-group docs

.PHONY: docs
docs: ## build the site of docs/ in build/site, and check its links
	$(DOCS) mkdocs build --strict

.PHONY: docs-publish
docs-publish: ## push the site as VERSION=1.2 (ALIAS=latest) to the branch gh-pages of origin
	@[ -n "$(VERSION)" ] || { echo "VERSION is missing: make docs-publish VERSION=1.2"; exit 1; }
	$(DOCS) mike deploy --push --update-aliases $(VERSION) $(ALIAS)

.PHONY: names
names: .venv ## write the image registry (REGISTRY=ghcr.io/you) and the repository (REPOSITORY=https://...) into all files
	@$(RUN) python -m harness.names $(REGISTRY) $(REPOSITORY)

.PHONY: pipelines
pipelines: ## compile the components for Kubeflow Pipelines
	$(UV) run --quiet --locked --script kubeflow_pipelines/compile.py

.PHONY: cluster
cluster: .venv ## create a kind cluster of three nodes (kubeconfig and kubectl in build/)
	@$(RUN) python -m harness.cluster

.PHONY: image
image: .venv ## build the images of operator and trainer
	@$(RUN) python -m harness.images operator trainer

.PHONY: deploy
deploy: .venv ## install the CRD and the operator on the kind cluster, by kustomize
	@$(RUN) python -m harness.deploy

.PHONY: clean
clean: ## delete the cluster, the images, build/ and .venv, but not the cache
	@python=.venv/bin/python; [ -x $$python ] || python=python3; PYTHONPATH=tests $$python -m harness.clean
	rm -rf build .venv

.PHONY: distclean
distclean: clean ## clean, and delete the cache of built programs and Go
	rm -rf $(CACHE)

.venv: pyproject.toml uv.lock
	@begin=$$(date +%s); echo "▸ creating the Python environment (.venv)"; $(UV) sync --frozen --quiet && touch .venv \
	  && echo "✓ making the Python environment: $$(($$(date +%s) - begin)) s"
