"""Devices: how they are named, which programs live on them, when the process waits for them."""
