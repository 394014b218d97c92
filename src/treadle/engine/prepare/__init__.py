"""The prepare stage: what the program computes, in primitive ops, with all that is known used."""

from treadle.engine.prepare.stage import pipeline, prepare, take_apart

__all__ = ["pipeline", "prepare", "take_apart"]
