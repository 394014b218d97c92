"""A GGUF file, or its shards, as a checkpoint: what conversion changed is undone."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files.checkpoint import ModelCheckpoint, Stored, TokenizerFile, TokenizerTables
from treadle.llm.files.gguf import Gguf, read_gguf
from treadle.llm.files.gguf_config import Config, config_of
from treadle.llm.files.gguf_names import NAMES, Names, Parsed, parsed, translated
from treadle.serialization.directories import MAX_CONFIG, read_object

MAX_SHARDS = 1000
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_POOLING = {1: "mean", 2: "cls", 3: "last"}
_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
    "<|end_of_text|>", "<|return|>", "<|call|>", "<|endofprompt|>",
})  # fmt: skip
"""Names of control tokens that end an answer, whether or not a file says so."""
_CONTROL = 3
_EXPERT_PARTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_Change = Callable[["Array | BlockTensor"], "Array | BlockTensor"]


def open_gguf(path: str) -> ModelCheckpoint:
    """A checkpoint of a GGUF file; of several, where its name says that it is one of them.

    Raises:
        CheckpointError: see `open_checkpoint`.
    """
    files = shards(path)
    first = files[0]
    config = config_of(first)
    tokenizer = _tokenizer(first, config["vocab_size"])
    template = first.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(first.where, "tokenizer.chat_template is not text")
    mode = first.metadata.get(f"{first.metadata['general.architecture']}.pooling_type")
    mode = _POOLING.get(mode) if isinstance(mode, int) else None
    return ModelCheckpoint(
        path=path,
        config=config,
        generation=_generation(first, config, tokenizer),
        tokenizer=tokenizer if tokenizer is not None else _beside(path),
        chat_template=template,
        # Whoever converts sentence encoders leaves the division by the length to programs.
        pooling={"mode": mode, "normalize": True} if mode else {},
        tensors=_tensors(files, config),
        metadata=first.metadata,
    )


def shards(path: str) -> list[Gguf]:
    """The file, or all those that it is a part of, in order; their tensors become the first's."""
    file = read_gguf(path)
    count = file.metadata.get("split.count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SHARDS:
        raise CheckpointError(path, "split.count is impossible", saw=shorten(count))
    if count == 1:
        return [file]
    parts = _SHARD.fullmatch(os.path.basename(path))
    if parts is None or int(parts[3]) != count:
        raise CheckpointError(
            path,
            f"this is one of {count} files, and its name does not say so",
            hint=f"keep the names as they were: model-00001-of-{count:05}.gguf",
        )
    folder = os.path.dirname(path)
    names = [f"{parts[1]}-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    files = [read_gguf(os.path.join(folder, name)) for name in names]
    total = 0
    for i, each in enumerate(files):
        if each.metadata.get("split.no") != i or each.metadata.get("split.count") != count:
            saw = f"{shorten(each.metadata.get('split.no'))} of {count}"
            raise CheckpointError(each.where, f"this is not part {i} of the model", saw=saw)
        total += len(each.entries)
    wanted = files[0].metadata.get("split.tensors.count", total)
    if total != wanted:
        saw = f"{total} tensors, {shorten(wanted)} are announced"
        raise CheckpointError(path, "the parts belong to different models", saw=saw)
    return files


# -- tensors -------------------------------------------------------------------------------------


def _tensors(files: list[Gguf], config: Config) -> dict[str, Stored]:
    architecture = files[0].metadata["general.architecture"]
    names = NAMES[architecture]
    found: dict[str, Stored] = {}
    for file in files:
        for name in file.entries:
            parts = parsed(name)
            if parts is not None and parts.layer is None and parts.stem in names.consumed:
                continue
            target = None if parts is None else translated(names, parts)
            if parts is None or target is None:
                problem = f"{shorten(name)} is not a tensor of {architecture}"
                raise CheckpointError(file.where, problem, hint="this variant is not known")
            _add(found, file, name, target, _change(file, names, parts, config))
    return _join(files[0].where, found) if architecture == "gpt-oss" else found


def _add(
    found: dict[str, Stored], file: Gguf, name: str, target: str, change: _Change | None
) -> None:
    """A tensor under its name or, where the name says so, one for each of its experts."""
    shape = file.entries[name].shape

    def make(part: int | None) -> Array | BlockTensor:
        tensor = file.tensor(name)
        if part is not None:
            tensor = tensor[part]
        return tensor if change is None else change(tensor)

    if "{e}" not in target:
        each = {target: Stored(shape, partial(make, None), partial(file.release, name))}
    elif len(shape) < 2 or shape[0] > 1 << 12:
        raise CheckpointError(
            file.where, f"{shorten(name)} is not a stack of experts", saw=str(shape)
        )
    else:
        each = {
            target.replace("{e}", str(i)): Stored(
                shape[1:], partial(make, i), partial(_release, file, name, i)
            )
            for i in range(shape[0])
        }
    if found.keys() & each.keys():
        raise CheckpointError(file.where, f"{shorten(name)} is there twice")
    found.update(each)


def _release(file: Gguf, name: str, expert: int, rows: slice | None) -> None:
    """Release the memory of an expert's rows."""
    count = math.prod(file.entries[name].shape[1:-1])
    start, stop, _ = (rows or slice(None)).indices(count)
    file.release(name, slice(expert * count + start, expert * count + stop))


def _change(file: Gguf, names: Names, parts: Parsed, config: Config) -> _Change | None:
    """Return the change that undoes what conversion did to a tensor."""
    if names.raised and parts.stem.endswith("norm"):
        return _lowered
    if names.permuted and parts.stem in ("attn_q", "attn_k"):
        key = "num_attention_heads" if parts.stem == "attn_q" else "num_key_value_heads"
        heads = config.get(key) or config["num_attention_heads"]
        rows = file.entries[f"blk.{parts.layer}.{parts.stem}{parts.suffix}"].shape[0]
        if not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
            saw = f"{rows} rows, {shorten(heads)} heads"
            raise CheckpointError(file.where, f"{parts.stem} has no pairs of rows", saw=saw)
        return partial(_in_halves, heads=heads)
    return None


def _lowered(norm: Array | BlockTensor) -> Array | BlockTensor:
    """The weight of a norm that multiplies by 1 + weight."""
    numbers = norm.dequantize() if isinstance(norm, BlockTensor) else norm.astype(np.float32)
    return numbers - np.float32(1)


def _in_halves(tensor: Array | BlockTensor, heads: int) -> Array | BlockTensor:
    """Rows of q or k as rotation by halves wants them: GGUF's row 2i + j was row j·d/2 + i.

    Rows are whole blocks, so blocks move as they are.
    """
    order = np.arange(tensor.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return tensor[order]


def interleaved(tensor: Array | BlockTensor, heads: int) -> Array | BlockTensor:
    """Rows of q or k in the order that GGUF files of Llama have: the inverse of `_in_halves`."""
    order = np.arange(tensor.shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return tensor[order]


def _join(where: str, found: Mapping[str, Stored]) -> dict[str, Stored]:
    """gpt-oss's experts as Hugging Face has them: rows of gate and up alternate, in one tensor.

    `…experts.gate_up_proj_blocks` and `…experts.down_proj_blocks` are `BlockTensor` [experts,
    rows, k] where the file has blocks of MXFP4; biases are `…experts.gate_up_proj_bias`.
    """
    made: dict[str, Stored] = {}
    for name, stored in found.items():
        head, experts, part = name.rpartition(".mlp.experts.")
        if not experts:
            made[name] = stored
            continue
        kind, _, suffix = part.partition(".")
        suffix = {"weight": "_blocks", "bias": "_bias"}.get(suffix, "")
        if kind == "down_proj":
            made[f"{head}{experts}{kind}{suffix}"] = stored
        elif kind == "gate_proj":
            up = found.get(name.replace("gate_proj", "up_proj"))
            if up is None or up.shape != stored.shape or len(up.shape) < 2:
                raise CheckpointError(where, f"{shorten(name)} has no counterpart")
            shape = (up.shape[0], 2 * up.shape[1], *up.shape[2:])
            make = partial(_alternate, stored, up)
            made[f"{head}{experts}gate_up_proj{suffix}"] = Stored(shape, make)
    return made


def _alternate(first: Stored, second: Stored) -> Array | BlockTensor:
    """Rows (of biases: elements) of two stacks in turns, copied out of the file."""
    made = _in_turns(first.make(), second.make())
    first.release(None)
    second.release(None)
    return made


def _in_turns(one: Array | BlockTensor, two: Array | BlockTensor) -> Array | BlockTensor:
    if (
        isinstance(one, BlockTensor)
        and isinstance(two, BlockTensor)
        and one.ndim == 3
        and one.format == two.format
    ):
        data = np.stack([one.data, two.data], axis=2)
        shape = (one.shape[0], 2 * one.shape[1], *one.shape[2:])
        return BlockTensor(one.format, shape, data.reshape(shape[0], shape[1], -1))
    numbers = [x.dequantize() if isinstance(x, BlockTensor) else x for x in (one, two)]
    return np.stack(numbers, axis=2).reshape(one.shape[0], -1, *one.shape[2:])


# -- tokens --------------------------------------------------------------------------------------


def _tokenizer(file: Gguf, vocabulary: int) -> TokenizerTables | None:
    """The tokenizer, checked as far as sizes and types go."""
    held = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    model = held.get("model", "none")
    if model in ("none", "no_vocab"):
        return None
    tokens, merges = held.get("tokens"), held.get("merges", [])
    if not isinstance(tokens, list) or not isinstance(merges, list) or not isinstance(model, str):
        raise CheckpointError(
            file.where, "the tokenizer has no tokens, or merges that are not texts"
        )
    if len(tokens) > vocabulary:
        saw = f"{len(tokens)} tokens, {vocabulary} rows of token_embd.weight"
        raise CheckpointError(file.where, "the tokenizer has more tokens than the model", saw=saw)
    numbers = {name: held.get(name) for name in ("scores", "token_type")}
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, np.ndarray) or value.size != len(tokens)):
            problem = f"tokenizer.ggml.{name} does not have a number for each of the tokens"
            raise CheckpointError(file.where, problem, saw=shorten(value))
    pre = held.get("pre", "")
    ids = {
        key.removesuffix("_token_id"): value
        for key, value in held.items()
        if key.endswith("_token_id") and type(value) is int and 0 <= value < len(tokens)
    }
    flags = {key: value for key, value in held.items() if isinstance(value, bool)}
    return TokenizerTables(
        model=model,
        pre=pre if isinstance(pre, str) else "",
        tokens=tokens,
        scores=numbers["scores"],
        types=numbers["token_type"],
        merges=merges,
        ids=ids,
        flags=flags,
    )


def _beside(path: str) -> TokenizerFile | None:
    """The tokenizer.json in the folder of a file that has no tokenizer, where there is one."""
    folder = os.path.dirname(os.path.abspath(path))
    found = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(found):
        return None
    return TokenizerFile(found, read_object(folder, "tokenizer_config.json", MAX_CONFIG))


def _generation(file: Gguf, config: Config, tokenizer: TokenizerTables | None) -> dict[str, Any]:
    """Return what generation_config.json would say: the ids that begin and end texts."""
    made: dict[str, Any] = {}
    for name in ("bos", "pad"):
        if f"{name}_token_id" in config:
            made[f"{name}_token_id"] = config[f"{name}_token_id"]
    ends = {config["eos_token_id"]} if "eos_token_id" in config else set()
    others = (file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom"))
    ends |= {i for i in others if type(i) is int and 0 <= i < config["vocab_size"]}
    if tokenizer is not None and tokenizer.types is not None:
        control = np.flatnonzero(tokenizer.types == _CONTROL).tolist()
        ends |= {i for i in control if tokenizer.tokens[i] in _ENDS}
        if config["model_type"] == "gpt_oss":  # there it parts messages, and others end them
            ends = {i for i in ends if tokenizer.tokens[i] != "<|end|>"}
    made["eos_token_id"] = sorted(ends)
    return made
