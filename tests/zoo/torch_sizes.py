"""Models of transformers at many sizes: one graph of PyTorch's, and shared programs.

`python -m tests.zoo.torch_sizes FOLDER` (`make torch-sizes`) runs small ones with random weights
through `torch.compile(backend="treadle", dynamic=True)` and `torch.export` with open axes. A line
says how far results are from PyTorch's at the worst size, and how many graphs and programs there
are for all of them. A model that differs by more than `LIMIT`, has a graph for more than one size,
or needs a program for each, makes the status 1.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from tests.zoo.families import First, import_torchvision, model_of
from tests.zoo.through_torch import gap
from torch._dynamo.utils import counters

import treadle as mge
from treadle.interop.torch import from_exported
from treadle.interop.torch.parts import CompiledPart

LIMIT = 1e-4
TEXTS = (
    "AlbertModel", "BertModel", "BloomForCausalLM", "LlamaForCausalLM", "MPNetModel",
    "OPTForCausalLM", "PhiForCausalLM", "Qwen3ForCausalLM", "T5EncoderModel",
)  # fmt: skip
"""Models of transformers that take tokens of (rows, length)."""
LENGTHS = ((2, 7), (3, 12), (5, 9), (4, 14), (2, 15), (3, 20), (7, 33), (6, 27))
MOST_GRAPHS, MOST_PROGRAMS = 1, 4
"""Of a graph of PyTorch's, and of one graph: lengths lie in two ranges, guards may part each."""
HEAD = ("model", "backend", "graphs", "programs", "exported", "captures", "programs", "problem")


def tokens(size: tuple[int, int]) -> torch.Tensor:
    """Tokens of some rows of a length."""
    torch.manual_seed(sum(size))
    return torch.randint(2, 60, size)


def through_the_backend(model: Any, given: list[torch.Tensor]) -> tuple[float, int, list[Any]]:
    """The worst gap, the number of graphs, and the plans of each part."""
    made: list[CompiledPart] = []
    init = CompiledPart.__init__

    def noted(self: CompiledPart, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    CompiledPart.__init__ = noted  # type: ignore[method-assign]
    try:
        torch._dynamo.reset()
        counters.clear()
        run = torch.compile(model, backend="treadle", dynamic=True)
        with torch.no_grad():
            worst = max(gap(run(x), model(x)) for x in given)
    finally:
        CompiledPart.__init__ = init  # type: ignore[method-assign]
    # Dynamo reads a frame again where the backend asks for it, and counts such a graph once.
    return (
        worst,
        counters["stats"]["unique_graphs"],
        [v.plans for part in made for v in part.variants],
    )


def exported(model: Any, given: list[torch.Tensor]) -> tuple[float, list[Any]]:
    """The worst gap, and the plans of each capture."""
    along = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    shapes = ((along,),) if isinstance(model, First) else (along,)
    with torch.no_grad():
        program = torch.export.export(model, (given[0],), dynamic_shapes=shapes, strict=False)
    module = from_exported(program)
    run = mge.jit.compile(dynamic={0: {0: "rows", 1: "length"}})(lambda x: module.results(x)[0])
    worst = 0.0
    for x in given:
        tensor = mge.tensor(x.numpy().astype("int32"))
        with torch.no_grad():
            worst = max(worst, gap(torch.from_numpy(run(tensor).numpy()), model(x)))
    families = [f for known in run._captures.families.values() for f in known]
    return worst, [f.plans for f in families]


def problems_of(plans: list[Any], what: str) -> list[str]:
    """What is wrong about programs."""
    alone = {p.alone for p in plans if p.alone}
    many = max((len(p.regimes) for p in plans), default=0)
    found = [f"{what}: {reason}" for reason in sorted(alone)]
    return found + ([f"{what}: {many} programs of one graph"] if many > MOST_PROGRAMS else [])


def judged(model: Any, given: list[torch.Tensor]) -> tuple[list[str], bool]:
    """The cells of a model's line, and whether all is well."""
    worst, graphs, parts = through_the_backend(model, given)
    far, captures = exported(model, given)
    problems = problems_of(parts, "backend") + problems_of(captures, "exported")
    problems += [] if graphs <= MOST_GRAPHS else [f"{graphs} graphs"]
    problems += [f"differs by {g:.0e}" for g in (worst, far) if not g <= LIMIT]
    programs = [str(sum(len(p.regimes) for p in plans)) for plans in (parts, captures)]
    cells = [f"{worst:.0e}", str(graphs), programs[0], f"{far:.0e}", str(len(captures))]
    return [*cells, programs[1], "; ".join(problems)], not problems


def row(name: str, seed: int) -> tuple[list[str], bool]:
    """A line of the table, and whether all is well."""
    model, _ = model_of(name, seed)
    cells, fine = judged(model, [tokens(size) for size in LENGTHS])
    return [name, *cells], fine


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.zoo.torch_sizes", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", help="parts of names; none: all models")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    sys.path.append(str(options.folder))
    import_torchvision()
    names = [f"transformers/{n}" for n in TEXTS]
    names = [n for n in names if not options.only or any(o in n for o in options.only)]
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    well = 0
    for name in names:
        try:
            cells, fine = row(name, options.seed)
        except Exception as error:  # models raise what they like
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            cells, fine = [name, *[""] * 6, told], False
        well += fine
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{well} of {len(names)} share programs")
    return well != len(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
