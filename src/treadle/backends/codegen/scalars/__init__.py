"""Work on one element: scalar expressions, conversions, mathematical functions."""
