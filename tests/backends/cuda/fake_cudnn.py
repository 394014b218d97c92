"""cuDNN's frontend on main memory: graphs are recorded, checked as the library does, and computed.

It is written from the frontend's documentation, for the three convolutions and for attention, on
arrays of any strides. `test_cudnn_plans.py` shows that the library itself has plans for the same.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from treadle.base import dtype as dt

_TYPES = {
    "FLOAT": np.dtype(np.float32),
    "DOUBLE": np.dtype(np.float64),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(dt.bfloat16.numpy),
}
WORKSPACE = 512


class FakeTensor:
    """What a graph knows of an array."""

    def __init__(self, dim: Any = None, stride: Any = None, data_type: str = "", uid: int = 0):
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.output = False

    def set_output(self, value: bool) -> FakeTensor:
        self.output = value
        return self

    def set_uid(self, uid: int) -> FakeTensor:
        self.uid = uid
        return self

    def set_dim(self, dim: Sequence[int]) -> FakeTensor:
        self.dim = list(dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> FakeTensor:
        self.stride = list(stride)
        return self

    def set_data_type(self, data_type: str) -> FakeTensor:
        self.data_type = data_type
        return self

    def at(self, address: int) -> np.ndarray:
        """The elements in memory."""
        assert address % 16 == 0, "the library takes addresses to be multiples of 16"
        kind = _TYPES[self.data_type]
        count = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
        steps = [s * kind.itemsize for s in self.stride]
        memory = np.frombuffer(raw, np.uint8).view(kind)
        return np.lib.stride_tricks.as_strided(memory, self.dim, steps)


class FakeGraph:
    """A graph of one operation."""

    def __init__(self, module: FakeCudnn, given: dict[str, Any]) -> None:
        assert ("handle" in given) != ("device_property" in given)
        assert given["compute_data_type"] in ("FLOAT", "DOUBLE")
        self.module = module
        self.handle = given.get("handle")
        self.tensors: list[FakeTensor] = []
        self.stages: list[str] = []
        self.refused: list[str] = []
        self.kind = ""
        self.attributes: dict[str, Any] = {}
        self.operands: dict[str, FakeTensor] = {}
        self.results: list[FakeTensor] = []

    def tensor(self, name: str, **given: Any) -> FakeTensor:
        made = FakeTensor(**given)
        self.tensors.append(made)
        return made

    def _node(self, kind: str, results: int, given: dict[str, Any]) -> list[FakeTensor]:
        assert not self.kind
        self.kind = kind
        self.operands = {k: v for k, v in given.items() if isinstance(v, FakeTensor)}
        self.attributes = {k: v for k, v in given.items() if not isinstance(v, FakeTensor)}
        self.results = [FakeTensor() for _ in range(results)]
        self.tensors += self.results
        return self.results

    def conv_fprop(self, **given: Any) -> FakeTensor:
        return self._node("forward", 1, given)[0]

    def conv_dgrad(self, **given: Any) -> FakeTensor:
        return self._node("input", 1, given)[0]

    def conv_wgrad(self, **given: Any) -> FakeTensor:
        return self._node("weight", 1, given)[0]

    def sdpa(self, **given: Any) -> tuple[FakeTensor, FakeTensor | None]:
        made = self._node("attention", 1 + given["generate_stats"], given)
        return made[0], made[1] if len(made) > 1 else None

    def sdpa_backward(self, **given: Any) -> list[FakeTensor]:
        return self._node("attention gradient", 3, given)

    # -- stages ----------------------------------------------------------------------------

    def validate(self) -> None:
        numbers = [t.uid for t in self.tensors]
        assert len(set(numbers)) == len(numbers) and all(numbers)
        assert all(len(t.dim) == len(t.stride) in (4, 5) for t in self.tensors)
        assert all(t.output for t in self.results)
        if self.kind in ("forward", "input", "weight"):
            self._check_extents()
        self.stages.append("validate")

    def _check_extents(self) -> None:
        image, weight, result = self._arrays()
        a = self.attributes
        for axis, (low, high, s, d) in enumerate(
            zip(a["pre_padding"], a["post_padding"], a["stride"], a["dilation"], strict=True), 2
        ):
            room = image.dim[axis] + low + high - d * (weight.dim[axis] - 1) - 1
            assert result.dim[axis] == room // s + 1
        assert image.dim[1] % weight.dim[1] == 0 == result.dim[1] % (image.dim[1] // weight.dim[1])

    def _arrays(self) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
        """Image, weight and result of a convolution, whichever is computed."""
        made, o = self.results[0], self.operands
        return {
            "forward": lambda: (o["image"], o["weight"], made),
            "input": lambda: (made, o["filter"], o["loss"]),
            "weight": lambda: (o["image"], made, o["loss"]),
        }[self.kind]()

    def build_operation_graph(self) -> None:
        self.stages.append("graph")

    def create_execution_plans(self, modes: Sequence[str]) -> None:
        assert self.stages == ["validate", "graph"] and modes
        self.stages.append("plans")

    def deselect_numeric_notes(self, notes: Sequence[str]) -> None:
        self.refused += notes

    def deselect_engines(self, names: Sequence[str]) -> None:
        assert "sdpa_" in names

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        assert nbytes >= WORKSPACE

    def check_support(self) -> None:
        assert self.stages == ["validate", "graph", "plans"]
        if self.kind in self.module.unsupported:
            raise RuntimeError(f"no engine computes {self.kind}\nand more")

    def build_plans(self) -> None:
        if self.kind in self.module.unbuildable:
            raise RuntimeError("the plan was not built")
        self.module.built.append(self)

    def get_workspace_size(self) -> int:
        return WORKSPACE

    def execute(self, given: dict[int, int], workspace: int, handle: Any) -> None:
        assert self in self.module.built and handle is self.handle
        assert workspace and set(given) == {t.uid for t in self.tensors}

        def work() -> None:
            self.module.runs.append(self.kind)
            ctypes.memset(workspace, 0x5A, WORKSPACE)
            _COMPUTE[self.kind](self, {id(t): t.at(given[t.uid]) for t in self.tensors})

        self.module.submit(handle.stream, work)


def _convolve(graph: FakeGraph, arrays: dict[int, np.ndarray]) -> None:
    """Sums over the cells of the window, each a product of shifted images."""
    image, weight, result = (arrays[id(t)] for t in graph._arrays())
    made = arrays[id(graph.results[0])]
    a = graph.attributes
    pads = [(0, 0), (0, 0), *zip(a["pre_padding"], a["post_padding"], strict=True)]
    kind = np.promote_types(np.float32, np.float64 if made.dtype == np.float64 else np.float32)
    wide = np.pad(np.zeros_like(image, kind) if image is made else image.astype(kind), pads)
    w = np.zeros_like(weight, kind) if weight is made else weight.astype(kind)
    y = np.zeros_like(result, kind) if result is made else result.astype(kind)
    groups = image.shape[1] // weight.shape[1]
    channels, outputs = weight.shape[1], weight.shape[0] // groups
    for cell in product(*(range(n) for n in weight.shape[2:])):
        spots = tuple(
            slice(c * d, c * d + s * (n - 1) + 1, s)
            for c, d, s, n in zip(cell, a["dilation"], a["stride"], y.shape[2:], strict=True)
        )
        for g in range(groups):
            ins = (slice(None), slice(g * channels, (g + 1) * channels), *spots)
            outs = slice(g * outputs, (g + 1) * outputs)
            at = (outs, slice(None), *cell)
            if graph.kind == "forward":
                y[:, outs] += np.einsum("nc...,oc->no...", wide[ins], w[at])
            elif graph.kind == "input":
                wide[ins] += np.einsum("no...,oc->nc...", y[:, outs], w[at])
            else:
                w[at] += np.einsum("ncp,nop->oc", *map(_flat, (wide[ins], y[:, outs])))
    if graph.kind == "input":
        inner = tuple(slice(p, p + n) for (p, _), n in zip(pads, image.shape, strict=True))
        made[...] = wide[inner].astype(made.dtype)
    else:
        made[...] = (y if graph.kind == "forward" else w).astype(made.dtype)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape[:2], -1)


def _attend(graph: FakeGraph, arrays: dict[int, np.ndarray]) -> None:
    given = {n: arrays[id(t)].astype(np.float32) for n, t in graph.operands.items()}
    scores = _scores(graph, given)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    found = (weights / total).astype(np.float32) @ _heads(given["v"], scores)
    result = arrays[id(graph.results[0])]
    result[...] = found.astype(result.dtype)
    if graph.attributes["generate_stats"]:
        arrays[id(graph.results[1])][...] = top + np.log(total)


def _attend_back(graph: FakeGraph, arrays: dict[int, np.ndarray]) -> None:
    assert graph.attributes["use_deterministic_algorithm"]
    given = {n: arrays[id(t)].astype(np.float32) for n, t in graph.operands.items()}
    weights = np.exp(_scores(graph, given) - given["stats"])
    dweights = given["dO"] @ given["v"].swapaxes(-1, -2)
    delta = (given["dO"] * given["o"]).sum(-1, keepdims=True)
    dscores = weights * (dweights - delta) * graph.attributes["attn_scale"]
    found = (
        dscores @ given["k"],
        dscores.swapaxes(-1, -2) @ given["q"],
        weights.swapaxes(-1, -2) @ given["dO"],
    )
    for tensor, value in zip(graph.results, found, strict=True):
        target = arrays[id(tensor)]
        target[...] = value.astype(target.dtype)


def _heads(array: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Heads that queries share, repeated."""
    return np.repeat(array, scores.shape[1] // array.shape[1], 1)


def _scores(graph: FakeGraph, given: dict[str, np.ndarray]) -> np.ndarray:
    q, a = given["q"], graph.attributes
    scores = q @ _heads(given["k"], q).swapaxes(-1, -2) * np.float32(a["attn_scale"])
    if "bias" in given:
        scores = scores + given["bias"]
    if a["use_causal_mask"]:
        scores[..., ~np.tri(*scores.shape[-2:], dtype=bool)] = -np.inf
    return scores


_COMPUTE: dict[str, Callable[[FakeGraph, dict[int, np.ndarray]], None]] = {
    "forward": _convolve,
    "input": _convolve,
    "weight": _convolve,
    "attention": _attend,
    "attention gradient": _attend_back,
}


class FakeCudnn:
    """The names of the frontend's package that the backend uses."""

    data_type = SimpleNamespace(**{name: name for name in _TYPES})
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(
        **{
            n: n
            for n in (
                "NONDETERMINISTIC",
                "REDUCED_PRECISION_REDUCTION",
                "TENSOR_CORE",
                "DOWN_CONVERT_INPUTS",
            )
        }
    )

    def __init__(self, submit: Callable[[int, Callable[[], None]], None]) -> None:
        self.submit = submit
        self.built: list[FakeGraph] = []
        self.runs: list[str] = []
        self.unsupported: set[str] = set()
        self.unbuildable: set[str] = set()
        self.asked = 0

    def backend_version(self) -> int:
        return 92800

    def create_handle(self) -> SimpleNamespace:
        return SimpleNamespace(stream=0)

    def set_stream(self, handle: SimpleNamespace, stream: int) -> None:
        handle.stream = stream

    def create_device_properties(self, given: int | str) -> Any:
        text = given if isinstance(given, str) else json.dumps({"deviceVer": 900})
        return SimpleNamespace(serialize=lambda: text)

    def pygraph(self, name: str, **given: Any) -> FakeGraph:
        self.asked += "device_property" in given
        return FakeGraph(self, given)
