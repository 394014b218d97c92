"""State of the process: tables that something makes stale have one owner, the others a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "treadle"
TEXTS = {p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}
_MAKERS = ["dict", "list", "set", "defaultdict", "OrderedDict", "Counter", "deque"]
_MAKERS += ["WeakKeyDictionary", "WeakValueDictionary", "WeakSet"]

TOLD = """
    backends/registry.py _ENTRIES _ENGINES _SCANNED
    engine/devices/names.py _RESOLVED _BEFORE _FASTEST
    engine/eager/dispatch.py _TYPES
    engine/eager/repeated.py _TABLES
    tensor.py _TABLES
"""
"""Emptied, in whole or in part, by a function that `RUNTIME.after` calls."""
DECLARED = """
    autodiff/finite.py _DROPPED
    backends/c_loaders.py _LOADERS _HEARD
    backends/codegen/lowering.py LOWERINGS
    backends/codegen/lowering.py TAKING_EMPTY
    backends/openvino/table.py TABLE
    base/loc.py _CALLERS
    base/observer.py _READERS
    base/quantized.py _BY_CNAME
    base/saved_objects.py _ALLOWED _REFUSED
    base/spelling.py KNOWN
    engine/devices/lifetime.py _HANDLERS
    engine/package/__init__.py _FOREIGN
    functional/elemwise.py MOVED
    graph/passes.py PASSES
    interop/onnx/registry.py CONVERTERS
    interop/onnx/writer.py EXPORTERS
    interop/torch/device/hot.py _REGISTER
    interop/torch/device/registration.py _LIBRARIES
    interop/torch/device/untraced.py _PASSED
    interop/torch/drawing.py DRAWING
    interop/torch/placements.py _KINDS
    interop/torch/pairs.py COMPLEX
    interop/torch/table.py LOWERINGS
    lite/globals.py _METHODS _PAIRS _CACHES
    logger.py _NAMED _CHOSEN
    ops/custom.py _KERNELS _ENGINES
    ops/op.py REGISTRY
    runtime/ahead.py AHEAD
    serialization/forms.py _FORMS
    traced_module/_passes/pass_base.py PASSES
    traced_module/catalog.py _OPAQUE _WRAPPED _DEFINITIONS
    traced_module/pytree.py _REGISTERED
    traced_module/serialization.py OPDEF_LOADER FUNCTIONAL_LOADER MODULE_LOADER TENSORMETHOD_LOADER
    utils/module_stats_rules.py FLOPS RECEPTIVE_FIELDS
"""
"""Declarations and settings: filled as modules are imported, or by the user, who takes back."""
FOLLOWS_FROM_THE_KEY = """
    backends/codegen/kernel/text.py _DIGESTS
    backends/cuda/libraries/custom.py _PREPARED
    backends/registry.py _IMPORTED
    base/quantized.py _MADE
    base/symbol.py _INTERNED
    engine/execute/segments.py _SHELF
    engine/partition/model.py _COSTING
    interop/megengine/internals.py _OPTIONS
    interop/torch/device/calls.py _OPERATORS
    interop/torch/device/fallback.py _TRAITS
    interop/torch/device/forms.py _FORMS
    interop/torch/device/hot.py _KERNELS
    ops/custom.py _BLOBS
    ops/ufunc.py _UFUNCS
"""
"""The same in every process and at every time."""
LIVES_WITH_THE_KEY = """
    base/layers.py _RAISED_BY
    backends/cuda/libraries/channels.py _LINES
    engine/cost.py _MEASURED
    interop/torch/device/memory.py _BY_ADDRESS
    runtime/comm/buckets.py _KNOWN
"""
"""Weak: an entry goes with what it is about."""
OPENED = """
    backends/cpu/__init__.py _ASSEMBLED
    backends/cpu/native.py _ADOPTED
    backends/cuda/device.py _FORKED
    backends/cuda/libraries/blaslt.py _OPEN
    backends/cuda/libraries/cudnn/library.py _OPEN
    backends/opencl/platforms.py _FORKED
    base/files/atomic.py _in_progress
    base/files/trust.py _PROCESS_KEYS
    data/channel.py _mappings
    engine/devices/names.py _OPEN
    graph/replay.py _WRITTEN
    interop/megengine/streams.py _STREAMS
    interop/torch/device/generators.py _GENERATORS
    interop/torch/processes.py _WORLD
    runtime/comm/carriers.py _offers _HELD
    runtime/comm/groups.py _groups _leaving _losses
    runtime/comm/mpi.py _OPEN _LEFT
    utils/custom.py _LIBRARIES
"""
"""Libraries, files, keys, processes and groups: closed by who opened them, or by the end."""
NOW = """
    autodiff/grad_manager.py _BACKWARDING
    engine/devices/names.py _NOTICED
    engine/eager/forced.py _BLOCKS
    interop/megengine/numpy_names.py _BEFORE
    interop/megengine/runtime.py _SEED
    utils/custom_op_tools.py _INSTEAD
    utils/profiler.py _CURRENT
"""
"""Blocks that are running, and what they put back at their end."""
COUNTED = """
    device.py _PEAK _MOST_RESERVED _RESET
    engine/eager/tally.py _FALLEN _RAN
    interop/torch/backend.py _LEFT
"""
"""Counts that people read, and reset by a function of the public surface."""
KEPT = (TOLD, DECLARED, FOLLOWS_FROM_THE_KEY, LIVES_WITH_THE_KEY, OPENED, NOW, COUNTED)


def cells(text: str) -> Iterator[str]:
    """Names at module level that begin as empty tables, or as cells of one value to be replaced."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id != "__all__" and begins_empty(value):
            yield target.id


def begins_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).split(".")[-1]
        return name in _MAKERS and not value.args and not value.keywords
    if isinstance(value, ast.List) and len(value.elts) == 1:
        only = value.elts[0]
        return isinstance(only, ast.Constant) and only.value in (None, False, 0)
    parts = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [1])
    return isinstance(value, ast.Dict | ast.List | ast.Set) and not parts


def listed(text: str) -> set[str]:
    """File and name of each entry of a list."""
    rows = (line.split() for line in text.strip().splitlines())
    return {f"{file} {name}" for file, *names in rows for name in names}


def test_tables_without_an_owner_have_a_reason() -> None:
    """Take a new table from `treadle.base.process.RUNTIME`, or say here why nothing stales it."""
    found = {f"{file} {name}" for file, text in TEXTS.items() for name in cells(text)}
    assert found == set().union(*map(listed, KEPT))
    assert len(found) == sum(len(listed(text)) for text in KEPT), "in two lists"


def test_who_is_told_registers_with_the_owner() -> None:
    for entry in listed(TOLD):
        file, name = entry.split()
        called = re.findall(r"RUNTIME\.after\(\"\w+\", (\w+)\)", TEXTS[file])
        bodies = [n for n in ast.walk(ast.parse(TEXTS[file])) if getattr(n, "name", "") in called]
        assert any(name in ast.unparse(body) for body in bodies), entry


def test_caches_are_emptied_by_their_owner_alone() -> None:
    """`cached` of the owner in place of a cache that some function must remember to clear."""
    clearing = {file for file, text in TEXTS.items() if ".cache_clear" in text}
    assert clearing == {
        "base/guards.py",  # a cache itself
        "base/process.py",
        "backends/opencl/platforms.py",  # contexts in which a device was lost
    }
