"""The kernel language: its definition, and what prints or runs it.

Read `ir.py` first.
"""
