"""A LoRA step of a random Llama, here and by peft on PyTorch: time, peak memory, losses.

    python benchmarks/lora.py [--tokens 512] [--layers 16] [--hidden 2048] [--dtype float32]

Each runs in a process of its own, one after the other, with the same weights, adapter and tokens;
Treadle over blocks of 8 and 4 bits as well, peft with gradient checkpointing and without. Needs
what `make test-llm` installs. The usual extents are those of Llama-3.2-1B, in float32: 5 GB of
weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LR = 1e-3


def config(given: argparse.Namespace) -> dict[str, Any]:
    """Of the model."""
    return {
        "vocab_size": given.vocabulary,
        "hidden_size": given.hidden,
        "intermediate_size": given.hidden * 4,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.hidden // 64,
        "num_key_value_heads": max(1, given.hidden // 256),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }


def tokens(given: argparse.Namespace) -> np.ndarray[Any, Any]:
    """What is learned."""
    found = np.random.default_rng(0).integers(0, given.vocabulary, (1, given.tokens))
    return found.astype(np.int32)


def make(given: argparse.Namespace, folder: Path) -> None:
    """Write the model and the first adapter."""
    import peft
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = transformers.LlamaConfig(**config(given))
    model = transformers.LlamaForCausalLM(sizes).to(getattr(torch, given.dtype))
    model.save_pretrained(folder / "base")
    lora = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, lora).save_pretrained(folder / "adapter")
    from treadle.llm.conversion import quantize

    for format in ("Q8_0", "Q4_0"):
        quantize(folder / "base", folder / f"{format}.gguf", format)


def ours(
    given: argparse.Namespace, folder: Path, format: str = "", again: bool | None = None
) -> list[tuple[float, float]]:
    """Losses and seconds of the steps, over numbers or over blocks of a format."""
    from treadle.llm.files import open_checkpoint
    from treadle.llm.models import build
    from treadle.llm.tuning import Rows, Schedule, Tuner, read_adapter

    source, dtype = ("base", given.dtype) if not format else (f"{format}.gguf", "stored")
    model = build(open_checkpoint(folder / source), dtype)
    adapter = read_adapter(folder / "adapter", model.stack.products())
    tuner = Tuner(model, adapter, Schedule(LR, kind="constant"), recompute=again)
    row = tokens(given)
    weights = np.ones(row.shape, np.float32)
    weights[:, -1] = 0
    at = np.arange(row.shape[1], dtype=np.int32)[None]
    rows = Rows(row, np.zeros_like(row), at, np.roll(row, -1, 1), weights)
    return timed(lambda: tuner.step([rows]), given.steps)


def theirs(
    given: argparse.Namespace, folder: Path, checkpointing: bool
) -> list[tuple[float, float]]:
    """The same by peft."""
    import peft
    import torch
    import transformers

    dtype = getattr(torch, given.dtype)
    base = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True)
    model.train()
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0)
    given_tokens = torch.tensor(tokens(given), dtype=torch.int64)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=given_tokens, labels=given_tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return float(loss.detach())

    return timed(step, given.steps)


def timed(step: Any, count: int) -> list[tuple[float, float]]:
    """Losses and seconds."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        loss = step()
        found.append((loss, time.perf_counter() - begun))
    return found


WAYS = {
    "treadle": ours,
    "treadle, recomputing": lambda given, folder: ours(given, folder, again=True),
    "treadle, Q8_0": lambda given, folder: ours(given, folder, "Q8_0"),
    "treadle, Q4_0": lambda given, folder: ours(given, folder, "Q4_0"),
    "peft": lambda given, folder: theirs(given, folder, False),
    "peft, checkpointing": lambda given, folder: theirs(given, folder, True),
}


def main() -> None:
    """Run all ways, or, in a process for it, one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        folder = Path(given.folder)
        if given.way == "make":
            make(given, folder)
            return
        steps = WAYS[given.way](given, folder)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({"steps": steps, "peak": peak}))
        return
    with tempfile.TemporaryDirectory() as folder_name:
        again = [sys.executable, __file__, *sys.argv[1:], "--folder", folder_name, "--way"]
        subprocess.run([*again, "make"], check=True, stdout=subprocess.DEVNULL)
        for way in WAYS:
            done = subprocess.run([*again, way], check=True, stdout=subprocess.PIPE, text=True)
            told = json.loads(done.stdout.splitlines()[-1])
            seconds = statistics.median(s for _, s in told["steps"][1:])
            losses = " ".join(f"{loss:.4f}" for loss, _ in told["steps"])
            first = told["steps"][0][1]
            print(
                f"{way:21}{seconds:8.3f} s  {given.tokens / seconds:8.0f} tokens/s "
                f" first {first:6.1f} s  peak {told['peak']:6.2f} GiB  losses {losses}"
            )


if __name__ == "__main__":
    main()
