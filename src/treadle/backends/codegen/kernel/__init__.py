"""The kernel language: its definition, and what prints or runs it.

Read `language.py` first, then `builder.py`.
"""
