"""Whether all ranks take a program with reductions from their caches, or all make it.

Ranks talk when they make one: all measure the link, and the first one's cut into buckets holds for
all. One that came from a cache would not take part, and the others would wait for it. Nor would
programs that were made at different times reduce the same buckets. So ranks compare what they
have found before any goes on; where that differs, or one has nothing, all make the program.
"""

from __future__ import annotations

import hashlib

from treadle.engine.cache import Cuts, Entry
from treadle.engine.options import Options
from treadle.graph.ir import Graph
from treadle.ops.collective import AllReduce, Collective
from treadle.runtime.comm import buckets, carriers, groups
from treadle.runtime.comm.api import Communicator


def settings(graph: Graph, options: Options) -> str | None:
    """What a program depends on besides its ops: of its groups, who is on which machine.

    None for a program that is not kept, as its ranks talk in several groups when they make it, and
    each of those would have to be asked.
    """
    if len(_asked(graph, options)) > 1:
        return None
    names = {node.op.group for node in graph.nodes if isinstance(node.op, Collective)}
    return "; ".join(_described(name) for name in sorted(names))


def _described(name: str) -> str:
    comm = groups.find(name)
    if comm is None:
        return f"{name}: nobody"
    places = list(dict.fromkeys(comm.machines))
    carried = "" if carriers.why_not(carriers.NCCL, name) else f" {carriers.NCCL}"
    return f"{name}: {comm.engine}{carried} {[places.index(m) for m in comm.machines]}"


def _asked(graph: Graph, options: Options) -> list[str]:
    """The groups whose ranks talk when they make a program."""
    if options.reductions == "off" or not options.allows("reductions", 1):
        return []
    ops = [node.op for node in graph.nodes if isinstance(node.op, AllReduce)]
    return sorted({op.group for op in ops if op.world > 1})


def shared(graph: Graph, options: Options, known: Entry | None) -> Entry | None:
    """What was found in the cache, if all ranks have found the like; else None.

    A group whose ranks have reduced the same before is not asked again: one of them may be alone in
    making a program, as for a last batch that is smaller than those of others.

    Raises:
        CommunicationError: a rank does not come in time.
    """
    comm = _asked_one(graph, options)
    if comm is None:
        return known
    agreed = buckets.programs_of(comm).get(_reduced(graph, options))
    if agreed is not None:
        return known if known is not None and known.cuts == agreed else None
    mine = "" if known is None else hashlib.sha256(repr(known.cuts).encode()).hexdigest()
    alike = set(comm.exchange(mine)) == {mine}
    if known is None or not alike:
        return None
    for what, cut in known.cuts:
        buckets.remember(comm, what, cut)
    return known


def settle(graph: Graph, options: Options, cuts: Cuts) -> None:
    """Keep in mind how the reductions of a program are cut that this rank has now."""
    comm = _asked_one(graph, options)
    if comm is not None:
        buckets.programs_of(comm).setdefault(_reduced(graph, options), cuts)


def _asked_one(graph: Graph, options: Options) -> Communicator | None:
    """The one group whose ranks talk when they make a program, if there is one."""
    names = _asked(graph, options)
    comm = groups.find(names[0]) if len(names) == 1 else None
    return None if comm is None or comm.size == 1 else comm


def _reduced(graph: Graph, options: Options) -> str:
    """What a program reduces, equal on ranks whose batches have different shapes."""
    found = [f"{n.op} {n.output.type}" for n in graph.nodes if isinstance(n.op, AllReduce)]
    return "; ".join((repr(options.reductions), *found))
