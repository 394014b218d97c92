"""The prepare stage: what the program computes, in primitive ops, with all that is known used."""

from treadle.engine.prepare.reductions import bucket_reductions
from treadle.engine.prepare.stage import pipeline, prepare, take_apart

__all__ = ["bucket_reductions", "pipeline", "prepare", "take_apart"]
