"""Language models from one kind of file to another, in fewer bits, with what that costs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import FORMATS, BlockFormat, BlockTensor
from treadle.base.errors import CheckpointError, DTypeError
from treadle.base.files.atomic import Chunk, write_atomically
from treadle.base.files.container import header_bytes, lay_out
from treadle.llm.files.checkpoint import ModelCheckpoint, Stored, TokenizerFile, TokenizerTables
from treadle.llm.files.gguf import NUMBERS, Form, form_name, is_gguf
from treadle.llm.files.gguf_checkpoint import shards
from treadle.llm.files.gguf_export import Export, exported, renamed
from treadle.llm.files.gguf_writer import PlannedTensor, write_gguf
from treadle.llm.files.opening import open_checkpoint
from treadle.llm.text.exchange import as_file, as_tables

WRITTEN = tuple(FORMATS)
# What rows become that are not a whole number of super-blocks, as llama.cpp has it.
_SMALLER = {
    **dict.fromkeys(("Q2_K", "Q3_K", "IQ4_XS"), "IQ4_NL"),
    **{"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"},
}
"""Formats of blocks that are written."""
_EDGES = ("token_embd", "output", "model.embed_tokens", "lm_head")
"""Tensors that get no fewer than 8 bits: errors in them reach every token."""
_WHOLE = ("ffn_gate_inp", "position_embd", "token_types", "router", "mlp.gate.", "moe.gate.")
"""Small ones whose errors choose experts, or shift every position."""
_OTHER_WORDS = {"model_type", "rope_scaling", "eos_token_id", "hidden_act"}
"""Keys whose values GGUF writes in another way."""


@dataclass(frozen=True)
class Converted:
    """One tensor: what it was, what it became, and how far that is off.

    Attributes:
        error: root of the mean square difference, divided by that of the values.
        worst: the largest difference.
    """

    name: str
    shape: tuple[int, ...]
    was: str
    becomes: str
    before: int
    after: int
    error: float
    worst: float


@dataclass
class Report:
    """Report of a conversion: a row for each tensor, and what could not be carried over."""

    path: str
    tensors: list[Converted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """The tensors with the largest errors, sums, and notes."""
        worst = sorted(self.tensors, key=lambda each: -each.error)[:10]
        rows = [
            f"{each.name:48} {each.was:>9} -> {each.becomes:9} {each.error:.2e}" for each in worst
        ]
        before, after = (sum(getattr(t, n) for t in self.tensors) for n in ("before", "after"))
        kinds = Counter(each.becomes for each in self.tensors)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        rows.append(f"{self.path}: {counted}; {before:,} bytes became {after:,}")
        return "\n".join(rows + [f"note: {each}" for each in self.notes])


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str = "",
    change: Callable[[ModelCheckpoint], ModelCheckpoint] | None = None,
) -> Report:
    """Write a language model as another kind of file, or with other numbers.

    To a GGUF file from one: metadata and tokenizer stay as they are. From a directory: decoders
    only; the tokenizer becomes tables in the file. What tables cannot say stays `tokenizer.json`,
    which is copied beside the file, where `open_checkpoint` looks for it. To a directory:
    safetensors of plain numbers, `config.json` and `tokenizer.json`.

    Matrices take the format; the embedding and the head at least Q8_0; what has one axis and
    routers of experts stay float32. Rows that are no whole number of 256 elements become Q5_0 for
    Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K and IQ4_NL for others; those that are none of 32 become F16.

    Args:
        source: a GGUF file or a directory of safetensors.
        target: a path that ends in `.gguf`, or a directory, which is made.
        format: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K to Q6_K or IQ4_XS;
            "" keeps what is there.
        change: what is done to the checkpoint before, such as merging an adapter. Tensors that it
            changes take the form that they had.

    Returns:
        A row for each tensor with the error that it cost.

    Raises:
        DTypeError: there is no such format, or a directory is to hold blocks.
        CheckpointError, OSError: the source cannot be read, or the target not be written.
    """
    origin, where = os.fspath(source), os.fspath(target)
    if format and format not in (*NUMBERS, *WRITTEN):
        known = ", ".join((*NUMBERS, *WRITTEN))
        raise DTypeError("convert", "this format cannot be written", saw=repr(format), hint=known)
    report = Report(where)
    if not where.endswith(".gguf"):
        if format in FORMATS:
            problem = "directories of safetensors hold plain numbers"
            raise DTypeError(
                "convert", problem, saw=format, hint="name a target that ends in .gguf"
            )
        plain = open_checkpoint(origin)
        changed = plain if change is None else change(plain)
        _to_directory(changed, where, format, report, _forms(plain.tensors, changed.tensors))
        return report
    of_gguf = not os.path.isdir(origin) and is_gguf(origin)
    checkpoint = open_checkpoint(origin)
    made = _whole(origin) if of_gguf else exported(checkpoint)
    tensors = made.tensors
    if change is not None:
        parts = _changed(checkpoint.tensors, change(checkpoint).tensors)
        tensors = {**tensors, **renamed(replace(checkpoint, tensors=parts))}
    forms = _forms(made.tensors, tensors)
    plans = [_planned(name, stored, format, report, forms) for name, stored in tensors.items()]
    if not of_gguf:
        made.metadata.update(_tokenizer(checkpoint, where, report))
    write_gguf(where, made.metadata, plans)
    if not of_gguf:
        report.notes += _lost(checkpoint.config, open_checkpoint(where).config)
    return report


def quantize(
    source: str | os.PathLike[str], target: str | os.PathLike[str], format: str = "Q8_0"
) -> Report:
    """A GGUF file of a model in blocks; see `convert`.

    Raises:
        DTypeError: the format is none of blocks that are written.
        CheckpointError, OSError: as `convert`.
    """
    if format not in WRITTEN or not os.fspath(target).endswith(".gguf"):
        hint = f"name a .gguf file, and one of {', '.join(WRITTEN)}"
        raise DTypeError("quantize", "blocks cannot be written so", saw=repr(format), hint=hint)
    return convert(source, target, format)


# -- tensors -------------------------------------------------------------------------------------


def _numbers(tensor: Array | BlockTensor) -> Array:
    """Float32 of what a tensor holds."""
    return tensor.dequantize() if isinstance(tensor, BlockTensor) else tensor.astype(np.float32)


def _form(name: str, shape: tuple[int, ...], was: Form, format: str) -> Form:
    """Return the form that a tensor is converted to."""
    if not format or (not isinstance(was, BlockFormat) and was.kind in "iub"):
        return was
    if len(shape) < 2 or any(part in name for part in _WHOLE):
        return NUMBERS["F32"]
    if format in NUMBERS:
        return NUMBERS[format]
    wanted = FORMATS[format]
    if wanted.bits < FORMATS["Q8_0"].bits and name.removesuffix(".weight") in _EDGES:
        wanted = FORMATS["Q8_0"]
    if shape[-1] % wanted.elements and wanted.name in _SMALLER:
        wanted = FORMATS[_SMALLER[wanted.name]]
    return wanted if shape[-1] % wanted.elements == 0 else NUMBERS["F16"]


def _changed(before: Mapping[str, Stored], after: Mapping[str, Stored]) -> dict[str, Stored]:
    """Tensors that are others now; of experts, which GGUF stacks, those beside them, too."""

    def whole(name: str) -> str:
        return re.sub(r"\.experts\.\d+\.", ".experts.", name)

    others = {whole(name) for name, tensor in after.items() if tensor is not before.get(name)}
    return {name: tensor for name, tensor in after.items() if whole(name) in others}


def _forms(before: Mapping[str, Stored], after: Mapping[str, Stored]) -> dict[str, Form]:
    """Return the former forms of changed tensors."""
    found = {}
    for name in before.keys() & after.keys():
        if before[name] is not after[name]:
            found[name] = _form_of(before[name].make())
    return found


def _form_of(tensor: Array | BlockTensor) -> Form:
    return tensor.format if isinstance(tensor, BlockTensor) else tensor.dtype


def _planned(
    name: str, stored: Stored, format: str, report: Report, forms: Mapping[str, Form]
) -> PlannedTensor:
    """A tensor of the target, made when its turn comes; then the report gets its row."""
    was = forms[name] if name in forms else _form_of(stored.make())
    form = _form(name, stored.shape, was, format)
    return PlannedTensor(name, stored.shape, form, partial(_made, name, stored, form, report))


def _made(name: str, stored: Stored, form: Form, report: Report) -> Array | BlockTensor:
    tensor = stored.make()
    was = _form_of(tensor)
    made, error, worst = tensor, 0.0, 0.0
    if was != form:
        values = _numbers(tensor)
        if isinstance(form, BlockFormat):
            made = BlockTensor(form, tensor.shape, form.quantize(values))
        else:
            with np.errstate(over="ignore"):
                made = values.astype(form)
            if not np.isfinite(_numbers(made)).all() and np.isfinite(values).all():
                problem = f"the tensor {name} has numbers beyond {form_name(form)}"
                raise CheckpointError(report.path, problem, hint="convert to BF16 or F32")
        off = (_numbers(made) - values).astype(np.float64)
        size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
        error = float(np.sqrt(np.mean(np.square(off)))) / size if size else 0.0
        worst = float(np.abs(off).max())
    row = Converted(
        name,
        tensor.shape,
        form_name(was),
        form_name(form),
        tensor.nbytes,
        made.nbytes,
        error,
        worst,
    )
    report.tensors.append(row)
    stored.release(None)
    return made


def _whole(path: str) -> Export:
    """A GGUF file as it is; its parts together, where it is one of several."""
    files = shards(path)
    tensors = {
        name: Stored(entry.shape, partial(file.tensor, name), partial(file.release, name))
        for file in files
        for name, entry in file.entries.items()
    }
    dropped = ("split.", "general.alignment", "general.file_type")
    metadata = {k: v for k, v in files[0].metadata.items() if not k.startswith(dropped)}
    return Export(metadata, tensors)


def _lost(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the entries of a config that a GGUF file has no place for."""
    return [
        f"{key} was {before[key]!r} and is {after[key]!r}: GGUF cannot say it"
        for key in sorted(before.keys() & after.keys() - _OTHER_WORDS)
        if before[key] is not None and before[key] != after[key]
    ]


def _tokenizer(checkpoint: ModelCheckpoint, target: str, report: Report) -> dict[str, Any]:
    """Metadata of the tokenizer; where GGUF cannot say it, its files come beside the target."""
    source = checkpoint.tokenizer
    if not isinstance(source, TokenizerFile):
        report.notes.append("the model has no tokenizer.json")
        return {}
    try:
        return _metadata(as_tables(source, int(checkpoint.config["vocab_size"])))
    except CheckpointError as error:
        why = str(error).splitlines()[0]
    folder = os.path.dirname(os.path.abspath(target))
    place = os.path.join(folder, "tokenizer.json")
    if not (os.path.exists(place) and os.path.samefile(place, source.path)):
        shutil.copyfile(source.path, place)
        named = {k: v for k, v in source.config.items() if k != "chat_template"}  # the file has it
        _write_json(folder, "tokenizer_config.json", named)
    report.notes.append(f"the tokenizer is {place}, which belongs beside the file: {why}")
    return {}


def _metadata(tables: TokenizerTables) -> dict[str, Any]:
    """Tables as keys of a GGUF file."""
    made: dict[str, Any] = {"model": tables.model, "pre": tables.pre or "default"}
    made |= {"tokens": tables.tokens, "token_type": tables.types}
    made |= {"scores": tables.scores} if tables.scores is not None else {"merges": tables.merges}
    made |= {f"{name}_token_id": number for name, number in tables.ids.items()}
    return {f"tokenizer.ggml.{key}": value for key, value in (made | dict(tables.flags)).items()}


# -- directories ---------------------------------------------------------------------------------


def _to_directory(
    checkpoint: ModelCheckpoint, target: str, format: str, report: Report, forms: Mapping[str, Form]
) -> None:
    """Safetensors of plain numbers: blocks become float32 where no format is named."""
    os.makedirs(target, exist_ok=True)
    plans = []
    for name in checkpoint.names():
        stored = checkpoint.tensors[name]
        plan = _planned(name, stored, format, report, forms)
        if isinstance(plan.form, BlockFormat):
            plain = NUMBERS["F32"]
            make = partial(_made, name, stored, plain, report)
            plan = PlannedTensor(name, plan.shape, plain, make)
        plans.append(plan)
    # Only shapes and types matter to the layout: no memory is taken for these.
    shapes = {p.name: np.broadcast_to(np.zeros((), _plain(p.form)), p.shape) for p in plans}
    entries = lay_out(shapes)
    by_name = {plan.name: plan for plan in plans}

    def chunks() -> Iterator[Chunk]:
        yield header_bytes(entries, {"format": "pt"})
        for name in entries:
            array = by_name[name].make()
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    size = sum(plan.nbytes for plan in plans)
    write_atomically(os.path.join(target, "model.safetensors"), chunks(), size)
    _write_json(target, "config.json", checkpoint.config)
    _write_json(target, "generation_config.json", checkpoint.generation)
    if checkpoint.chat_template is not None:
        text = checkpoint.chat_template.encode()
        write_atomically(os.path.join(target, "chat_template.jinja"), [text], len(text))
    if isinstance(checkpoint.tokenizer, TokenizerFile):
        _write_json(target, "tokenizer_config.json", dict(checkpoint.tokenizer.config))
        shutil.copyfile(checkpoint.tokenizer.path, os.path.join(target, "tokenizer.json"))
    elif checkpoint.tokenizer is not None:
        _write_tokenizer(checkpoint.tokenizer, target, report)


def _write_tokenizer(tables: TokenizerTables, target: str, report: Report) -> None:
    """Write tables as files, or tell why that cannot be."""
    try:
        text, named = as_file(tables)
    except CheckpointError as error:
        report.notes.append(f"tokenizer.json is not written: {str(error).splitlines()[0]}")
        return
    raw = text.encode()
    write_atomically(os.path.join(target, "tokenizer.json"), [raw], len(raw))
    _write_json(target, "tokenizer_config.json", named)


def _plain(form: Form) -> np.dtype[Any]:
    if isinstance(form, BlockFormat):
        raise DTypeError("convert", "blocks have no place in safetensors", saw=form.name)
    return form


def _write_json(folder: str, name: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False).encode()
    write_atomically(os.path.join(folder, name), [text], len(text))
