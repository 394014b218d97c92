"""Writes a workload's model as ONNX, once, and prints where: `export.py WORKLOAD FOLDER`.

It runs in PyTorch's interpreter and needs `onnx` and `onnxscript` there.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from workloads import IMAGES, WORKLOADS, Workload, data_of

SOURCES = ("weights.py", "torch_models.py", "export.py")


def main(key: str, folder: Path) -> Path:
    """The file of a workload."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SystemExit(f"{folder} belongs to somebody else")
    work, state = WORKLOADS[key], hashlib.sha256(repr(IMAGES).encode())
    for name in SOURCES:
        state.update((Path(__file__).parent / name).read_bytes())
    made = f"{work.model}-{work.kind}-{work.batch}"
    path = folder / f"{made}-{state.hexdigest()[:12]}.onnx"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        with redirect_stdout(sys.stderr):
            export(work, str(partial))
        partial.replace(path)
    return path


def export(work: Workload, path: str) -> None:
    """Write the model."""
    try:
        import onnxscript  # noqa: F401
        import torch
        from torch_models import GPT, GrowingDecoder, load
    except ModuleNotFoundError as error:
        raise SystemExit(f"models cannot be exported: {error}") from None
    settings: dict[str, Any] = {"opset_version": 18, "dynamo": True, "external_data": False}
    if work.kind == "infer":
        arguments = (torch.from_numpy(data_of(work)[0]),)
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(load(work.model).eval(), arguments, path, **names, **settings)
        return
    layers, dim, heads, _, _ = GPT
    cache = torch.zeros(layers, 1, heads, 7, dim // heads)
    token, at = torch.zeros(1, 1, dtype=torch.long), torch.tensor([5])
    length = {3: torch.export.Dim("length", min=2, max=512)}
    torch.onnx.export(
        GrowingDecoder(load("gpt")).eval(),
        (token, at, cache, cache.clone()),
        path,
        input_names=["token", "at", "keys", "values"],
        output_names=["next", "longer_keys", "longer_values"],
        dynamic_shapes=(None, None, length, length),
        **settings,
    )


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2])))
