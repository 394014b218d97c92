"""Refuse a commit whose subject is not `area: verb what`; git's commit-msg hook calls it.

python -m tools.commit_subject .git/COMMIT_EDITMSG
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

LONGEST = 100
_SUBJECT = re.compile(r"[a-z][a-z0-9_. -]*(, [a-z][a-z0-9_. -]*)*: [a-z0-9`~\"'].*[^.]")
_MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def fault(message: str) -> str:
    """Return what is wrong with a message; "" where nothing is."""
    subject, *rest = message.splitlines() or [""]
    if subject.startswith(_MADE_BY_GIT):
        return ""
    if not _SUBJECT.fullmatch(subject):
        return f"the subject is no `area: verb what`, without a period: {subject!r}"
    if len(subject) > LONGEST:
        return f"the subject has {len(subject)} characters, more than {LONGEST}"
    if rest and rest[0].strip():
        return "the line below the subject is not empty"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Check the message in a file; the exit status."""
    text = Path(arguments[0]).read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = fault(kept)
    if found:
        print(f"commit: {found}\n  hint: CONTRIBUTING.md, Commits and reviews", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
