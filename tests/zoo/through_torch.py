"""Models of timm and transformers through `torch.compile(backend="treadle")`, as a table.

`python -m tests.zoo.through_torch FOLDER` (`make torch-models`) runs small ones with random
weights: forward and gradients, another number of rows, and a step in training, with their dropout.
A line says how far results are from PyTorch's and which operators stayed with it. A model that
differs by more than `LIMIT` makes the status 1.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tests.zoo.families import (
    MORE_TIMM,
    MORE_TRANSFORMERS,
    TIMM,
    TRANSFORMERS,
    import_torchvision,
    model_of,
)

from treadle.interop.torch import left_to_torch

LIMIT = 1e-3
"""Largest difference, relative to the largest number of a result or gradient."""
HEAD = ("model", "forward", "gradients", "other rows", "stays with PyTorch")


def gap(ours: torch.Tensor, theirs: torch.Tensor, least: float = 1e-6) -> float:
    """The largest difference, relative to the largest number."""
    if not theirs.numel():
        return 0.0
    return float((ours - theirs).abs().max() / max(float(theirs.abs().max()), least))


def step(run: Any, model: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """What a model gives, and the gradients of a loss of it."""
    model.zero_grad()
    y = run(*inputs)
    torch.manual_seed(1)
    (y * torch.randn(y.shape)).sum().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def _left() -> Counter[str]:
    """How many nodes of each operator have stayed with PyTorch so far."""
    found: Counter[str] = Counter()
    for entry in left_to_torch():
        found[entry.operator] += entry.nodes
    return found


def row(name: str, seed: int) -> tuple[list[str], float]:
    """A line of the table, and the largest difference."""
    torch._dynamo.reset()
    before = _left()
    model, inputs = model_of(name, seed)
    run = torch.compile(model, backend="treadle")
    more = tuple(torch.cat([x, x[:1]]) for x in inputs)
    ours, theirs = (step(f, model, inputs) for f in (run, model))
    largest = max((float(g.abs().max()) for g in theirs[1:] if g.numel()), default=1.0)
    gaps = [
        gap(ours[0], theirs[0]),
        max(
            (gap(a, b, largest / 100) for a, b in zip(ours[1:], theirs[1:], strict=True)),
            default=0.0,
        ),
        gap(step(run, model, more)[0], step(model, model, more)[0]),
    ]
    training = model_of(name, seed)[0].train()
    step(torch.compile(training, backend="treadle"), training, inputs)  # its dropout is random
    left = sorted(_left() - before)
    return [name, *(f"{g:.0e}" for g in gaps), ", ".join(left)], max(gaps)


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.zoo.through_torch", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", help="parts of names; none: all models")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    sys.path.append(str(options.folder))
    import_torchvision()
    listed = [f"timm/{n}" for n in (*TIMM, *MORE_TIMM)] + [
        f"transformers/{n}" for n in (*TRANSFORMERS, *MORE_TRANSFORMERS)
    ]
    names = [n for n in listed if not options.only or any(o in n for o in options.only)]
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    equal = whole = 0
    for name in names:
        try:
            cells, most = row(name, options.seed)
        except Exception as error:  # models raise what they like
            cells, most = (
                [name, "", "", "", f"{type(error).__name__}: {error}".splitlines()[0]],
                1.0,
            )
        equal += most <= LIMIT
        whole += not cells[-1]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{equal} of {len(names)} equal, {whole} entirely in Treadle")
    return equal != len(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
