"""Processor time of common work, op by op, traced and in files, beside that of another commit.

    python benchmarks/regress.py COMMIT [--turns 7] [--groups GROUP ...]

Sources of the commit are checked out beside this tree for as long as it runs; both run with this
interpreter's packages, on one thread. Processes of the two take turns, each measures every case,
and the medians of the turns are compared. A case that the commit cannot run is left out. All groups
(imports, ops, vision, steps, modules, data, files) take ten minutes of a free core.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Call = Callable[[], Any]
ROOT = Path(__file__).parent.parent
IMPORTS = {
    "import treadle": "import treadle",
    "import treadle, first sum": "import treadle; treadle.tensor([1.0]) + 1.0",
    "import all for training": "import treadle.functional, treadle.module, treadle.optimizer, "
    "treadle.jit, treadle.data, treadle.quantization, treadle.traced_module, treadle.utils.network",
    "import megengine, the alias": "import treadle.interop.megengine as m; m.install(); "
    "import megengine, megengine.functional, megengine.module, megengine.optimizer",
}
MAKERS: list[Any] = []
"""Functions that yield the names and calls of a group."""


def cases(make: Callable[[], Iterator[tuple[str, Call]]]) -> Callable[[], Any]:
    """Register what yields names of cases and calls."""
    MAKERS.append(make)
    return make


def floats(*shape: int) -> Any:
    """A tensor of normal numbers."""
    import treadle as mge

    return mge.tensor(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


@cases
def ops() -> Iterator[tuple[str, Call]]:
    """Small ops, attributes and indices, as eager loops call them."""
    import treadle as mge
    import treadle.functional as F

    x, y, a, rows = floats(16), floats(16), floats(16, 16), floats(8, 4)
    index, mask = mge.tensor(np.arange(3, dtype=np.int32)), x > 0
    image, weight = floats(1, 3, 8, 8), floats(4, 3, 3, 3)
    array, labels = np.ones(16, np.float32), mge.tensor(np.arange(16, dtype=np.int32) % 4)
    yield "x + y", lambda: x + y
    yield "x * 2.0", lambda: x * 2.0
    yield "x += y", lambda: x.__iadd__(y)
    yield "a @ a", lambda: a @ a
    yield "x > 0", lambda: x > 0
    yield "x.shape", lambda: x.shape
    yield "x.dtype, x.ndim, x.device", lambda: (x.dtype, x.ndim, x.device)
    yield "x[1:3]", lambda: x[1:3]
    yield "a[1, 2:]", lambda: a[1, 2:]
    yield "x[index]", lambda: x[index]
    yield "x[mask]", lambda: x[mask]
    yield "a[0] = 1", lambda: a.__setitem__(0, 1.0)
    yield "reshape", lambda: x.reshape(4, 4)
    yield "transpose", lambda: a.transpose(1, 0)
    yield "sum", lambda: x.sum()
    yield "mean over an axis", lambda: F.mean(a, 1)
    yield "exp", lambda: F.exp(x)
    yield "softmax", lambda: F.softmax(a, 1)
    yield "concat", lambda: F.concat([x, y])
    yield "stack", lambda: F.stack([x, y])
    yield "split", lambda: F.split(x, 4)
    yield "where", lambda: F.where(mask, x, y)
    yield "topk", lambda: F.topk(x, 3)
    yield "argsort", lambda: F.argsort(x)
    yield "one_hot", lambda: F.one_hot(index, 4)
    yield "astype", lambda: x.astype("int32")
    yield "conv2d", lambda: F.conv2d(image, weight, padding=1)
    yield "max_pool2d", lambda: F.max_pool2d(image, 2)
    yield "layer_norm", lambda: F.layer_norm(rows, (4,), False)
    yield "cross_entropy", lambda: F.nn.cross_entropy(a, labels)
    yield "numpy()", lambda: x.numpy()
    yield "item()", lambda: x.sum().item()
    yield "Tensor(array)", lambda: mge.Tensor(array)
    yield "repr", lambda: repr(x)
    yield "random.normal", lambda: mge.random.normal(size=(16,))
    yield "dropout", lambda: F.dropout(x, 0.5)


@cases
def vision() -> Iterator[tuple[str, Call]]:
    """Functions of pictures and boxes."""
    import treadle as mge
    import treadle.functional as F

    image, corners = floats(1, 3, 32, 32), np.array([[[1, 0, 1], [0, 1, 2], [0, 0, 1]]], np.float32)
    matrix = mge.tensor(corners)
    boxes = mge.tensor(np.stack([np.arange(64), np.arange(64), *[np.arange(64) + 9] * 2], 1) * 1.0)
    boxes, scores = boxes.astype("float32"), floats(64)
    rois = F.concat([F.zeros((8, 1)), boxes[:8]], axis=1)
    grid = mge.tensor(np.zeros((1, 16, 16, 2), np.float32))
    V = F.vision
    yield "interpolate, bilinear", lambda: V.interpolate(image, scale_factor=2.0)
    yield "interpolate, nearest", lambda: V.interpolate(image, (48, 48), mode="nearest")
    yield "warp_affine", lambda: V.warp_affine(image, matrix[:, :2], (32, 32))
    yield "warp_perspective", lambda: V.warp_perspective(image, matrix, (32, 32))
    yield "remap", lambda: V.remap(image, grid)
    yield "nms", lambda: V.nms(boxes, scores, 0.5)
    yield "roi_align", lambda: V.roi_align(image, rois, (4, 4))
    yield "roi_pooling", lambda: V.roi_pooling(image, rois, (4, 4))
    yield "pad", lambda: F.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    yield "sliding_window", lambda: F.sliding_window(image, 3, padding=1)


def network(name: str) -> tuple[Any, Any, Any]:
    """One of the benchmarks' networks, with a batch and its labels."""
    import models

    import treadle as mge

    mge.random.seed(1)
    labels = mge.tensor(np.arange(4, dtype=np.int32))
    if name == "MLP":
        return models.MLP(), floats(4, 784), labels
    if name == "LeNet":
        return models.LeNet(), floats(4, 1, 28, 28), labels
    return models.ResNet((2, 2, 2, 2), False, 10, True), floats(4, 3, 16, 16), labels


@cases
def steps() -> Iterator[tuple[str, Call]]:
    """Whole training steps, eager, traced and symbolic."""
    import treadle.functional as F
    from treadle import jit, optimizer
    from treadle.autodiff import GradManager

    for name in ("MLP", "LeNet", "ResNet-18"):
        for how in ("eager", "traced", "symbolic"):
            net, x, y = network(name)
            opt = optimizer.SGD(net.parameters(), lr=0.001, momentum=0.9)
            manager = GradManager().attach(net.parameters())

            def step(x: Any, y: Any, net: Any = net, opt: Any = opt, gm: Any = manager) -> Any:
                with gm:
                    loss = F.nn.cross_entropy(net(x), y)
                    gm.backward(loss)
                opt.step().clear_grad()
                return loss

            run = step if how == "eager" else jit.trace(symbolic=how == "symbolic")(step)
            yield f"{name} step, {how}", lambda run=run, x=x, y=y: run(x, y).numpy()
    net, x, _ = network("MLP")
    net.eval()
    yield "MLP forward", lambda: net(x)
    gm = GradManager().attach(net.parameters())

    def gradient() -> None:
        with gm:
            gm.backward(net(x).sum())

    yield "MLP backward", gradient


@cases
def modules() -> Iterator[tuple[str, Call]]:
    """Making modules, walking them, optimizers."""
    import treadle as mge
    import treadle.functional as F
    import treadle.module as M
    from treadle import optimizer

    net, _, _ = network("ResNet-18")
    state = net.state_dict()
    yield "Linear(16, 16)", lambda: M.Linear(16, 16)
    yield "Conv2d(8, 8, 3)", lambda: M.Conv2d(8, 8, 3)
    yield "BatchNorm2d(8)", lambda: M.BatchNorm2d(8)
    yield "LeNet()", lambda: network("LeNet")
    yield "parameters of ResNet-18", lambda: list(net.parameters())
    yield "named_modules", lambda: list(net.named_modules())
    yield "state_dict", net.state_dict
    yield "load_state_dict", lambda: net.load_state_dict(state)
    yield "hasattr of nothing", lambda: hasattr(net, "nothing")
    yield "train(), eval()", lambda: net.train() or net.eval()
    linear, x = M.Linear(16, 16), floats(2, 16)
    yield "Linear forward", lambda: linear(x)
    norm, maps = M.BatchNorm2d(4), floats(2, 4, 4, 4)
    yield "BatchNorm2d forward", lambda: norm(maps)
    for name, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {}), ("LAMB", {})):
        given = [mge.Parameter(np.ones((8, 8), np.float32)) for _ in range(20)]
        for each in given:
            each.grad = F.ones((8, 8))
        opt = getattr(optimizer, name)(given, lr=1e-3, **options)
        yield f"{name}, 20 parameters", opt.step
    yield "clip_grad_norm", lambda: optimizer.clip_grad_norm(given, 1.0)


@cases
def data() -> Iterator[tuple[str, Call]]:
    """A loader of 2,000 samples with transforms, in this process."""
    import treadle.data as D
    import treadle.data.transform as T

    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2000, 16, 16, 3)).astype(np.uint8)
    labels = np.arange(2000) % 10
    changes = T.Compose(
        [T.RandomHorizontalFlip(), T.RandomCrop(14), T.Normalize(128.0, 64.0), T.ToMode("CHW")]
    )
    for name, transform in (("2,000 samples", None), ("2,000 samples, transforms", changes)):
        kept = D.dataset.ArrayDataset(pictures, labels)
        sampler = D.SequentialSampler(kept, batch_size=50)
        loader = D.DataLoader(kept, sampler, transform)
        yield name, lambda loader=loader: sum(len(labels) for _, labels in loader)


@cases
def files() -> Iterator[tuple[str, Call]]:
    """Files, networks of dumps, traced modules, quantization."""
    import treadle as mge
    import treadle.functional as F
    from treadle import jit
    from treadle.quantization import ema_fakequant_qconfig, quantize_qat
    from treadle.traced_module import trace_module
    from treadle.utils.network import Network

    net, x, _ = network("ResNet-18")
    net.eval()
    written = io.BytesIO()
    mge.save(net.state_dict(), written)

    def saved() -> None:
        mge.save(net.state_dict(), io.BytesIO())

    yield "save", saved
    yield "load", lambda: mge.load(io.BytesIO(written.getvalue()))

    @jit.trace(symbolic=True, capture_as_const=True)
    def forward(x: Any) -> Any:
        return net(x)

    forward(x)

    def dumped() -> io.BytesIO:
        out = io.BytesIO()
        forward.dump(out, arg_names=["x"], output_names=["y"])
        return out

    dump = dumped().getvalue()

    def loaded() -> Any:
        return Network.load(io.BytesIO(dump))

    def edited() -> None:
        graph = loaded()
        (out,) = graph.output_vars
        graph.replace_vars({out: F.relu(out)})
        graph.dump(io.BytesIO())

    yield "trace.dump", dumped
    yield "Network.load", loaded
    yield "Network: load, edit, dump", edited
    traced = trace_module(net, x)
    yield "trace_module", lambda: trace_module(net, x)
    yield "TracedModule.flatten", traced.flatten
    yield "TracedModule call", lambda: traced(x)
    yield "quantize_qat", lambda: quantize_qat(network("LeNet")[0], ema_fakequant_qconfig)
    yield from quantized()


def quantized() -> Iterator[tuple[str, Call]]:
    """A step of training for integers."""
    import treadle.functional as F
    import treadle.module as M
    from treadle import optimizer
    from treadle.autodiff import GradManager
    from treadle.quantization import ema_fakequant_qconfig, quantize_qat

    net = M.Sequential(M.ConvBnRelu2d(3, 8, 3), M.ConvBnRelu2d(8, 8, 3))
    net = quantize_qat(net, ema_fakequant_qconfig)
    opt, gm = optimizer.SGD(net.parameters(), lr=0.001), GradManager().attach(net.parameters())
    x = floats(2, 3, 12, 12)

    def step() -> Any:
        with gm:
            gm.backward(F.mean(net(x)))
        opt.step().clear_grad()

    yield "QAT step", step


# -- timing --------------------------------------------------------------------------------------


def seconds(call: Call, least: float = 0.02, parts: int = 5) -> float:
    """Processor time of one call: the least of several loops."""
    for _ in range(3):  # The first compile, the second and third fill caches.
        call()
    number, taken = 1, 0.0
    found = []
    while len(found) < parts:
        began = time.thread_time()
        for _ in range(number):
            call()
        taken = time.thread_time() - began
        if taken < least and not found:
            number *= 4
            continue
        found.append(taken / number)
    return min(found)


def work(groups: list[str]) -> None:
    """Print a JSON object of times by case; None for what cannot run here."""
    import treadle as mge

    mge.set_default_device("cpux")
    found: dict[str, float | None] = {}
    for make in MAKERS:
        if groups and make.__name__ not in groups:
            continue
        try:
            for name, call in make():
                found[name] = _attempt(name, call)
        except (AttributeError, ImportError, TypeError) as error:
            print(f"{make.__name__}: {error!r}", file=sys.stderr)
    print(json.dumps(found))


def _attempt(name: str, call: Call) -> float | None:
    try:
        return seconds(call)
    except Exception as error:
        print(f"{name}: {error!r}", file=sys.stderr)
        return None


def process(source: Path, arguments: list[str]) -> str:
    """What a process prints that sees a tree's sources."""
    cache = source.parent / ".regress"
    added = {"PYTHONPATH": str(source), "TREADLE_NUM_THREADS": "1", "TREADLE_CACHE_DIR": str(cache)}
    environment = {**os.environ, **added}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *arguments]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return run.stdout


def turn(source: Path, groups: list[str]) -> dict[str, float | None]:
    """Times of all cases, by one process, and of imports, by one each."""
    found: dict[str, float | None] = {}
    for name, code in IMPORTS.items():
        if not groups or "imports" in groups:
            timed = f"import time; {code}; print(time.process_time())"
            found[name] = float(process(source, ["-W", "ignore", "-c", timed]))
    return found | json.loads(process(source, [__file__, "--work", *groups]))


@contextmanager
def sources_of(commit: str) -> Iterator[Path]:
    """The sources of a commit in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        tar = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, stdout=-1)
        subprocess.run(["tar", "-x", "-C", folder], input=tar.stdout, check=True)
        yield Path(folder) / "src"


def compare(commit: str, turns: int, groups: list[str]) -> list[tuple[str, float, float]]:
    """Name, milliseconds of the commit and of this tree, of every case."""
    with sources_of(commit) as before:
        sides = {"before": before, "now": ROOT / "src"}
        found: dict[str, list[dict[str, float | None]]] = {side: [] for side in sides}
        for number in range(turns + 1):
            for side, source in sides.items():
                times = turn(source, groups)
                if number:  # The first writes bytecode and compiles.
                    found[side].append(times)
    rows = []
    for name in found["now"][0]:
        both = [[times.get(name) for times in found[side]] for side in sides]
        if all(isinstance(t, float) for times in both for t in times):
            rows.append((name, *(1e3 * statistics.median(times) for times in both)))  # type: ignore[type-var]
    return rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD~1")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--groups", nargs="*", default=[], help="all if left out")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work)
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    table = Table("case", given.commit, "now, ms", "ratio")
    for name, before, now in compare(given.commit, given.turns, given.groups):
        table.add_row(escape(name), f"{before:.4g}", f"{now:.4g}", f"{now / before:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
