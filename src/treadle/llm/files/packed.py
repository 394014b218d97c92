"""Quantized weights in safetensors: GPTQ, AWQ, compressed-tensors, bitsandbytes, gpt-oss.

Each scheme stores a matrix as several tensors. Here they become one tensor again under the name
that the matrix would have: blocks where a format of GGUF holds the same numbers exactly, that is

* 4 bits around 8 with float16 scales of groups of a multiple of 32: Q4_0,
* 8 bits around 128, or signed, with such scales: Q8_0,
* gpt-oss's blocks: MXFP4,

and float32 otherwise (zero points, scales of other types, order by activation, NF4, FP4).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import FORMATS, BlockFormat, BlockTensor
from treadle.base.blocks.bits import pack
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files.checkpoint import Stored

Tensors = Mapping[str, Stored]
_AWQ_COLUMNS = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in a word of each of eight columns' nibbles."""


def unpacked(where: str, config: Mapping[str, Any], tensors: Tensors) -> dict[str, Stored]:
    """The tensors of a directory, those that its `quantization_config` speaks of put together.

    Raises:
        CheckpointError: the scheme is not read, or tensors do not fit one another.
    """
    given = config.get("quantization_config") or {}
    scheme = given.get("quant_method") if isinstance(given, dict) else None
    if not isinstance(scheme, str) or scheme not in _SCHEMES:
        problem = "weights are quantized in a way that is not read"
        hint = f"read are {', '.join(_SCHEMES)}"
        raise CheckpointError(where, problem, saw=shorten(scheme or given), hint=hint)
    return _SCHEMES[scheme](_PackedSource(where, given, tensors))


class _PackedSource:
    """Tensors, and what the config says about them."""

    def __init__(self, where: str, given: Mapping[str, Any], tensors: Tensors) -> None:
        self.where = where
        self.given = given
        self.tensors = tensors

    def wrong(self, name: str, problem: str, saw: object = "") -> CheckpointError:
        """Return the error for a wrong tensor."""
        return CheckpointError(self.where, f"{shorten(name)} {problem}", saw=str(saw))

    def bits(self, allowed: Sequence[int], given: Mapping[str, Any], key: str = "bits") -> int:
        """Bits of an element."""
        found = given.get(key)
        if type(found) is not int or found not in allowed:
            raise self.wrong(key, f"is none of {', '.join(map(str, allowed))}", shorten(found))
        return found

    def array(self, name: str, kinds: str, *shape: int) -> Array:
        """A plain tensor of kinds of numbers and, where it is given, a shape.

        Kinds are those of NumPy, "i", "u" and "f", and "w" for words of 32 bits.
        """
        stored = self.tensors.get(name)
        found = None if stored is None else stored.make()
        if not isinstance(found, np.ndarray):
            raise self.wrong(name, "is missing")
        held: set[str] = {found.dtype.kind}
        if found.dtype.kind == "V":
            held = {"f"}  # bfloat16 is no kind of NumPy's
        if held <= {"i", "u"} and found.itemsize == 4:
            held.add("w")
        if not held & set(kinds) or (shape and found.shape != shape) or not found.size:
            raise self.wrong(name, f"is not {shape}", f"{found.dtype} {found.shape}")
        return found

    def replaced(
        self, suffix: str, parts: Sequence[str], made: Callable[[str], tuple[str, Stored]]
    ) -> dict[str, Stored]:
        """All tensors, those that end in `suffix` replaced by what is made of their stem.

        Tensors with the stem and one of `parts` are part of it and vanish.
        """
        stems = [n.removesuffix(suffix) for n in self.tensors if n.endswith(suffix)]
        gone = {stem + part for stem in stems for part in (suffix, *parts)}
        found = {name: stored for name, stored in self.tensors.items() if name not in gone}
        for stem in stems:
            name, stored = made(stem)
            if name in found:
                raise self.wrong(name, "is there quantized and not quantized")
            found[name] = stored
        return found


def _shape(source: _PackedSource, name: str, ndim: int) -> tuple[int, ...]:
    stored = source.tensors.get(name)
    if stored is None or len(stored.shape) != ndim or 0 in stored.shape:
        saw = "no such tensor" if stored is None else stored.shape
        raise source.wrong(name, f"does not have {ndim} axes with elements", saw)
    return stored.shape


# -- numbers -------------------------------------------------------------------------------------


def _from_words(words: Array, bits: int, order: Sequence[int] | None = None) -> Array:
    """Unsigned integers in words of 32 bits, low first: uint8 [..., n · 32/bits]."""
    count = 32 // bits
    places = np.arange(count) if order is None else np.asarray(order)
    shifts = (places * bits).astype(np.uint32)
    levels = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return levels.astype(np.uint8).reshape(*words.shape[:-1], -1)


def _matrix(levels: Array, zeros: Array | int, scales: Array, bits: int) -> Array | BlockTensor:
    """(levels − zeros) · scales: blocks where these hold it, else float32 [rows, columns].

    Args:
        levels: uint8 [rows, columns].
        zeros: one for all, or [rows, groups].
        scales: [rows, groups].
        bits: of a level.
    """
    rows, columns = levels.shape
    groups = scales.shape[1]
    middle = 1 << (bits - 1)
    size = columns // groups
    form = FORMATS.get({4: "Q4_0", 8: "Q8_0"}.get(bits, ""))
    fits = form is not None and size % form.elements == 0 and bool(np.all(zeros == middle))
    halves = scales.astype(np.float16)
    with np.errstate(over="ignore"):
        exact = np.array_equal(halves.astype(np.float32), scales.astype(np.float32))
    if form is not None and fits and exact:
        return _as_blocks(form, levels, np.repeat(halves, size // form.elements, axis=1))
    wide = levels.reshape(rows, groups, size).astype(np.float32)
    offset = np.asarray(zeros, np.float32)
    offset = offset[..., None] if offset.ndim else offset
    made: Array = (wide - offset) * scales.astype(np.float32)[..., None]
    return made.reshape(rows, columns)


def _as_blocks(form: BlockFormat, levels: Array, scales: Array) -> BlockTensor:
    """Q4_0 or Q8_0 of levels [rows, columns] and a float16 scale for each block."""
    blocks = np.empty(scales.size, form.layout)
    blocks["d"] = scales.reshape(-1)
    cut = levels.reshape(-1, form.elements)
    blocks["q"] = pack(cut, 4) if form.name == "Q4_0" else (cut ^ 0x80).view(np.int8)
    return BlockTensor(form, levels.shape, blocks.view(np.uint8).reshape(len(levels), -1))


# -- GPTQ and AWQ --------------------------------------------------------------------------------


def _gptq(source: _PackedSource) -> dict[str, Stored]:
    """`qweight` [k·bits/32, n], `qzeros` [groups, n·bits/32], `scales` [groups, n], `g_idx` [k].

    The format `gptq` stores zero points less 1, `gptq_v2` as they are. Some files say the first and
    hold the second: where quantization is symmetric, zeros that are all the middle tell.
    """
    bits = source.bits((2, 4, 8), source.given)
    per = 32 // bits

    def make(stem: str, k: int, n: int) -> Array | BlockTensor:
        words = source.array(f"{stem}qweight", "w", k // per, n)
        levels = np.ascontiguousarray(_from_words(np.ascontiguousarray(words.T), bits))
        scales = source.array(f"{stem}scales", "f")
        groups = scales.shape[0] if scales.ndim == 2 else 0
        if groups < 1 or scales.shape[1] != n:
            raise source.wrong(f"{stem}scales", f"does not have a row of {n} for each group")
        packed = source.array(f"{stem}qzeros", "w", groups, n // per)
        zeros = _gptq_zeros(source.given, _from_words(packed, bits), bits)
        order = np.arange(k) // -(-k // groups)
        if f"{stem}g_idx" in source.tensors:
            order = source.array(f"{stem}g_idx", "i", k)
            if order.min() < 0 or order.max() >= groups:
                raise source.wrong(f"{stem}g_idx", f"is not below {groups}", order.max())
        if k % groups == 0 and np.array_equal(order, np.arange(k) // (k // groups)):
            return _matrix(levels, zeros.T, scales.T, bits)
        each = levels.astype(np.float32) - zeros.T.astype(np.float32)[:, order]
        made: Array = each * scales.T.astype(np.float32)[:, order]
        return made

    def stored(stem: str) -> tuple[str, Stored]:
        rows, n = _shape(source, f"{stem}qweight", 2)
        if n % per:
            raise source.wrong(f"{stem}qweight", f"does not have a multiple of {per} columns", n)
        return f"{stem}weight", Stored((n, rows * per), partial(make, stem, rows * per, n))

    return source.replaced("qweight", ("qzeros", "scales", "g_idx"), stored)


def _gptq_zeros(given: Mapping[str, Any], stored: Array, bits: int) -> Array:
    """Zero points of what `qzeros` holds."""
    as_they_are = given.get("checkpoint_format") == "gptq_v2"
    if given.get("sym") is True and (stored == 1 << (bits - 1)).all():
        as_they_are = True
    return stored if as_they_are else (stored + np.uint8(1)) & np.uint8((1 << bits) - 1)


def _awq(source: _PackedSource) -> dict[str, Stored]:
    """`qweight` [k, n/8], `qzeros` [groups, n/8], `scales` [groups, n]; columns are interleaved."""
    source.bits((4,), source.given)
    if source.given.get("version", "gemm") not in ("gemm", "GEMM"):
        raise source.wrong("version", "of AWQ is not gemm", shorten(source.given["version"]))

    def make(stem: str, k: int, n: int) -> Array | BlockTensor:
        words = source.array(f"{stem}qweight", "w", k, n // 8)
        scales = source.array(f"{stem}scales", "f")
        groups = scales.shape[0] if scales.ndim == 2 else 0
        if groups < 1 or scales.shape[1] != n or k % groups:
            raise source.wrong(f"{stem}scales", f"does not have rows of {n} that divide {k}")
        packed = source.array(f"{stem}qzeros", "w", groups, n // 8)
        levels = np.ascontiguousarray(_from_words(words, 4, _AWQ_COLUMNS).T)
        return _matrix(levels, _from_words(packed, 4, _AWQ_COLUMNS).T, scales.T, 4)

    def stored(stem: str) -> tuple[str, Stored]:
        k, words = _shape(source, f"{stem}qweight", 2)
        return f"{stem}weight", Stored((8 * words, k), partial(make, stem, k, 8 * words))

    return source.replaced("qweight", ("qzeros", "scales"), stored)


# -- compressed-tensors --------------------------------------------------------------------------


def _compressed(source: _PackedSource) -> dict[str, Stored]:
    """`weight_packed` [n, k·bits/32] of levels low first, or int8 `weight`, and `weight_scale`."""
    bits = _compressed_bits(source)
    if source.given["format"] == "int-quantized":
        return _int8(source)

    def make(stem: str, n: int, k: int) -> Array | BlockTensor:
        levels = _from_words(source.array(f"{stem}weight_packed", "w", n, -(-k * bits // 32)), bits)
        scales = source.array(f"{stem}weight_scale", "f")
        if scales.ndim != 2 or len(scales) != n or k % max(1, scales.shape[1]):
            raise source.wrong(f"{stem}weight_scale", f"does not suit [{n}, {k}]", scales.shape)
        zeros: Array | int = 1 << (bits - 1)
        if f"{stem}weight_zero_point" in source.tensors:
            packed = source.array(f"{stem}weight_zero_point", "w")
            if packed.shape != (-(-n * bits // 32), scales.shape[1]):
                raise source.wrong(f"{stem}weight_zero_point", "has another shape", packed.shape)
            zeros = _from_words(np.ascontiguousarray(packed.T), bits).T[:n]
        return _matrix(np.ascontiguousarray(levels[:, :k]), zeros, scales, bits)

    def stored(stem: str) -> tuple[str, Stored]:
        shape = source.array(f"{stem}weight_shape", "i", 2)
        n, k = (int(each) for each in shape)
        if n < 1 or k < 1 or _shape(source, f"{stem}weight_packed", 2) != (n, -(-k * bits // 32)):
            raise source.wrong(f"{stem}weight_packed", f"does not hold [{n}, {k}]")
        return f"{stem}weight", Stored((n, k), partial(make, stem, n, k))

    parts = ("weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
    if any(name.endswith("weight_g_idx") for name in source.tensors):
        raise source.wrong("weight_g_idx", "is not read: columns in another order")
    return source.replaced("weight_packed", parts, stored)


def _compressed_bits(source: _PackedSource) -> int:
    """Bits of the integers that weights are; there must be one kind of them."""
    groups = source.given.get("config_groups")
    listed = groups.values() if isinstance(groups, dict) else ()
    weights = [each.get("weights") for each in listed if isinstance(each, dict)]
    kinds = [(w.get("num_bits"), w.get("type")) for w in weights if isinstance(w, dict)]
    form = source.given.get("format")
    if form not in ("pack-quantized", "int-quantized") or {str(k) for _, k in kinds} != {"int"}:
        saw = f"{shorten(groups)}, {shorten(form)}"
        raise source.wrong("config_groups", "does not speak of integers", saw)
    if len({str(bits) for bits, _ in kinds}) != 1:
        raise source.wrong("config_groups", "speaks of several kinds", shorten(groups))
    return source.bits((4, 8), {"num_bits": kinds[0][0]}, "num_bits")


def _int8(source: _PackedSource) -> dict[str, Stored]:
    """`weight` int8 [n, k] and `weight_scale` [n, 1]; activations' scales play no part here."""

    def make(stem: str, n: int, k: int) -> Array | BlockTensor:
        weight = source.array(f"{stem}weight", "i", n, k)
        scales = source.array(f"{stem}weight_scale", "f").reshape(-1, 1)
        if weight.dtype != np.int8 or len(scales) not in (1, n):
            raise source.wrong(f"{stem}weight", "is not int8 with a scale for each row")
        levels = np.ascontiguousarray(weight).view(np.uint8) ^ np.uint8(0x80)
        return _matrix(levels, 128, np.broadcast_to(scales, (n, 1)), 8)

    def stored(stem: str) -> tuple[str, Stored]:
        n, k = _shape(source, f"{stem}weight", 2)
        return f"{stem}weight", Stored((n, k), partial(make, stem, n, k))

    parts = ("weight", "input_scale", "weight_zero_point", "input_zero_point")
    return source.replaced("weight_scale", parts, stored)


# -- bitsandbytes --------------------------------------------------------------------------------


def _bitsandbytes(source: _PackedSource) -> dict[str, Stored]:
    """int8 `weight` with a maximum for each row (`SCB`), or 4 bits with a table in the file."""
    if source.given.get("load_in_4bit"):
        return _four_bits(source)

    def make(stem: str, n: int, k: int) -> Array:
        weight = source.array(f"{stem}weight", "i", n, k)
        made: Array = weight.astype(np.float32) * (
            source.array(f"{stem}SCB", "f", n)[:, None].astype(np.float32) / np.float32(127)
        )
        return made

    def stored(stem: str) -> tuple[str, Stored]:
        n, k = _shape(source, f"{stem}weight", 2)
        return f"{stem}weight", Stored((n, k), partial(make, stem, n, k))

    return source.replaced("SCB", ("weight", "weight_format"), stored)


def _four_bits(source: _PackedSource) -> dict[str, Stored]:
    """Return 4-bit matrices: the high half of a byte first; magnitudes may be quantized, too."""
    found = source.tensors
    for kind in ("nf4", "fp4"):
        suffix = f"weight.quant_state.bitsandbytes__{kind}"
        parts = ("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax",
                 "weight.nested_quant_map")  # fmt: skip

        def stored(stem: str, suffix: str = suffix) -> tuple[str, Stored]:
            state = _state(source, stem + suffix)
            make = partial(_four_bit_matrix, source, stem, state)
            return f"{stem}weight", Stored(tuple(state["shape"]), make)

        found = _PackedSource(source.where, source.given, found).replaced(suffix, parts, stored)
    return dict(found)


def _state(source: _PackedSource, name: str) -> dict[str, Any]:
    raw = source.array(name, "u")
    if raw.size > 1 << 16:
        raise source.wrong(name, "is too long", raw.size)
    try:
        state = json.loads(raw.astype(np.uint8).tobytes())
    except (ValueError, RecursionError):
        raise source.wrong(name, "is not JSON") from None
    shape = state.get("shape") if isinstance(state, dict) else None
    sizes = [*shape, state.get("blocksize")] if isinstance(shape, list) and shape else [0]
    if not all(type(each) is int and 0 < each < 1 << 31 for each in sizes):
        raise source.wrong(name, "does not say shape and blocksize", shorten(state))
    return dict(state)


def _four_bit_matrix(source: _PackedSource, stem: str, state: Mapping[str, Any]) -> Array:
    count, size = math.prod(state["shape"]), state["blocksize"]
    packed = source.array(f"{stem}weight", "u").reshape(-1)
    if packed.size != -(-count // 2):
        raise source.wrong(f"{stem}weight", f"does not hold {count} elements", packed.size)
    table = source.array(f"{stem}weight.quant_map", "f", 16).astype(np.float32)
    blocks = -(-count // size)
    largest = source.array(f"{stem}weight.absmax", "uf", blocks)
    if largest.dtype == np.uint8:
        largest = _nested(source, stem, state, largest)
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[:count]
    scales = np.repeat(largest.astype(np.float32), size)[:count]
    made: Array = (table[codes] * scales).reshape(state["shape"])
    return made


def _nested(source: _PackedSource, stem: str, state: Mapping[str, Any], codes: Array) -> Array:
    """Magnitudes of blocks that are codes themselves: a table, magnitudes of these, an offset."""
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if type(size) is not int or size < 1 or type(offset) not in (int, float):
        raise source.wrong(stem, "does not say how its scales are quantized", shorten(dict(state)))
    table = source.array(f"{stem}weight.nested_quant_map", "f", 256).astype(np.float32)
    blocks = -(-codes.size // size)
    largest = source.array(f"{stem}weight.nested_absmax", "f", blocks).astype(np.float32)
    made: Array = table[codes] * np.repeat(largest, size)[: codes.size] + np.float32(offset)
    return made


# -- gpt-oss -------------------------------------------------------------------------------------


def _mxfp4(source: _PackedSource) -> dict[str, Stored]:
    """`…_blocks` [experts, rows, k/32, 16] and `…_scales` [experts, rows, k/32]: MXFP4, exactly.

    Neighbors share a byte there, elements of two halves here. The name stays `…_blocks`.
    """
    form = FORMATS["MXFP4"]

    def make(stem: str, shape: tuple[int, ...]) -> BlockTensor:
        raw = source.array(f"{stem}_blocks", "u", *shape)
        scales = source.array(f"{stem}_scales", "u", *shape[:3])
        nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1, form.elements)
        blocks = np.empty(len(nibbles), form.layout)
        blocks["e"], blocks["q"] = scales.reshape(-1), pack(nibbles, 4)
        data = blocks.view(np.uint8).reshape(*shape[:2], -1)
        return BlockTensor(form, (*shape[:2], 32 * shape[2]), data)

    def stored(stem: str) -> tuple[str, Stored]:
        shape = _shape(source, f"{stem}_blocks", 4)
        if shape[3] != 16:
            raise source.wrong(f"{stem}_blocks", "does not have blocks of 16 bytes", shape)
        made = Stored((*shape[:2], 32 * shape[2]), partial(make, stem, shape))
        return f"{stem}_blocks", made

    return source.replaced("_blocks", ("_scales",), stored)


_SCHEMES: Mapping[str, Callable[[_PackedSource], dict[str, Stored]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}
"""By `quant_method`."""
