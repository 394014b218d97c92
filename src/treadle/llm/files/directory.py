"""A directory of safetensors, as Hugging Face's libraries write it, as a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files.checkpoint import ModelCheckpoint, Stored, TokenizerFile
from treadle.llm.files.packed import unpacked
from treadle.serialization import WeightDirectory, load_directory
from treadle.serialization.directories import (
    MAX_CONFIG,
    is_plain_name,
    open_member,
    read_json,
    read_object,
)

MAX_TEMPLATE = 1 << 20


def open_directory(path: str) -> ModelCheckpoint:
    """A checkpoint of a directory.

    Raises:
        CheckpointError: see `open_checkpoint`.
    """
    weights = load_directory(path)
    config = dict(weights.config)
    if not isinstance(config.get("model_type"), str):
        problem = "config.json has no model_type" if config else "the directory has no config.json"
        raise CheckpointError(path, problem, hint="name the directory of a language model")
    tokens = read_object(path, "tokenizer_config.json", MAX_CONFIG)
    there = os.path.lexists(os.path.join(path, "tokenizer.json"))
    tensors = _tensors(weights)
    if config.get("quantization_config"):
        tensors = unpacked(path, config, tensors)
        del config["quantization_config"]  # the tensors are what it made of them no longer
    return ModelCheckpoint(
        path=path,
        config=config,
        generation=_generation(path, config),
        tokenizer=TokenizerFile(os.path.join(path, "tokenizer.json"), tokens) if there else None,
        chat_template=_template(path, tokens),
        pooling=_pooling(path),
        tensors=tensors,
        metadata=weights.metadata,
    )


def _tensors(weights: WeightDirectory) -> dict[str, Stored]:
    return {name: Stored(weights.shape(name), partial(weights.array, name)) for name in weights}


def _generation(path: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json, with the ids of config.json where it has none."""
    found = read_object(path, "generation_config.json", MAX_CONFIG)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = found.get(name, config.get(name))
        if value is None:
            continue
        many = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(type(each) is int and each >= 0 for each in many):
            raise CheckpointError(path, f"{name} is not a token", saw=shorten(value))
        found[name] = many if name == "eos_token_id" else value
    found.setdefault("eos_token_id", [])
    return found


def _template(path: str, tokens: Mapping[str, Any]) -> str | None:
    """The template of conversations: a file of its own or, before, an entry of the tokenizer's."""
    name = "chat_template.jinja"
    if os.path.lexists(os.path.join(path, name)):
        with open_member(path, name) as source:
            if source.size > MAX_TEMPLATE:
                raise source.error("the template is too large", saw=f"{source.size} bytes")
            try:
                return source.read(0, source.size).decode()
            except UnicodeDecodeError:
                raise source.error("the template is not UTF-8") from None
    found = tokens.get("chat_template")
    if isinstance(found, list):  # several by name
        by_name = {
            each["name"]: each.get("template")
            for each in found
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        }
        found = by_name.get("default")
    if found is not None and not isinstance(found, str):
        raise CheckpointError(path, "the chat_template is not text", saw=shorten(found))
    return found


def _pooling(path: str) -> dict[str, Any]:
    """Return the pooling of an encoder of sentence-transformers, which its modules.json lists."""
    name = "modules.json"
    if not os.path.lexists(os.path.join(path, name)):
        return {}
    modules = _modules(path, name)
    found: dict[str, Any] = {}
    for kind, folder in modules:
        if kind.endswith(".Normalize"):
            found["normalize"] = True
        if kind.endswith(".Pooling"):
            modes = read_object(os.path.join(path, folder), "config.json", MAX_CONFIG)
            for mode, key in (("mean", "mean_tokens"), ("cls", "cls_token"), ("last", "lasttoken")):
                if modes.get(f"pooling_mode_{key}") is True:
                    found["mode"] = mode
            found.setdefault("normalize", False)
    return found


def _modules(path: str, name: str) -> list[tuple[str, str]]:
    """Kinds and folders of the modules that modules.json lists."""
    listed = read_json(path, name, MAX_CONFIG)
    if not isinstance(listed, list):
        raise CheckpointError(os.path.join(path, name), "the file is not a list of modules")
    found = []
    for each in listed:
        kind, folder = (each.get("type"), each.get("path")) if isinstance(each, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise CheckpointError(os.path.join(path, name), "a module has no type or no path")
        if folder and not is_plain_name(folder):
            problem = f"module {shorten(folder)} lies outside of the directory"
            raise CheckpointError(os.path.join(path, name), problem)
        found.append((kind, folder))
    return found
