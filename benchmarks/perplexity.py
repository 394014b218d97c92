"""How well language models foresee a text in fewer bits, beside llama.cpp reading the same files.

Windows of tokens from modules of Python's standard library; of each the second half counts, as
llama.cpp measures it. Formats are made of the file that is given, whose numbers in float32 are what
all are compared with. Both sides get the same tokens.

    npm install --prefix DIR --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
    python benchmarks/perplexity.py model.gguf [FORMAT ...] --llama DIR [--windows 16]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import treadle.llm as llm
from treadle.llm import LanguageModel
from treadle.llm.conversion import quantize
from treadle.llm.generation.scoring import surprises

WINDOW = 512
MODULES = ("argparse", "ast", "calendar", "configparser", "csv", "heapq", "shutil", "textwrap")
"""What is read: windows by turns, the first ones of each."""
_PEER = Path(__file__).with_name("peer_llama_perplexity.mjs")

Found = list[float]
"""The mean surprise of each window."""


def windows(model: LanguageModel, count: int) -> list[list[int]]:
    """Tokens, the first window of every module before the second one of any."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [model.tokenizer.encode((library / f"{name}.py").read_text()) for name in MODULES]
    most = max(map(len, texts)) // WINDOW
    starts = ((text, turn * WINDOW) for turn in range(most) for text in texts)
    found = [text[at : at + WINDOW] for text, at in starts if at + WINDOW <= len(text)]
    return found[:count]


def own(path: str, given: Sequence[Sequence[int]], prompts: str) -> Found:
    """This framework's."""
    model = llm.load(path, context=WINDOW + 1, prompts=prompts)
    return list(surprises(model.model, given))


def llama(path: str, given: Sequence[Sequence[int]], folder: str, threads: int) -> Found:
    """llama.cpp's."""
    script = Path(folder) / _PEER.name
    script.write_text(_PEER.read_text())  # Modules are looked for beside it.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(given, file)
        file.flush()
        command = ["node", str(script), path, str(threads), file.name]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row(name: str, side: str, found: Found, whole: Found) -> str:
    """Perplexity, and what it is above that of float32, with the error of that mean."""
    more = [a - b for a, b in zip(found, whole, strict=True)]
    mean, error = statistics.mean(more), statistics.stdev(more) / math.sqrt(len(more))
    cost = f"{100 * math.expm1(mean):+.2f} ± {100 * error:.2f} %" if found is not whole else ""
    return f"| {name} | {side} | {math.exp(statistics.mean(found)):.4f} | {cost} |"


def rows(given: argparse.Namespace, folder: str) -> Iterator[str]:
    """The table's, as they are measured."""
    first = llm.load(given.file, "float32", context=WINDOW + 1)
    texts = windows(first, given.windows)
    whole = list(surprises(first.model, texts))
    del first
    yield row("the file", "Treadle, float32", whole, whole)
    for form in ("", *given.formats):
        path, name = os.path.abspath(given.file), form or "the file"
        if form:
            path = os.path.join(folder, f"{form}.gguf")
            quantize(given.file, path, form)
        for prompts in given.prompts:
            yield row(name, f"Treadle, {prompts}", own(path, texts, prompts), whole)
        if given.llama:
            found = llama(path, texts, given.llama, given.threads)
            yield row(name, "llama.cpp", found, whole)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("formats", nargs="*", help="such as Q8_0 Q4_0")
    parser.add_argument("--llama", metavar="DIR")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--prompts", nargs="*", default=["int16", "bfloat16", "int8"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    print("| weights | side, activations | perplexity | above float32's |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for line in rows(given, folder):
            print(line, flush=True)


if __name__ == "__main__":
    main()
