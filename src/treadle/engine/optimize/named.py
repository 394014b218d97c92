"""Groups that the user names: the nodes of a name become one kernel, or it is said why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from treadle.engine.optimize.bodies import Trial, accepted, assemble
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import (
    is_attention,
    is_contraction,
    is_static,
    is_window,
)
from treadle.engine.options import Options
from treadle.graph.ir import Graph, Node
from treadle.ops.fused import Fused


def named_groups(
    graph: Graph, trial: Trial, options: Options, notes: Counter[tuple[str, str, str]]
) -> Graph:
    """The graph with one fused node in place of the nodes of each name, which it takes on.

    All of a group's nodes or none are merged. Those of a group that cannot be are left to the usual
    choice of groups.

    Args:
        graph: what `prepare` made.
        trial: asks the compiler.
        options: what the fusion switch leaves on.
        notes: receives what became of each name, and why.
    """
    names = list(dict.fromkeys(n.group for n in graph.nodes if n.group))
    if not names:
        return graph
    groups = Groups(graph)
    for name in names:
        members = [i for i, n in enumerate(groups.nodes) if n.group == name]
        nodes = [groups.nodes[i] for i in members]
        made = _join(groups, members, _kind(nodes))
        reason = _reason(groups, made, nodes, trial, options)
        if not reason:
            groups.keep(_with_moves(groups, made, trial)).name = name
        ops = ", ".join(n.op.name for n in nodes)
        outcome = "is not one kernel" if reason else f"one {made.kind} kernel"
        notes[f'group "{name}"', outcome, reason or f"of {ops}"] += 1
    return assemble(groups)


def _kind(nodes: Sequence[Node]) -> str:
    if any(is_attention(n) for n in nodes):
        return "attention"
    if any(is_contraction(n) for n in nodes):
        return "contraction"
    return "window" if any(is_window(n) for n in nodes) else "loop"


def _join(groups: Groups, members: Sequence[int], kind: str) -> NodeGroup:
    """The nodes as a group, and the moves between them, such as those of layouts."""
    made = groups.joined([groups.owner[i] for i in members], kind)
    between = groups.between(made)
    if all(groups.nodes[i].op.strided for i in between):
        made = groups.joined([groups.owner[i] for i in sorted((*members, *between))], kind)
    return made


def _reason(
    groups: Groups, made: NodeGroup, nodes: Sequence[Node], trial: Trial, options: Options
) -> str:
    """Return why the nodes of a group are not merged, `""` where they can be."""
    if len(nodes) == 1:
        return f"it is {nodes[0].op.name} alone"
    if not options.fuses(made.kind):
        return f"the fusion switch has {made.kind} groups off"
    for node in nodes:
        if isinstance(node.op, Fused):
            return f"{node.op.engine} runs a part of it"
        if not is_static(node):
            return f"{node.op.name} has symbolic or empty extents"
    if made.above & made.below:
        return "an op outside needs one result of it and feeds another op of it"
    if not groups.needed(made):
        return "nobody reads its results"
    answer = accepted(groups, made, trial)
    return "" if answer else answer.message


def _with_moves(groups: Groups, made: NodeGroup, trial: Trial) -> NodeGroup:
    """The group with the moves next to it that it can do itself; loops read through them anyway."""
    refused: set[int] = set()
    while made.kind != "loop":
        found = next((i for i in _moves_around(groups, made) if i not in refused), None)
        if found is None:
            break
        owners = [groups.owner[i] for i in (*made.members, found)]
        grown = groups.joined(owners, made.kind)
        if accepted(groups, grown, trial):
            made = grown
        else:
            refused.add(found)
    return made


def _moves_around(groups: Groups, made: NodeGroup) -> Iterator[int]:
    """Moves that nothing but the group reads, or that are all that becomes of a result of it."""
    inside = set(made.members)
    read = [v for v in groups.operands(made)[1] if v not in groups.results]
    makers = [v.producer for v in read if inside.issuperset(groups.users[v])]
    moves = [n for n in makers if n is not None and n.op.strided and is_static(n)]
    yield from (groups.position[n] for n in moves)
    for value in groups.needed(made):
        users = groups.users[value]
        if value in groups.results or len(users) != 1 or users[0] in inside:
            continue
        if groups.nodes[users[0]].op.strided:
            yield users[0]
