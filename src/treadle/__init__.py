"""Treadle: a deep-learning framework with a graph engine that people can read."""

__version__ = "0.1.0"
