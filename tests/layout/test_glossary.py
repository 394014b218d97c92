"""The glossary: it has every term that the name of a file uses, and is in order."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "treadle"

NAMES = """
    adadelta adagrad adam adamw argspec bert bessel blaslt c cifar cityscapes coco cuda cudnn
    elemwise elf exp flatbuffer fourier gemma git gpt gru http imagenet iodump jit json k lamb llama
    llm llvm megengine megenginelite mistral mixtral mnist modernbert mpi multiheadattn nccl nn
    numpy nvrtc objects365 olmoe onnx opencl opencv openvino oss phi3 pickle pickled pytorch
    qwen2 qwen3 rmsprop rnn sgd smollm3 softmax svg synsets tensorboard torch voc
"""
"""Products, formats, models and functions by the names that others gave them."""
ORDINARY = """
    abstract access accuracy activation activations adaptive adopt ahead algebra algorithms alias
    allocator along analysis analyze analyzer and answering answers api application archive arg
    arguments arithmetic array arrays asked assemble assign atomic average axes background backward
    base batching batchnorm bench benchmark binary binding bits bodies body bounds boxes budget
    build builder building builtin by cache cached caches callback callers captured carrying casts
    catalog chat check checker checks checksum chinese choice choosing class classes cleanup cli
    clip clock codec codegen collector color column columns comp compare comparison compile compiled
    compiler completion complex compose config connection console const constant constructor
    container contents control conv conventions conversion convert converters converting convolution
    convolutions copying cost costs count counters counting cpu creation crop cross cumulative
    custom data dataloader dataset datatypes debug decisions declared decode decoder definitions
    deformable deploy deprecation dequant description descriptions detection diagram difference
    directories directory distances distributed distribution distributions division doctor donate
    donations dot dots download draw drawing driver dropout dump dumped dumper dumps dynamic early
    elementwise embedder encode encoder encoding entries env errors estimates evaluate evaluator
    examples exceptions exchange exchanges executable execute explain explanation exponential export
    exported exporters expr external factorization failure failures fast filter filters findings
    finetune finite fitting flags flattening flex flip fold folder forced foreign formulas forward
    function functional fuse fused future garbage generation generator generators globals grad
    gradient gradients guarded halves header held help helper histogram hostdata hosted hot hub
    identity image images index indexing info inplace inputs insert inspect inspection installation
    instances instructions integer integers internals interop interpret interval items joining kinds
    known language launcher launching layered layers levels lexer libraries library lifetime limit
    limits linalg linear lines link linking lists literals load loaders location locations log
    logger logic logs lookup loss losses lower lr machine main making manager manipulation matcher
    math matmul matrices max maximum means measure measured measuring members memory merge messages
    meta methods metric metrics monomials movement multi name named names namespace naming native
    network noise norm normalize numbering numbers object objects offsets open opened opening
    openings operand operands operators opt optimization optimize optimizer options order ordering
    orders origins ownership pack package packages packed padding page pages pair pairs parallel
    param parameters parser part partial parting partition parts path performance persistent picture
    pipeline place placed places placing plain planned platforms polynomials pool portable positions
    precision preload prepare prepared preprocessing preview printer printing private problem
    process processes product products profile profiler profiling progress properties protocol prune
    quant quantize quantizing random randomness ranges reach reader readers ready rearrange rebuild
    recompute record recorded records recurrent recursion reduce reference references registration
    registry remap rendered rendering repeated report requantize requests resample result retype row
    rows run runner running runtime sample sampler samples sampling sandbox sanity saved saving
    scale scaler scales scan scheduler scope scoring searching section select selection sending
    sequence sequences sequential serialization serve server service session settings several shake
    shape shapes shaping shared shrinking signal signals silent simplify simulator sizes slicing
    sliding small sockets sort source sources spec special spelled spelling splitting squares
    stacked state statistics stats status step stepping steps stored strict strings subject summary
    super synchronous table tables template tensor tensors text together tolerance tool toolchain
    tools top tracebacks tracer trainer training transfer transform transforms translation transpose
    tree trial trig tuned tuner tuning tuple types unary unpack untraced utils var vector vectors
    verify version viewer vision visit visualize wanted warm watch watcher watching weight weights
    work worker workers writer written
"""
"""Words of the language, or of every programmer: a stranger reads on."""


def rows() -> list[str]:
    """Entries of the glossary, without its head."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)[1:]


def forms(word: str) -> Iterator[str]:
    """A word, and what it may be the plural of."""
    yield word
    for end, single in (("ies", "y"), ("es", ""), ("s", "")):
        if word.endswith(end):
            yield word.removesuffix(end) + single


def used() -> set[str]:
    """Words of the names of files and folders."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.update(w for part in parts if part.strip("_") != "init" for w in part.split("_"))
    return found - {""}


def test_every_term_of_a_file_name_is_explained() -> None:
    """Explain a new term in the glossary, or enter the word here if nobody would look it up."""
    explained = {word for row in rows() for word in re.split(r"\W+", row.lower())}
    plain = {*NAMES.split(), *ORDINARY.split()}
    unknown = {w for w in used() if explained.isdisjoint(forms(w))}
    assert unknown - plain == set()
    assert {w for w in plain if not explained.isdisjoint(forms(w))} == set(), "explained, too"


def test_entries_are_in_order_and_once() -> None:
    found = [row.lower() for row in rows()]
    assert found == sorted(set(found)) and len(found) > 100
