"""Weights in quantized blocks: how their bytes lie, and what they stand for."""
