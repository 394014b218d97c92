"""PyTorch's own records of operators (`op_db`) on a device: numbers and gradients of the CPU."""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from treadle.engine.eager.fallback import fallback_report
from treadle.interop.torch.checks.comparison import copied, seed, tensors, unlike
from treadle.interop.torch.strides import has_gaps

UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty")
"""Records whose results hold what memory held."""
OTHERS = ("int64", "bool", "complex64")
"""Element types that a record is run in if it does not have the one that was asked for."""


def name_of(record: Any) -> str:
    """The record's name, with that of its variant."""
    return f"{record.name}.{record.variant_test_name}".rstrip(".")


def by_name() -> dict[str, Any]:
    """PyTorch's records of operators."""
    return {name_of(record): record for record in op_db}


def moved(value: Any, device: str) -> Any:
    """The arguments on a device, with leaves of their own."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            there = x.detach().to(device)
            # `to` gives dense tensors; views lie as PyTorch's samples do.
            if there.stride() != x.stride() and x.numel():
                there = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
                there.copy_(x.detach())
            return there.requires_grad_(x.requires_grad)
        return torch.device(device) if isinstance(x, torch.device) else x

    return pytree.tree_map(one, copied(value))


def run(function: Any, arguments: Any, device: str, start: int, seen: Any, grads: bool) -> Any:
    """Results, and gradients for seeded random gradients of those, on the CPU."""
    given, named = moved(arguments, device)
    if "device" in named:
        named["device"] = device
    seed(start)
    found = pytree.tree_leaves(seen(function(*given, **named)))
    for y in tensors(found):
        if y.device != torch.device(device):
            raise AssertionError(f"a result is on {y.device}")
    leaves = [x for x in tensors((given, named)) if x.requires_grad]
    ends = [y for y in found if isinstance(y, torch.Tensor) and y.requires_grad]
    back: list[Any] = []
    if grads and leaves and ends:
        generator = torch.Generator().manual_seed(7)
        passed = [
            torch.randn(y.shape, generator=generator, dtype=torch.float32).to(y.dtype).to(device)
            for y in ends
        ]
        back = list(torch.autograd.grad(ends, leaves, passed, allow_unused=True))

    def home(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.device.type == "cpu":
            return x
        y = x.detach().cpu()
        return (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(y)
            if (x.numel() and 0 not in x.stride() and not has_gaps(x))
            else y
        )

    return [home(x) for x in found], [home(x) for x in back]


def _loose(pair: Any) -> Any:
    """Return the pair with dense tensors: gradients have the strides that autograd gives them."""
    return [
        [
            x.contiguous() if isinstance(x, torch.Tensor) and x.layout is torch.strided else x
            for x in part
        ]
        for part in pair
    ]


class Job:
    """One record at one element type.

    Args:
        record: the operator.
        dtype: the element type of its samples; if it has none, the first of `OTHERS` that has.
        count: how many samples, the first ones.
        start: of the random numbers that samples are made of.
        device: the device of PyTorch.
    """

    def __init__(self, record: Any, dtype: str, count: int, start: int, device: str) -> None:
        supported = record.supported_dtypes("cpu")
        known = (getattr(torch, name) for name in (dtype, *OTHERS))
        self._dtype = next((d for d in known if d in supported), None)
        self._record, self._count, self._start = record, count, start
        self._device = device
        backward = record.supported_backward_dtypes("cpu")
        self._is_trained = record.supports_autograd and self._dtype in backward
        self._found: dict[str, Any] = {"samples": 0, "wrong": [], "raised": [], "backward": "none"}
        self._found["dtype"] = str(self._dtype).removeprefix("torch.")
        self._host: set[str] = set()

    def run(self) -> dict[str, Any]:
        """Return what the samples came to."""
        if self._dtype is not None:
            seed(self._start)
            made = self._record.sample_inputs("cpu", self._dtype, requires_grad=self._is_trained)
            for number, sample in enumerate(list(itertools.islice(made, self._count))):
                self._one(number, sample)
        return {**self._found, "host": sorted(self._host)}

    def _one(self, number: int, sample: Any) -> None:
        arguments = [[sample.input, *sample.args], sample.kwargs]
        seen = sample.output_process_fn_grad
        try:
            theirs = run(self._record, arguments, "cpu", 0, seen, self._is_trained)
            again = run(self._record, arguments, "cpu", 1, seen, self._is_trained)
        except Exception:  # what PyTorch refuses on samples of its own
            return
        # Else it is random numbers, or memory that nobody filled.
        settled = not (self._record.name.startswith(UNDEFINED) or unlike(again, theirs, True))
        self._found["samples"] += 1
        fallback_report(clear=True)
        for what in ("forward", "backward") if theirs[1] else ("forward",):
            grads = what == "backward"
            try:
                ours = run(self._record, arguments, self._device, 0, seen, grads)
                told = unlike(_loose(ours), _loose((theirs[0], theirs[1] * grads)), settled)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = str(error).strip().partition("\n")[0][:200]
                kind = f"{type(error).__name__}: {text} ({place.name})"
                self._found["raised"].append(f"{what} {number}: {kind}")
                break
            if told:
                self._found["wrong"].append(f"{what} {number}: {told}")
                break
            if grads:
                self._found["backward"] = "equal"
        self._host.update(row.op for row in fallback_report())
