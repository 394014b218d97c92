"""Products of small integers, several terms of which are multiplied at a time as words."""
