"""Eager calls: from an op and its operands' types to a launch that is found once and kept."""
