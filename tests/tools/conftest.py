"""Plug-ins for a test, as in the tests of backends."""

from tests.backends.plugins import plugins

__all__ = ["plugins"]
