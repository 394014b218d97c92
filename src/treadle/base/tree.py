"""Nested containers as lists of leaves: what programs take and return, flattened and rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape of a nested structure; equal structures are equal and hash alike.

    Attributes:
        kind: the container's type, None for a leaf.
        keys: keys of a dict, in order.
        children: what it contains.
        count: leaves below.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()
    count: int = 1


LEAF = Tree(None)


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves in order, and what they hang on.

    Containers are lists, tuples (named ones too) and dicts of exactly these types, or subclasses
    of tuple with `_fields`; everything else is a leaf.
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves)


def _flatten(value: Any, leaves: list[Any]) -> Tree:
    kind = type(value)
    if kind is dict:
        children = tuple([_flatten(v, leaves) for v in value.values()])
        return Tree(dict, tuple(value), children, sum(c.count for c in children))
    if kind is tuple or kind is list or (issubclass(kind, tuple) and "_fields" in dir(kind)):
        children = tuple([_flatten(v, leaves) for v in value])
        return Tree(kind, (), children, sum(c.count for c in children))
    leaves.append(value)
    return LEAF


def unflatten(tree: Tree, leaves: list[Any]) -> Any:
    """The structure with other leaves, one for each of its own."""
    return _build(tree, iter(leaves))


def _build(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind is None:
        return next(leaves)
    parts = [_build(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, parts, strict=True))
    if tree.kind in (list, tuple):
        return tree.kind(parts)
    return tree.kind(*parts)
