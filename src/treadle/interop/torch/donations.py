"""Saved tensors that a backward graph may overwrite, as AOTAutograd says ("donated buffers").

Nobody sees them: they are neither arguments nor results of the forward, nor results of the
backward. AOTAutograd names none where the first backward keeps its graph (`retain_graph`), and
raises where a later one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx
from torch._functorch import config

_MARK = "treadle_donated"


def donated_to_backward() -> Sequence[int]:
    """Numbers of the arguments of the backward graph that is being compiled."""
    context = torch._guards.TracingContext.try_get()
    known = None if context is None else context.fw_metadata
    return (known.bw_donated_idxs if known is not None and config.donated_buffer else None) or ()


def note_donated(graph: fx.Graph, numbers: Sequence[int]) -> None:
    """Note arguments that may be overwritten at their nodes, but for those that share memory."""
    given = graph.find_nodes(op="placeholder")
    storages = [_storage(node) for node in given]
    count = Counter(storages)
    for number in numbers:
        storage = storages[number]
        if storage is not None and count[storage] == 1:
            given[number].meta[_MARK] = True


def _storage(node: fx.Node) -> int | None:
    """A number for the memory of an argument; None where it has none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def donated_to(call: fx.Node) -> frozenset[int]:
    """Numbers of the arguments that the call of a part may overwrite: nothing else reads them."""
    return frozenset(
        number
        for number, given in enumerate(call.args)
        if isinstance(given, fx.Node)
        and given.meta.get(_MARK)
        and list(given.users) == [call]
        and call.args.count(given) == 1
    )
