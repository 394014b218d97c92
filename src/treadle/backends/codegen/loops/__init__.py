"""The loop generator: elementwise ops, movement and reductions of one domain as loop nests."""
