"""Answers jobs, one per line, about the device that the first argument names."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import torch

from treadle.engine.eager.fallback import fallback, fallback_report
from treadle.interop.torch.checks import tensors, training
from treadle.interop.torch.device import register

try:
    from treadle.interop.torch.checks import records
except ImportError as error:  # PyTorch's records need `expecttest`.
    _LACKS, _RECORDS = str(error), {}
else:
    _LACKS, _RECORDS = "", records.by_name()


def _index(device: str) -> str:
    """PyTorch's name of a device; Treadle's names do as well.

    Raises:
        ValueError: there is none.
    """
    if device.startswith("treadle:"):
        return device
    count = torch.treadle.device_count()  # type: ignore[attr-defined, unused-ignore]
    for i in range(count):
        name = torch.treadle.get_device_name(i)  # type: ignore[attr-defined, unused-ignore]
        if name == device:
            return f"treadle:{i}"
    raise ValueError(f"{device} is none of PyTorch's devices")


def _answer(device: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run one job.

    Args:
        device: of PyTorch.
        job: a "record" with "dtype", "count" and "seed"; or a "check" with "steps".
    """
    fallback_report(clear=True)
    if "record" in job:
        record = _RECORDS[job["record"]]
        return records.Job(record, job["dtype"], job["count"], job["seed"], device).run()
    group, _, name = str(job["check"]).partition("/")
    measured: dict[str, float] = {}
    if group == "tensors":
        tensors.CHECKS[name](device)
    else:
        measured = training.CHECKS[name](device, job["steps"])
    return {"measured": measured, "host": sorted({row.op for row in fallback_report()})}


def main() -> None:
    """Answer until the input ends; the first line says what can be asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is no answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register()
    device = _index(sys.argv[1])
    told = {"names": sorted(_RECORDS), "lacks": _LACKS}
    print(json.dumps(told), file=answers, flush=True)
    for line in sys.stdin:
        try:
            with fallback("silent"):
                found = _answer(device, json.loads(line))
        except Exception as error:
            found = {"broken": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
