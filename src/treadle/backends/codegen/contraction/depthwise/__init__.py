"""Convolutions whose channels are groups of their own, and their gradients."""
