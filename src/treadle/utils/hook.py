"""Handles of hooks."""

from treadle.module.hook import HookHandler

__all__ = ["HookHandler"]
