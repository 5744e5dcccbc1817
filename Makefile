# The commands of the README, and little else. `make demo` and `make test` do all that they need, incrementally.
.DELETE_ON_ERROR:
.PHONY: demo test test-tensorflow gpu versions sweep stress compiled-zoo programs bench bench-tensorflow tools-table docs setup build build-tests lint tidy format sanitize \
  sanitize-core asan asan-core tsan stubs wheel wheels clean

export HF_HUB_OFFLINE := 1
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# With it, pytest rewrites all tests in each run, and each process of a test compiles the package.
unexport PYTHONDONTWRITEBYTECODE

PYTHON_BIN := .venv/bin/python
SITE = $(shell $(PYTHON_BIN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
WITH_PYTHON = -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON_BIN) \
  $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# WERROR=1: a warning of the compiler is an error.
BUILD = @scripts/build.sh $(WITH_PYTHON) -DCMAKE_COMPILE_WARNING_AS_ERROR=$(if $(WERROR),ON,OFF)

demo: build
	$(PYTHON_BIN) examples/python/demo.py

# As many processes as compilers. With ARGS="-x --pdb", one.
export PYTEST_XDIST_AUTO_NUM_WORKERS := $(or $(JOBS),2)
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder

# ARGS="-k diff", ARGS=--last-failed and others go to pytest.
test: build-tests
	ctest --preset release -j $(or $(JOBS),2)
	$(PYTHON_BIN) -m pytest $(PARALLEL) $(ARGS)
	@echo "[test] all passed: C++ (ctest) and Python (pytest)"

# The TensorFlow driver's tests, and what holds for every driver, in an environment of their own: it has no torch. Slow
# ones, too. ARGS="-k session" and others go to pytest.
test-tensorflow: build-tests .venv-tensorflow/requirements.txt
	.venv-tensorflow/bin/python -m pytest -m 'slow or not slow' tests/tensorflow tests/conformance $(ARGS)

# Other versions of Python and PyTorch, each with a build of its own; writes the table of docs/installation.md.
# ARGS="3.12:2.11.0" tries one pair, ARGS="--slice 3.12:2.11.0" a part of that.
versions: .venv/requirements.txt
	$(PYTHON_BIN) scripts/versions $(ARGS)

# PyTorch's whole operator database in a scope; ARGS="--ops '*norm*'" and others: python tests/opinfo --help
sweep: build
	$(PYTHON_BIN) tests/opinfo --jobs $(or $(JOBS),2) $(ARGS)

# What needs a GPU: its tests, and PyTorch's operator database there. DEVICE=cpu tries what needs none.
gpu: build
	$(PYTHON_BIN) -m pytest -s tests/gpu --device $(or $(DEVICE),cuda) $(ARGS)
	$(PYTHON_BIN) tests/opinfo --device $(or $(DEVICE),cuda) --jobs $(or $(JOBS),2) --most 3

# The tests that take their time: threads, random interleavings, leaks.
stress: build
	$(PYTHON_BIN) -m pytest $(PARALLEL) -m 'slow or long' $(ARGS)

# Compiled models under a tool that looks at everything: what it changes; ARGS="--backend aot_eager llama" and others.
compiled-zoo: build
	$(PYTHON_BIN) tests/python/support/compiled_zoo.py $(ARGS)

# Programs of other libraries in a scope, each against itself without one; ARGS="-k peft" and others go to pytest.
programs: build .venv-programs/requirements.txt
	.venv-programs/bin/python -m pytest -m 'slow or not slow' tests/programs $(ARGS)

# Writes the tables of docs/performance.md; ARGS="--callgrind" and others: python tests/bench --help
bench: build
	$(PYTHON_BIN) tests/bench $(ARGS)

# The same for TensorFlow: docs/performance_tensorflow.md; ARGS="--rounds 3" prints.
bench-tensorflow: build .venv-tensorflow/requirements.txt
	.venv-tensorflow/bin/python tests/bench_tensorflow $(ARGS)

# Writes the tables of docs/tools_comparison.md; ARGS="--lines" and others: python tests/tools_table --help
tools-table: build
	$(PYTHON_BIN) tests/tools_table $(ARGS)

# The documentation as a site, with the API reference of Python and C++, from docstrings and headers. What lacks a doc
# comment, or links to nothing, is an error. DOCS=folder adds it to a site of several versions.
docs: build .venv/requirements-docs.txt
	@rm -rf build/docs && mkdir -p build/docs
	@doxygen docs/Doxyfile
	@$(PYTHON_BIN) -m sphinx -q -W --keep-going -d build/docs/doctrees docs build/docs/html
	@echo "[docs] build/docs/html/index.html"
	$(if $(DOCS),@$(PYTHON_BIN) scripts/docs_site.py build/docs/html $(DOCS))

.venv/requirements-docs.txt: docs/requirements.txt | .venv/requirements.txt
	@scripts/setup.sh docs
	@touch $@

build: .venv/requirements.txt
	$(BUILD) -DAMANDA_BUILD_TESTS=OFF -DAMANDA_BUILD_EXAMPLES=OFF

build-tests: .venv/requirements.txt
	$(BUILD) -DAMANDA_BUILD_TESTS=ON -DAMANDA_BUILD_EXAMPLES=ON

setup: .venv/requirements.txt

.venv/requirements.txt: requirements.txt scripts/setup.sh
	@scripts/setup.sh
	@touch $@

# Its packages, and TensorFlow's, are not compiled to bytecode ahead: it takes as long as all the rest, and few of their
# modules are imported. It borrows torch, and what else .venv has. A .pth in a .pth'd folder has no effect: the staged
# package is named again.
.venv-programs/requirements.txt: tests/programs/requirements.txt | .venv/requirements.txt
	@echo "[programs] installing tests/programs/requirements.txt into .venv-programs"
	@$(PYTHON_BIN) -m venv .venv-programs
	@printf '%s\n' $(SITE) $(CURDIR)/build/stage >$(subst $(CURDIR)/.venv,.venv-programs,$(SITE))/borrowed.pth
	@.venv-programs/bin/pip install --disable-pip-version-check --quiet --no-deps --no-compile -r $<
	@cp $< $@

.venv-tensorflow/requirements.txt: tests/tensorflow/requirements.txt | .venv/requirements.txt
	@echo "[tensorflow] installing tests/tensorflow/requirements.txt into .venv-tensorflow"
	@$(PYTHON_BIN) -m venv .venv-tensorflow
	@echo $(CURDIR)/build/stage >$(subst $(CURDIR)/.venv,.venv-tensorflow,$(SITE))/amanda-stage.pth
	@.venv-tensorflow/bin/pip install --disable-pip-version-check --quiet --no-deps --no-compile -r $<
	@cp $< $@

CPP_FILES = $(shell git ls-files '*.cpp' '*.h')
lint: build
	clang-format --dry-run --Werror $(CPP_FILES)
	ruff check . && ruff format --check .
	$(PYTHON_BIN) scripts/plain_english.py README.md docs python src include drivers tools research examples scripts
	mypy

# clang-tidy over the core, as .clang-tidy says. It takes minutes: no part of `make lint`.
tidy: build
	@printf '%s\n' src/*.cpp | xargs -n 4 -P $(or $(JOBS),2) clang-tidy -p build/release --quiet \
	  --extra-arg=-Wno-error --extra-arg=-Wno-unknown-warning-option
	@echo "[tidy] src/: nothing to say"

format: .venv/requirements.txt
	clang-format -i $(CPP_FILES)
	ruff check --fix . ; ruff format .

# The C++ tests under the address and undefined-behaviour sanitizers; the core's under the thread sanitizer. Those left
# out in CMakePresets.json run a hundred thousand operators on one thread: minutes.
sanitize: asan tsan

# The core's alone: drivers take ten minutes to compile with checks of addresses.
sanitize-core: asan-core tsan

asan asan-core tsan: .venv/requirements.txt
	cmake --preset $@ $(WITH_PYTHON) --log-level=WARNING && cmake --build --preset $@ -j $(or $(JOBS),2)
	ctest --preset $@

# Python stubs of the extension modules, from what was built.
stubs: build
	$(PYTHON_BIN) scripts/stubs.py python/amanda

# A wheel for the torch in .venv, and the sources it can be built from, in dist/.
wheel: .venv/requirements.txt
	@scripts/wheel.sh dist
	@$(PYTHON_BIN) -c 'from scikit_build_core.build import build_sdist as build; print("[wheel]", "dist/" + build("dist"))' | tail -1

# The wheels of a release: one for each Python, with builds for all versions of torch, compiled with a profile and tried.
# ARGS="3.12:2.11.0 3.12:2.12.1" and others: python scripts/wheels --help
wheels: .venv/requirements.txt
	$(PYTHON_BIN) scripts/wheels $(ARGS)

clean:
	rm -rf build dist
