"""Language models with random weights, as GGUF files that every framework loads."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import FORMATS, BlockTensor
from treadle.llm.files.gguf_writer import PlannedTensor, write_gguf


@dataclass(frozen=True)
class Shape:
    """The extents of a decoder; `architecture` is GGUF's name for its family."""

    architecture: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    theta: float
    epsilon: float
    tied: bool = True
    bias: bool = False
    head_norms: bool = False


SHAPES = {
    "qwen2.5-0.5b": Shape("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 1e6, 1e-6, bias=True),
    "qwen3-0.6b": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 1e6, 1e-6, head_norms=True),
    "llama-3.2-1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 128256, 5e5, 1e-5),
    "tinyllama-1.1b": Shape("llama", 2048, 5632, 22, 32, 4, 64, 32000, 1e4, 1e-5, tied=False),
    "smollm2-135m": Shape("llama", 576, 1536, 30, 9, 3, 64, 49152, 1e5, 1e-5),
}
CONTEXT = 8192
PLAIN = {"BF16": np.dtype(ml_dtypes.bfloat16)}
KINDS = (*FORMATS, *PLAIN)
"""What matrices may be stored as."""


def write(path: Path, name: str, format: str, seed: int = 0) -> None:
    """A file of `name`'s extents; beside blocks, embedding and head have 8 bits, norms 32."""
    shape, rng = SHAPES[name], np.random.default_rng(seed)
    table = format if format in PLAIN else "Q8_0"
    made: list[PlannedTensor] = []

    def plain(key: str, size: int, mean: float = 1.0) -> None:
        values = rng.normal(mean, 0.02, size).astype(np.float32)
        made.append(PlannedTensor(key, (size,), np.dtype(np.float32), lambda: values))

    def matrix(key: str, rows: int, columns: int, kind: str = format) -> None:
        number, form = len(made), PLAIN.get(kind) or FORMATS[kind]

        def make() -> BlockTensor | Array:
            rng = np.random.default_rng((seed, number))
            if kind in PLAIN:
                return (0.02 * rng.standard_normal((rows, columns), np.float32)).astype(PLAIN[kind])
            return _blocks(kind, rows, columns, rng)

        made.append(PlannedTensor(key, (rows, columns), form, make))

    wide, narrow = shape.heads * shape.head, shape.kv_heads * shape.head
    matrix("token_embd.weight", shape.vocabulary, shape.hidden, table)
    for i in range(shape.layers):
        at = f"blk.{i}"
        plain(f"{at}.attn_norm.weight", shape.hidden)
        for which, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            matrix(f"{at}.attn_{which}.weight", rows, shape.hidden)
            if shape.bias:
                plain(f"{at}.attn_{which}.bias", rows, 0.0)
        if shape.head_norms:
            plain(f"{at}.attn_q_norm.weight", shape.head)
            plain(f"{at}.attn_k_norm.weight", shape.head)
        matrix(f"{at}.attn_output.weight", shape.hidden, wide)
        plain(f"{at}.ffn_norm.weight", shape.hidden)
        matrix(f"{at}.ffn_gate.weight", shape.inner, shape.hidden)
        matrix(f"{at}.ffn_up.weight", shape.inner, shape.hidden)
        matrix(f"{at}.ffn_down.weight", shape.hidden, shape.inner)
    plain("output_norm.weight", shape.hidden)
    if not shape.tied:
        matrix("output.weight", shape.vocabulary, shape.hidden, table)
    write_gguf(path, _metadata(name, shape), made)


def _blocks(kind: str, rows: int, columns: int, rng: np.random.Generator) -> BlockTensor:
    """Levels at random, scales that give weights a deviation of about 0.02."""
    form = FORMATS[kind]
    data = rng.integers(0, 256, (rows, form.row_bytes(columns)), dtype=np.uint8)
    fields = data.view(form.layout)
    largest = 2.0 ** (form.bits - 1.5)
    fields["d"] = np.float16(0.035 / largest)
    if "m" in (form.layout.names or ()):
        fields["m"] = np.float16(0.0175 if form.elements == 256 else -0.035)
    if kind in ("Q4_K", "Q5_K"):
        fields["d"], fields["m"] = np.float16(0.035 / largest / 40), np.float16(0.035 / 80)
    if kind in ("Q3_K", "Q6_K"):
        fields["d"] = np.float16(0.035 / largest / 70)
    return BlockTensor(form, (rows, columns), data)


def _metadata(name: str, shape: Shape) -> dict[str, object]:
    a = shape.architecture
    symbols = _byte_symbols()
    fillers = [f"<filler{i}>" for i in range(shape.vocabulary - len(symbols) - 1)]
    tokens = [*symbols, symbols[104] + symbols[105], *fillers]
    return {
        "general.architecture": a,
        "general.name": name,
        f"{a}.block_count": shape.layers,
        f"{a}.context_length": CONTEXT,
        f"{a}.embedding_length": shape.hidden,
        f"{a}.feed_forward_length": shape.inner,
        f"{a}.attention.head_count": shape.heads,
        f"{a}.attention.head_count_kv": shape.kv_heads,
        f"{a}.attention.key_length": shape.head,
        f"{a}.attention.value_length": shape.head,
        f"{a}.attention.layer_norm_rms_epsilon": shape.epsilon,
        f"{a}.rope.dimension_count": shape.head,
        f"{a}.rope.freq_base": shape.theta,
        f"{a}.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2" if a.startswith("qwen") else "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [1] * (len(symbols) + 1) + [5] * len(fillers), np.int32
        ),
        "tokenizer.ggml.merges": [f"{symbols[104]} {symbols[105]}"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_symbols() -> list[str]:
    """The characters that stand for bytes in byte-level BPE, byte by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in shown]
    places = {b: b for b in shown} | {b: 256 + i for i, b in enumerate(rest)}
    return [chr(places[b]) for b in range(256)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("format", choices=KINDS)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    write(given.path, given.name, given.format)
