"""The picture of the compiler as one page of HTML that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from treadle.inspect.picture import Shown, picture
from treadle.inspect.text import to_text

SCRIPTS = ("records.js", "tables.js", "graph.js", "details.js", "charts.js", "open.js")
"""Of the page, in order; the last one opens it."""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header id="head"><h1>{title}</h1></header>
<nav id="tabs" role="tablist" aria-label="Views"></nav>
<main id="views">
<section id="view-report" role="tabpanel" tabindex="0" aria-label="Report">
<pre>{report}</pre>
</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def save_picture(path: str | os.PathLike[str], shown: Shown) -> None:
    """Write the page; the explanation as text is in it, too, for browsers without scripts.

    Args:
        path: of the file.
        shown: what to show.

    Raises:
        OSError: the file cannot be written.
    """
    text = page(picture(shown), to_text(shown.explanation, full=True))
    Path(path).write_text(text, encoding="utf-8")


def page(data: Mapping[str, Any], report: str) -> str:
    """The page as text. Names come from models, which may be anybody's: all of them are data.

    They stand in a block that no browser runs, and the page's script puts them into text nodes. In
    addition the page forbids scripts and styles other than its own, and every connection.
    """
    style, script = _own("page.css"), "".join(map(_own, SCRIPTS))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    return _HEAD.format(
        policy=escape(policy),
        title=escape(f"{data['name']} — Treadle"),
        style=style,
        report=escape(report),
        data=_harmless(json.dumps(data, ensure_ascii=False, separators=(",", ":"))),
        script=script,
    )


def _own(name: str) -> str:
    return resources.files(__package__).joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _harmless(text: str) -> str:
    """JSON in which nothing ends the block that it stands in."""
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
