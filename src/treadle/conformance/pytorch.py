"""PyTorch: its programs on the device, by `import treadle.torch`, beside PyTorch's CPU.

All of it runs in a process of its own, since PyTorch has one accelerator per process.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from treadle.conformance.answering_process import AnsweringProcess
from treadle.conformance.check import Check, CheckFailed, Measured, NotOffered
from treadle.conformance.subject import Subject

_PATIENCE = 240.0
"""Seconds; the kit itself gives up after 300."""
_WORKER = "treadle.interop.torch.checks"
_TENSORS = """
    copies copies_between_devices views writes gradients saved random_numbers
    between_graphs mistakes
"""
_NETWORKS = """
    mlp mlp/compiled mlp/mixed_precision cnn cnn/compiled transformer transformer/compiled
"""
_RECORDS = """
    add sub mul div.no_rounding_mode pow neg exp log sqrt rsqrt sin cos tanh sigmoid erf abs
    reciprocal clamp maximum minimum where eq lt logical_and floor sign addcmul lerp
    matmul mm bmm addmm baddbmm einsum outer
    sum mean var std amax argmax cumsum prod all logsumexp softmax log_softmax topk sort
    max.reduction_with_dim linalg.vector_norm
    cat stack split chunk permute transpose reshape view expand repeat squeeze unsqueeze flatten
    index_select gather scatter scatter_add index_put masked_fill narrow slice flip roll tril unfold
    as_strided clone select unbind __getitem__ nonzero masked_select
    bfloat16 float long arange full_like zeros_like
    nn.functional.linear nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
    nn.functional.conv_transpose2d nn.functional.embedding nn.functional.relu nn.functional.gelu
    nn.functional.silu nn.functional.leaky_relu nn.functional.elu nn.functional.softplus
    nn.functional.mish nn.functional.hardswish nn.functional.layer_norm nn.functional.group_norm
    nn.functional.rms_norm nn.functional.batch_norm nn.functional.dropout nn.functional.max_pool2d
    nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.interpolate.bilinear
    nn.functional.interpolate.nearest nn.functional.pad.constant nn.functional.pixel_shuffle
    nn.functional.scaled_dot_product_attention nn.functional.cross_entropy nn.functional.mse_loss
    nn.functional.nll_loss nn.functional.smooth_l1_loss
    nn.functional.binary_cross_entropy_with_logits
"""
"""PyTorch's own records (`op_db`) of operators that models are made of."""


def checks(subject: Subject) -> Iterator[Check]:
    """Tensors, PyTorch's records of operators, networks; the first one pays for the process."""
    if importlib.util.find_spec("torch") is None:
        yield Check("PyTorch", "devices", _refuse)
        return
    worker = _Worker(subject)
    steps = 5 if subject.quick else 30
    try:
        for name in _TENSORS.split():
            own = f"tensors/{name}"
            yield Check("PyTorch", own, partial(worker.check, own, steps))
        for name in _RECORDS.split():
            yield Check("PyTorch", f"operators/{name}", partial(worker.record, name))
        for name in _NETWORKS.split():
            own = f"training/{name}"
            yield Check("PyTorch", own, partial(worker.check, own, steps))
    finally:
        worker.stop()


def _refuse() -> None:
    raise NotOffered("PyTorch is not installed")


class _Worker:
    """A process in which the backend's first device is PyTorch's."""

    def __init__(self, subject: Subject) -> None:
        command = sys.executable, "-P", "-m", _WORKER, f"{subject.kind}0"
        self._process = AnsweringProcess(*command, environment=subject.environment, quiet=True)
        self._samples = 1 if subject.quick else 4
        self._began: Callable[[], dict[str, Any]] = functools.cache(self._process.start)

    def stop(self) -> None:
        """End the process, if it has begun."""
        self._process.stop()

    def check(self, name: str, steps: int) -> Measured:
        """A check of ours: of tensors, or of a network that is trained."""
        return self._ask({"check": name, "steps": steps})

    def record(self, name: str) -> Measured:
        """Results and gradients of a record of PyTorch."""
        lacks = self._began().get("lacks")
        if lacks:
            raise NotOffered(f"PyTorch's records cannot be read: {lacks}")
        if name not in self._began().get("names", ()):
            raise NotOffered("this version of PyTorch has no such record")
        job = {"record": name, "dtype": "float32", "count": self._samples, "seed": 0}
        return self._ask(job)

    def _ask(self, job: dict[str, Any]) -> Measured:
        if "lost" in self._began():
            raise CheckFailed(f"PyTorch cannot have the device: {self._began()['lost']}")
        found = self._process.ask(json.dumps(job), _PATIENCE)
        for key in ("lost", "broken"):
            if key in found:
                raise CheckFailed(str(found[key]))
        problems = [*found.get("wrong", ()), *found.get("raised", ())]
        if problems:
            raise CheckFailed(problems[0])
        host = {"on the host": " ".join(found["host"])} if found["host"] else {}
        return {**found.get("measured", {}), **host}
