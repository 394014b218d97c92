"""Graphs: pure, typed, immutable programs, their text form, and the passes that rewrite them."""
