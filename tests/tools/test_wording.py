"""The check of wording finds what it is for, and nothing in code."""

from __future__ import annotations

from tools.wording import in_code, in_functions, in_help, in_page

OPENINGS = frozenset({"What", "Whether"})

CODE = '''"""What a module is."""

LIMIT = 3
"""Whether it counts."""


class Thing:
    """Whatever it is."""

    def method(self):
        """What it gives."""
        return "What a string is"

    x: int
    """A number."""
'''


def test_openings_of_docstrings_are_found() -> None:
    assert [line for line, _ in in_code(CODE, OPENINGS)] == [1, 4, 11]


FUNCTIONS = '''"""Those of a module are not looked at."""


class Thing:
    """Its class."""

    @property
    def size(self):
        """Of a word."""

    def close(self):
        """Close."""

    async def cells(self):
        """Cells of a window; its first one comes last."""

    def bare(self):
        return "Of no interest"


def compute():
    """
    Its result, on the next line.
    """
'''


def test_docstrings_of_functions_stand_alone() -> None:
    found = list(in_functions(FUNCTIONS, frozenset({"Of", "Its", "Those"})))
    assert found == [
        (21, 'the docstring of compute begins with "Its"'),
        (8, 'the docstring of size begins with "Of"'),
        (11, 'the docstring of close is one word, "Close."'),
    ]


def test_openings_of_help_texts_are_found() -> None:
    code = 'Option(help="What it is.")\nOption(help="A name.")\nOption(metavar="What")\n'
    assert [line for line, _ in in_help(code, OPENINGS)] == [1]


def test_words_are_found_in_prose_alone() -> None:
    page = "The muster is here.\n\n```\nmuster = 1\n```\n\nand `muster` there.\nMuster again.\n"
    assert [line for line, _ in in_page(page, {"muster": "rendezvous"})] == [1, 8]
