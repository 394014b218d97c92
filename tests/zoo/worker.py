"""Runs models of the zoo: a line of the standard input names one, a line of the output answers.

A process of its own, since a model may crash or hang: see `__main__`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
from tests.zoo.families import TIMM, TRANSFORMERS, import_torchvision, model_of
from tests.zoo.files import INPUTS, ways_of_file
from tests.zoo.trained import TRAINED
from tests.zoo.ways import Found, torch_ways

import treadle as mge


def names() -> list[str]:
    """Every model, as `kind/name`."""
    kinds = {"file": INPUTS, "trained": TRAINED, "timm": TIMM, "transformers": TRANSFORMERS}
    return [f"{kind}/{name}" for kind, listed in kinds.items() for name in listed]


def answer(name: str, folder: Path, seed: int) -> Found:
    """What is found about a model; errors in words."""
    kind, _, which = name.partition("/")
    try:
        if kind == "file":
            return ways_of_file(which, folder)
        if kind == "trained":
            return TRAINED[which](folder)
        return torch_ways(*model_of(name, seed))
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        at = [f for f in traceback.extract_tb(error.__traceback__) if "/treadle/" in f.filename]
        where = f" ({Path(at[-1].filename).name}:{at[-1].lineno})" if at else ""
        return {"gaps": {}, "refused": f"{type(error).__name__}: {said}{where}"}


def main() -> None:
    """Answer until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    sys.stdout = sys.stderr
    warnings.simplefilter("ignore")
    mge.set_default_device("cpux")
    torch.set_num_threads(2)
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    sys.path.append(str(folder))
    import_torchvision()
    print(json.dumps({"names": names()}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.rstrip("\n"), folder, seed)), file=out, flush=True)


if __name__ == "__main__":
    main()
