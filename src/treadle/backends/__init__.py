"""Devices and engines, each behind the protocol of `api.py` and found by entry point."""
