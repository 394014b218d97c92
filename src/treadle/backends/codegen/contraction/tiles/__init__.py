"""Products in register tiles over panels, which take every problem."""
