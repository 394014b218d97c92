"""The parts of contractions: problems, operands, tiles, packing, epilogues and launches."""
