"""Attention and its gradient as kernels that keep scores in scratch memory."""
