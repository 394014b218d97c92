"""What kernels do to one element: scalar expressions, conversions, mathematical functions."""
