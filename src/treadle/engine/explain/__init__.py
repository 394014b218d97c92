"""Explanations: what became of a program, for people and, as plain data, for tools."""

from treadle.engine.explain.gather import Explanation, explain
from treadle.engine.explain.text import to_text

__all__ = ["Explanation", "explain", "to_text"]
