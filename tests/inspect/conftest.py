"""Plug-in backends, installed for one test."""

from tests.backends.plugins import plugins

__all__ = ["plugins"]
