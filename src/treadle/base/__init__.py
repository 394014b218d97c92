"""Vocabulary every other layer shares: dtypes, shapes, types, errors, locations, modes."""
