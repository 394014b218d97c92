"""Runs records of PyTorch's operators through `torch.compile(backend="treadle")`, one per line.

A line of the standard input is a job in JSON, a line of the original standard output its findings.
A process of its own, since an operator may crash or hang: see `__main__`.
"""

import contextlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo import guards
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from treadle.graph.evaluate import evaluate
from treadle.interop.torch import left_to_torch
from treadle.interop.torch.arrays import to_array
from treadle.interop.torch.checks.comparison import copied, seed, tensors, unlike
from treadle.interop.torch.checks.records import UNDEFINED, name_of
from treadle.interop.torch.drawing import keys
from treadle.interop.torch.parts import PartInstance

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}


class Modules:
    """PyTorch's record of a class of modules, as of an operator that takes the module."""

    supports_autograd = True

    def __init__(self, info: Any, variant_test_name: str) -> None:
        self.info, self.name, self.variant_test_name = info, info.name, variant_test_name

    def supported_dtypes(self, device: str) -> Any:
        return self.info.dtypes

    supported_backward_dtypes = supported_dtypes

    @staticmethod
    def op(module: torch.nn.Module, *given: Any, **named: Any) -> Any:
        return module(*given, **named)

    __call__ = op

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> Any:
        training = self.variant_test_name == "train"
        kind: dict[str, Any] = {"device": device, "dtype": dtype, "requires_grad": requires_grad}
        for sample in self.info.module_inputs_func(self.info, **kind, training=training):
            if sample.forward_input is None:
                continue
            made, given = sample.constructor_input, sample.forward_input
            module = self.info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
            yield SampleInput(module, args=given.args, kwargs=given.kwargs)


def records() -> dict[str, Any]:
    """PyTorch's records by name: of operators, and of modules as trained and as evaluated."""
    modules = [Modules(info, mode) for info in module_db for mode in ("train", "eval")]
    return {name_of(r): r for r in (*op_db, *modules)}


def _without_seed(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


# Some records seed the generator themselves, which no tracer captures; `run` does it for all.
common_methods_invocations.wrapper_set_seed = _without_seed
# A sixth of the time of a sample: a queue of seeds for a GPU, timed tries of new guards.
torch.cuda.manual_seed_all = lambda _: None  # type: ignore[assignment]
guards.profile_guard_manager = lambda *_: 0.0


def run(
    function: Callable[..., Any], arguments: Any, start: int, seen: Callable[..., Any]
) -> tuple[list[Any], list[Any]]:
    """Results as `seen`, and gradients for seeded random gradients of those."""
    given, named = copied(arguments)
    seed(start)
    found = pytree.tree_leaves(seen(function(*given, **named)))
    modules = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.nn.Module)]
    held = [p for m in modules for p in m.parameters()]
    leaves = [x for x in (*tensors((given, named)), *held) if x.requires_grad]
    found += [b for m in modules for b in m.buffers()]
    ends = [y for y in found if isinstance(y, torch.Tensor) and y.requires_grad]
    if not (leaves and ends):
        return found, []
    generator = torch.Generator().manual_seed(7)
    # They lie as the results do, as PyTorch's compiler expects: their gradients may lie as they.
    passed = [
        torch.empty_like(y).copy_(torch.randn(y.shape, generator=generator, dtype=torch.float32))
        for y in ends
    ]
    return found, list(torch.autograd.grad(ends, leaves, passed, allow_unused=True))


class Job:
    """One record at one element type.

    Args:
        record: the operator.
        dtype: the element type of its samples.
        count: how many samples at most; 0: all. The first ones, then some by chance.
        start: of the random numbers.
        seconds: processor time after which no sample is begun; 0: no limit. What is left out
            is counted as "cut".
    """

    def __init__(
        self, record: Any, dtype: str, count: int, start: int, seconds: float = 0.0
    ) -> None:
        self.record, self.dtype, self.count, self.start = record, DTYPES[dtype], count, start
        self.seconds = seconds
        self.findings: dict[str, Any] = {
            "samples": 0,
            "cut": 0,
            "wrong": [],
            "theirs": [],
            "raised": [],
            "left": [],
            "eager": [],
        }

    def samples(self) -> list[tuple[int, Any]]:
        """Numbered: some in the order of the record, then others by chance."""
        seed(self.start)
        if self.dtype not in self.record.supported_dtypes("cpu"):
            return []
        trained = self.dtype in self.record.supported_backward_dtypes("cpu")
        trained = trained and self.record.supports_autograd and self.dtype.is_floating_point
        made = list(self.record.sample_inputs("cpu", self.dtype, requires_grad=trained))
        count = min(self.count or len(made), len(made))
        first = max(1, count // 2) if count < len(made) else min(count, 4)
        rest = random.Random(self.start).sample(range(first, len(made)), count - first)
        return list(enumerate(made[:first])) + [(i, made[i]) for i in rest]

    def run(self) -> dict[str, Any]:
        before = len(_TAKEN)
        samples = self.samples()
        end = time.process_time() + (self.seconds or float("inf"))
        for done, (number, sample) in enumerate(samples):
            if time.process_time() > end:
                self.findings["cut"] = len(samples) - done
                break
            arguments = [[sample.input, *sample.args], sample.kwargs]
            # What is free in a result, such as signs of vectors, the record takes out.
            seen = sample.output_process_fn_grad
            with _quiet():
                try:
                    theirs = run(self.record, arguments, self.start, seen)
                    again = run(self.record, arguments, self.start + 1, seen)
                except Exception:  # what PyTorch refuses on samples of its own
                    continue
            # Else it is random numbers, or memory that nobody filled.
            settled = not (self.record.name.startswith(UNDEFINED) or unlike(again, theirs, True))
            self.findings["samples"] += 1
            self._one(number, arguments, theirs, settled, seen)
        self.findings["graphs"] = len(_TAKEN) - before
        return self.findings

    def _one(
        self, number: int, arguments: Any, theirs: Any, settled: bool, seen: Callable[..., Any]
    ) -> None:
        torch._dynamo.reset()
        known, graphs = _left(), len(_TAKEN)
        shown = f"sample {number} {_described(arguments)}"
        record = self.record.op

        def function(*given: Any, **named: Any) -> Any:
            return record(*given, **named)

        try:
            with _quiet():
                ours = run(torch.compile(function, backend=_backend), arguments, self.start, seen)
        except Exception as error:
            if self._by_pytorch(function, arguments, seen) is None:
                return  # with PyTorch's own backend neither
            text = str(error).strip().partition("\n")[0]
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{shown}: {type(error).__name__}: {text[:200]} ({place.name})"
            self.findings["raised"].append(told)
            return
        finally:
            new = sorted(set(_left()) - set(known) | {k for k in known if _left()[k] > known[k]})
            self.findings["left"] = sorted({*self.findings["left"], *map(": ".join, new)})
        if len(_TAKEN) == graphs:
            self.findings["eager"].append(shown)
        told = unlike(ours, theirs, settled)
        if told and settled and self._is_random(arguments, theirs, seen):
            settled = False
            told = unlike(ours, theirs, settled)
        if told:
            compiled = self._by_pytorch(function, arguments, seen)
            same = compiled is not None and unlike(compiled, theirs, settled) == told
            self.findings["theirs" if same else "wrong"].append(f"{shown}: {told}")

    def _is_random(self, arguments: Any, theirs: Any, seen: Any) -> bool:
        """Draw more: in a small pool many numbers lead to the same windows."""
        with _quiet():
            others = (run(self.record, arguments, self.start + k, seen) for k in range(2, 12))
            return any(unlike(other, theirs, True) for other in others)

    def _by_pytorch(self, function: Any, arguments: Any, seen: Any) -> Any:
        """What PyTorch's own backend makes of it, which is none of our doing; None: an error."""
        torch._dynamo.reset()
        try:
            with _quiet():
                compiled = torch.compile(function, backend="aot_eager")
                return run(compiled, arguments, self.start, seen)
        except Exception:
            return None


def _left() -> dict[tuple[str, str], int]:
    return {(x.operator, x.reason): x.nodes for x in left_to_torch()}


_TAKEN: list[None] = []


def _backend(module: Any, inputs: Any) -> Any:
    """The backend under its public name, counting what is captured."""
    _TAKEN.append(None)
    return torch._dynamo.lookup_backend("treadle")(module, inputs)


def _described(arguments: Any) -> str:
    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return f"{str(x.dtype).rpartition('.')[2]}{list(x.shape)}"

    return repr(pytree.tree_map(one, arguments))[:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_reference(program: PartInstance, given: Sequence[torch.Tensor]) -> Any:
    """A part of a graph by the oracles of its ops: whose fault is a difference?"""
    states = keys(program.draws)
    results = evaluate(program.stages.source.graph, [*map(to_array, given), *states])
    return program.results([np.array(array, order="C") for array in results])


def main() -> None:
    """Answer jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is no answer
    torch.set_num_threads(1)
    torch._dynamo.config.allow_rnn = True  # else recurrent layers reach no backend
    if "--reference" in sys.argv:
        PartInstance.__call__ = by_reference
    known = records()
    print(json.dumps({"names": sorted(known)}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            record = known[job["name"]]
            found = Job(record, job["dtype"], job["count"], job["seed"], job["seconds"]).run()
        except Exception as error:  # samples that cannot be made
            found = {"broken": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
