"""Calls without Python: views, operators that come often, and small programs."""
