"""Products of few rows with a matrix whose columns are contiguous, as dot products."""
