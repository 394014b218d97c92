"""Products of bfloat16 and bytes by matrix registers and dot-product instructions."""
