"""Programs with extents that data decide: phases, each a program, with the deciding ops between.

How many boxes are kept, or elements not zero, is known when an op has run. What follows is a
program of its own, in which such an extent is a symbol: `parting` cuts a graph, `programs` runs it.
"""

from treadle.engine.phases.parting import finds_extents, renumbered
from treadle.engine.phases.programs import InPhases, PhasedRunner, Phases, decisions_of, stages_of

__all__ = [
    "InPhases",
    "PhasedRunner",
    "Phases",
    "decisions_of",
    "finds_extents",
    "renumbered",
    "stages_of",
]
