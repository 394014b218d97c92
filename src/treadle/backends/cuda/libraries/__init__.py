"""Ops that NVIDIA's libraries compute, as kernels of the backend; each optional."""
