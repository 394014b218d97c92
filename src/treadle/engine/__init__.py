"""The engine: eager dispatch today, and the six stages from prepare to execute."""
