"""Adapters as files of `peft`: adapter_config.json and adapter_model.safetensors.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.atomic import write_atomically
from treadle.base.files.container import header_bytes, lay_out
from treadle.base.files.strict_json import shorten
from treadle.llm.files import ModelCheckpoint
from treadle.llm.files.checkpoint import Stored
from treadle.llm.models.matrices import WeightMatrix, expert_of
from treadle.llm.tuning.lora import ALL, Adapter, Floats, Lora, modules
from treadle.serialization import load_directory
from treadle.serialization.directories import MAX_CONFIG, WeightDirectory, read_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
_NONE: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "use_qalora": (False,),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
}
"""Values that ask for nothing more than additions of low rank."""
MOST_RANK = 4096
_STACK = re.compile(r"\b(layers\.\d+)\..*\bexperts(?:\.base_layer)?$")
"""Modules that hold the matrices of all experts; parameters of one are nested in one another."""
_PARTS = {
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    **{"w1": "gate", "w3": "up", "w2": "down"},
}
"""Matrices of an expert, by the endings of their names."""


def read_adapter(path: str | os.PathLike[str], products: Iterable[WeightMatrix]) -> Adapter:
    """An adapter for a model with these products.

    Raises:
        CheckpointError: the files are damaged, ask for what is not there, or do not fit the model.
        OSError: they cannot be read.
    """
    return _read(os.fspath(path), modules(products))


def adapter_for(path: str | os.PathLike[str], checkpoint: ModelCheckpoint) -> Adapter:
    """An adapter for the matrices of a checkpoint; those of experts and routers may be meant, too.

    Raises:
        CheckpointError, OSError: as `read_adapter`.
    """
    shapes = {n: checkpoint.shape(n) for n in checkpoint.names() if n.endswith(".weight")}
    matrices = {n.removesuffix(".weight"): s for n, s in shapes.items() if len(s) == 2}
    return _read(os.fspath(path), {n: (rows, columns) for n, (rows, columns) in matrices.items()})


def _read(folder: str, known: Mapping[str, tuple[int, int]]) -> Adapter:
    config = read_object(folder, CONFIG, MAX_CONFIG)
    if not config:
        hint = "name the directory that peft, or treadle llm finetune, wrote"
        raise CheckpointError(folder, f"the directory has no {CONFIG}", hint=hint)
    lora = _lora(os.path.join(folder, CONFIG), config)
    weights = load_directory(folder)
    halves: dict[str, dict[str, Floats]] = {}
    stacks: dict[str, dict[str, Floats]] = {}
    for name in weights:
        match = _TENSOR.fullmatch(name)
        module = _module(match[1], known) if match else None
        stack = _STACK.search(match[1]) if match else None
        if match and stack and module is None:
            stacks.setdefault(match[1], {})[match[2]] = _half(folder, name, weights)
            continue
        if match is None or module is None:
            raise CheckpointError(
                folder,
                f"the model has no place for {shorten(name)}",
                saw=f"its modules are {', '.join(list(known)[:8])}, ...",
                hint="the adapter belongs to another model, or trains more than products",
            )
        halves.setdefault(module, {})[match[2]] = _half(folder, name, weights)
    for name, given in stacks.items():
        halves |= _of_experts(folder, name, given, known)
    pairs = {}
    for module, (rows, columns) in known.items():
        found = halves.get(module)
        if found is None:
            continue
        rank = lora.rank_of(module)
        wanted = {"A": (rank, columns), "B": (rows, rank)}
        saw = {which: half.shape for which, half in found.items()}
        if saw != wanted:
            hint = "the adapter belongs to another model"
            told = f"{saw}, wanted {wanted}"
            raise CheckpointError(folder, f"{module} has other extents", saw=told, hint=hint)
        pairs[module] = (found["A"], found["B"])
    if not pairs:
        raise CheckpointError(folder, "the adapter is empty")
    return Adapter(_reaching(lora, pairs) if stacks else lora, pairs)


def _half(folder: str, name: str, weights: WeightDirectory) -> Floats:
    half = weights.array(name).astype(np.float32)
    if not np.isfinite(half).all():
        raise CheckpointError(folder, f"{shorten(name)} holds numbers that are not finite")
    return half


def _of_experts(
    folder: str, name: str, given: Mapping[str, Floats], known: Mapping[str, tuple[int, int]]
) -> dict[str, dict[str, Floats]]:
    """A and B of each expert, of `target_parameters`: those of gate and up together, or of down.

    A has the ranks of an expert below each other, B has those of all experts side by side, rank by
    rank. Source: `ParamWrapper` of peft 0.21.
    """
    layer = _STACK.search(name)
    parts: dict[str, dict[int, str]] = {}
    for module in known:
        expert = expert_of(module)
        if expert is not None and layer and f".{layer[1]}." in f".{module}":
            parts.setdefault(_PARTS.get(module.rpartition(".")[2], ""), {})[expert[1]] = module
    for together in (("gate", "up"), ("down",)):
        members = [parts.get(part, {}) for part in together]
        count, sizes = len(members[0]), [known[m[0]] for m in members if 0 in m]
        if len(sizes) < len(together) or set(given) != {"A", "B"}:
            continue
        (a, b), rows = (given["A"], given["B"]), sum(size[0] for size in sizes)
        rank, rest = divmod(a.shape[0], count)
        if rest or (a.ndim, b.shape) != (2, (rows, a.shape[0])) or a.shape[1] != sizes[0][1]:
            continue
        downs, ups = a.reshape(count, rank, -1), b.reshape(rows, rank, count)
        found, first = {}, 0
        for member, (height, _) in zip(members, sizes, strict=True):
            for number, module in member.items():
                up = np.ascontiguousarray(ups[first : first + height, :, number])
                found[module] = {"A": downs[number], "B": up}
            first += height
        return found
    saw = ", ".join(f"{which} {half.shape}" for which, half in given.items())
    hint = "the adapter belongs to another model"
    raise CheckpointError(
        folder, f"the model has no experts for {shorten(name)}", saw=saw, hint=hint
    )


def _reaching(lora: Lora, pairs: Mapping[str, Any]) -> Lora:
    """Targets that name experts, too: they were named as parameters."""
    endings = sorted({n.rpartition(".")[2] for n in pairs if expert_of(n) is not None})
    if isinstance(lora.targets, tuple):
        return replace(lora, targets=tuple(dict.fromkeys((*lora.targets, *endings))))
    if lora.targets == ALL:
        return lora
    also = rf".*\.experts\.\d+\.({'|'.join(endings)})"
    return replace(lora, targets=f"({lora.targets})|{also}")


def _module(name: str, known: Mapping[str, Any]) -> str | None:
    """The model's own name of a module; models that also see pictures nest it."""
    for found in (name, re.sub(r"\blanguage_model\.(model\.)?", "", name, count=1)):
        for each in (found, f"model.{found}", found.replace("model.model.", "model.", 1)):
            if each in known:
                return each
    return None


def _lora(where: str, config: Mapping[str, Any]) -> Lora:
    """Return the adapter that a config describes."""
    for key, values in _NONE.items():
        if key in config and config[key] not in values:
            hint = f"adapters with {key} {values[0]!r} are read"
            saw = shorten(config[key])
            raise CheckpointError(where, f"{key} is not supported", saw=saw, hint=hint)
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and re.match("pissa|olora|corda|loftq", start.lower()):
        hint = "such adapters change the weights below: let peft convert it"
        raise CheckpointError(where, f"init_lora_weights is {shorten(start)}", hint=hint)
    targets = config.get("target_modules", ALL)
    listed = isinstance(targets, list) and all(isinstance(t, str) for t in targets)
    if not listed and not isinstance(targets, str | None):
        raise CheckpointError(where, "target_modules are not names", saw=shorten(targets))
    rank = _number(where, "r", config.get("r", 8))
    if rank != int(rank) or not 1 <= rank <= MOST_RANK:
        raise CheckpointError(where, "r is not a rank", saw=str(rank))
    ranks = {k: int(v) for k, v in _numbers(where, config, "rank_pattern").items()}
    if any(not 1 <= r <= MOST_RANK for r in ranks.values()):
        raise CheckpointError(where, "an entry of rank_pattern is not a rank", saw=shorten(ranks))
    return Lora(
        rank=int(rank),
        alpha=_number(where, "lora_alpha", config.get("lora_alpha", 8)),
        dropout=min(_number(where, "lora_dropout", config.get("lora_dropout", 0.0)), 0.99),
        targets=tuple(targets) if isinstance(targets, list) else targets or ALL,
        rslora=config.get("use_rslora") is True,
        ranks=ranks,
        alphas=_numbers(where, config, "alpha_pattern"),
    )


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise CheckpointError(where, f"{name} is not a usable number", saw=shorten(value))
    return float(value)


def _numbers(where: str, config: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return numbers of modules, by expressions for the ends of their names."""
    given = config.get(name) or {}
    if not isinstance(given, dict):
        raise CheckpointError(where, f"{name} is not an object", saw=shorten(given))
    found = {}
    for key, value in given.items():
        if not re.fullmatch(r"[\w.]{1,200}", key):
            hint = "names of modules, or their ends, are read"
            raise CheckpointError(where, f"{name} has {shorten(key)}", hint=hint)
        found[key] = _number(where, name, value)
    return found


def write_adapter(path: str | os.PathLike[str], adapter: Adapter, base: str = "") -> None:
    """Write an adapter as `peft` does.

    Args:
        path: the directory, which is made.
        adapter: what is written.
        base: the model below, as `peft` would find it.
    """
    folder, lora = os.fspath(path), adapter.lora
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for module, pair in adapter.pairs.items():
        for which, half in zip("AB", pair, strict=True):
            tensors[f"base_model.model.{module}.lora_{which}.weight"] = half
    entries = lay_out(tensors)
    chunks = [header_bytes(entries, {"format": "pt"})]
    chunks += [np.ascontiguousarray(tensors[name], np.float32).tobytes() for name in entries]
    write_atomically(os.path.join(folder, WEIGHTS), chunks, sum(map(len, chunks)))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted({name.rpartition(".")[2] for name in adapter.pairs})
        if lora.targets == ALL
        else (lora.targets if isinstance(lora.targets, str) else sorted(lora.targets)),
        "use_rslora": lora.rslora,
        "rank_pattern": dict(lora.ranks),
        "alpha_pattern": dict(lora.alphas),
        "bias": "none",
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    }
    text = json.dumps(config, indent=2).encode()
    write_atomically(os.path.join(folder, CONFIG), [text], len(text))


def merged(checkpoint: ModelCheckpoint, adapter: Adapter) -> ModelCheckpoint:
    """A checkpoint whose weights hold what the adapter adds; those it changes are float32.

    Raises:
        CheckpointError: the checkpoint has no weight of a module.
    """
    tensors = dict(checkpoint.tensors)
    for module in adapter.pairs:
        name = f"{module}.weight"
        shape = checkpoint.shape(name)
        tensors[name] = Stored(shape, _changed(checkpoint.tensors[name], adapter, module))
    return replace(checkpoint, tensors=tensors)


def _changed(stored: Stored, adapter: Adapter, module: str) -> Any:
    def make() -> Floats:
        found = stored.make()
        if isinstance(found, BlockTensor):
            found = found.format.dequantize(found.data)
        whole: Floats = found.astype(np.float32) + adapter.change(module)
        stored.release(None)
        return whole

    return make
