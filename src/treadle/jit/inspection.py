"""Views of a traced function: profiles as plain data, results without values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.base import tree
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.jit.capture import Capture, Symbol
from treadle.jit.captured import CapturedCall, Output
from treadle.tensor import wrap

if TYPE_CHECKING:
    from treadle.inspect.profile import Profile


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain data, in the form that `utils.profile_analyzer` reads.

    An operator is a launch of the program, that is, a group of ops. Times are seconds.
    """
    operators: dict[str, Any] = {}
    times: dict[str, Any] = {}
    work: dict[str, Any] = {}
    for number, step in enumerate(profile.steps):
        key, start, end = str(number), step.start, step.start + step.seconds
        operators[key] = {
            "id": key,
            "name": f"{step.label}[{number}]",
            "type": step.label,
            "input": [],
            "output": [],
            "params": {"kernel": step.kernel},
        }
        times[key] = {"start": [start], "kern": [start], "end": [end]}
        work[key] = {"computation": step.flops, "memory": step.nbytes}
    return {
        "graph_exec": {"operator": operators, "var": {}},
        "profiler": {
            "device": {key: {"cpu0:0": found} for key, found in times.items()},
            "host": {key: {"main": found} for key, found in times.items()},
            "opr_footprint": work,
        },
    }


def without_values(captured: CapturedCall) -> Any:
    """The results of a capture as tensors that have types and no values."""
    ended = Capture("ended")
    builder = GraphBuilder("ended")
    leaves, shape = tree.flatten(captured.results)
    made = []
    for leaf in leaves:
        if isinstance(leaf, Output):
            value = captured.graph.outputs[leaf.index]
            symbol = Symbol(ended, GraphOperand(builder, value))
            leaf = wrap(symbol, captured.kinds[leaf.index])
        made.append(leaf)
    return tree.unflatten(shape, made)


__all__ = ["profile_data", "without_values"]
