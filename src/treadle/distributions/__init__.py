"""Probability distributions: what they yield, and how likely that is."""

from treadle.distributions.distribution import Distribution
from treadle.distributions.exponential import Exponential

__all__ = ["Distribution", "Exponential"]
