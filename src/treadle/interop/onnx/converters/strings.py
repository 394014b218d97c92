"""Text, tables and trees: computed on the host, since tensors hold numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.interop.onnx.nodes import OnnxNode, Value, known
from treadle.interop.onnx.registry import converts

ML = "ai.onnx.ml"


def _texts(x: Array) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in x.reshape(-1)]


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Value:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return known(made.reshape(tuple(shape)))


@converts("StringConcat", host=(-1,))
def _string_concat(node: OnnxNode, x: Array, y: Array) -> Value:
    both = np.broadcast_arrays(x, y)
    pairs = zip(_texts(both[0]), _texts(both[1]), strict=True)
    return _objects([a + b for a, b in pairs], both[0].shape)


@converts("RegexFullMatch", host=(-1,))
def _regex_full_match(node: OnnxNode, x: Array) -> Value:
    try:
        pattern = re.compile(str(node.attr("pattern", "")))
    except re.error as error:
        raise node.refuse(f"the pattern is malformed: {error}") from error
    found = [pattern.fullmatch(t) is not None for t in _texts(x)]
    return known(np.array(found, bool).reshape(x.shape))


@converts("StringSplit", host=(-1,))
def _string_split(node: OnnxNode, x: Array) -> tuple[Value, Value]:
    delimiter = node.attributes.get("delimiter") or None
    most = int(node.attr("maxsplit", -1))
    parts = [t.split(delimiter, most) if t or delimiter is None else [""] for t in _texts(x)]
    parts = [[] if p == [""] and delimiter is None else p for p in parts]
    width = max(map(len, parts), default=0)
    rows = [w for p in parts for w in (*p, *[""] * (width - len(p)))]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    return _objects(rows, (*x.shape, width)), known(counts)


@converts("StringNormalizer", host=(-1,))
def _string_normalizer(node: OnnxNode, x: Array) -> Value:
    action = node.attr("case_change_action", "NONE")
    fold = bool(node.attr("is_case_sensitive", 0))
    stops: list[str] = list(node.attr("stopwords", []))
    drop = set(stops) if fold else {s.lower() for s in stops}
    kept = [t for t in _texts(x) if (t if fold else t.lower()) not in drop] or [""]
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(action, str)
    shape = (len(kept),) if x.ndim == 1 else (1, len(kept))
    return _objects([change(t) for t in kept], shape)


@converts("TfIdfVectorizer", host=(-1,))
def _tfidf(node: OnnxNode, x: Array) -> Value:
    counts, indexes = node.attributes["ngram_counts"], node.attributes["ngram_indexes"]
    pool: list[Any] = list(node.attr("pool_int64s", [])) or list(node.attr("pool_strings", []))
    grams: dict[tuple[Any, ...], int] = {}
    ends = [*counts[1:], len(pool)]
    number = 0
    for n, (start, end) in enumerate(zip(counts, ends, strict=True), 1):
        for i in range(start, min(end, len(pool)), n):
            grams[tuple(pool[i : i + n])] = number
            number += 1
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    result = np.zeros((len(rows), max(indexes) + 1), np.float32)
    sizes = range(node.attributes["min_gram_length"], node.attributes["max_gram_length"] + 1)
    for row, words in zip(result, rows.tolist(), strict=True):
        for gram in _grams(words, sizes, int(node.attributes["max_skip_count"])):
            if gram in grams:
                row[indexes[grams[gram]]] += 1
    weights = np.asarray(node.attr("weights", np.ones(len(indexes))), np.float32)
    spread = np.zeros(result.shape[1], np.float32)
    spread[np.asarray(indexes)] = weights
    mode = node.attributes["mode"]
    if mode == "IDF":
        result = (result > 0) * spread
    elif mode == "TFIDF":
        result = result * spread
    return known(result[0] if x.ndim == 1 else result.astype(np.float32))


def _grams(words: list[Any], sizes: range, skips: int) -> list[tuple[Any, ...]]:
    found = []
    for n in range(sizes.start, min(sizes.stop, len(words) + 1)):
        for skip in range(min(skips + 1, len(words)) if n > 1 else 1):
            reach = (n - 1) * (skip + 1)
            for i in range(len(words) - reach):
                found.append(tuple(words[i : i + reach + 1 : skip + 1]))
    return found


# -- machine learning --------------------------------------------------------------------------


@converts("LabelEncoder", domain=ML, host=(-1,))
def _label_encoder(node: OnnxNode, x: Array) -> Value:
    given = node.attributes
    keys = _entries(given, "keys")
    values = _entries(given, "values")
    default = _default(given, values)
    table = {_key(k): v for k, v in zip(keys, values, strict=True)}
    found = [table.get(_key(v), default) for v in x.reshape(-1)]
    if isinstance(default, str):
        return _objects(found, x.shape)
    return known(np.array(found).astype(np.asarray(values).dtype).reshape(x.shape))


def _entries(given: dict[str, Any], which: str) -> list[Any]:
    if f"{which}_tensor" in given:
        return (
            [_plain(v) for v in given[f"{which}_tensor"].reshape(-1)]
            if given[f"{which}_tensor"].dtype.kind == "O"
            else list(given[f"{which}_tensor"].reshape(-1))
        )
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if f"{which}_{kind}" in given:
            return list(np.array(given[f"{which}_{kind}"], dtype))
    return list(given.get(f"{which}_strings", []))


def _default(given: dict[str, Any], values: list[Any]) -> Any:
    if "default_tensor" in given:
        return _plain(given["default_tensor"].reshape(-1)[0])
    if values and isinstance(values[0], str):
        return given.get("default_string", "_Unused")
    if values and np.asarray(values[0]).dtype.kind == "f":
        return given.get("default_float", -0.0)
    return given.get("default_int64", -1)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _key(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, str):
        return value
    number = value.item() if isinstance(value, np.generic) else value
    return "nan" if number != number else number


@converts("TreeEnsemble", domain=ML, host=(-1,))
def _tree_ensemble(node: OnnxNode, x: Array) -> Value:
    trees = _Trees(node)
    result = np.stack([trees.total(row) for row in x])
    return known(result.astype(x.dtype))


class _Trees:
    """Decision trees in arrays: each node compares a feature and goes to one of two others."""

    def __init__(self, node: OnnxNode) -> None:
        given = node.attributes
        self.node = node
        self.roots = given["tree_roots"]
        self.features = given["nodes_featureids"]
        self.modes = np.asarray(given["nodes_modes"]).reshape(-1)
        self.splits = np.asarray(given["nodes_splits"]).reshape(-1)
        self.true = list(zip(given["nodes_truenodeids"], given["nodes_trueleafs"], strict=True))
        self.false = list(zip(given["nodes_falsenodeids"], given["nodes_falseleafs"], strict=True))
        self.targets = given["leaf_targetids"]
        self.weights = np.asarray(given["leaf_weights"]).reshape(-1)
        self.count = int(given["n_targets"])
        self.members = self._members(given.get("membership_values"))

    def _members(self, values: Any) -> dict[int, set[float]]:
        """The set of each node that asks for membership, in order, separated by NaN."""
        found: dict[int, set[float]] = {}
        if values is None:
            return found
        groups: list[set[float]] = [set()]
        for v in np.asarray(values).reshape(-1):
            if np.isnan(v):
                groups.append(set())
            else:
                groups[-1].add(float(v))
        for number, node in enumerate(i for i, m in enumerate(self.modes) if int(m) == 6):
            found[node] = groups[number]
        return found

    def total(self, row: Array) -> Array:
        """Sum all trees' leaves for one row, by target."""
        parts: list[list[float]] = [[] for _ in range(self.count)]
        for root in self.roots:
            leaf = self._leaf(root, row)
            parts[self.targets[leaf]].append(float(self.weights[leaf]))
        how = int(self.node.attr("aggregate_function", 1))
        combine: Any = {0: np.mean, 1: np.sum, 2: np.min, 3: np.max}[how]
        sums = np.array([combine(p) if p else 0.0 for p in parts])
        return sums if how != 0 else np.array([sum(p) / len(self.roots) for p in parts])

    def _leaf(self, at: int, row: Array) -> int:
        is_leaf = False
        for _ in range(len(self.modes) + 1):
            if is_leaf:
                return at
            at, is_leaf = (self.true if self._holds(at, row) else self.false)[at]
            is_leaf = bool(is_leaf)
        return at

    def _holds(self, i: int, row: Array) -> bool:
        value, split, mode = row[self.features[i]], self.splits[i], int(self.modes[i])
        if mode == 6:
            return float(value) in self.members[i]
        tests = (
            value <= split,
            value < split,
            value >= split,
            value > split,
            value == split,
            value != split,
        )
        return bool(tests[mode])
