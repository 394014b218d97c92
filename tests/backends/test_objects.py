"""Native code and Python agree on what objects look like."""

from __future__ import annotations

import ctypes

import pytest

from treadle.backends import objects
from treadle.base.references import references


def test_objects_are_as_expected() -> None:
    assert objects.are_as_expected()


@pytest.mark.parametrize(
    "name",
    ["OBJECT_TYPE", "TYPE_SIZE", "TUPLE_ITEMS", "ARRAY_DATA", "ARRAY_NDIM"],
)
def test_other_layouts_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lies elsewhere by a word that can be read as well."""
    other = getattr(objects, name) + 8
    monkeypatch.setattr(objects, name, other)
    assert not objects.are_as_expected()


def test_tuples_hold_their_items_where_their_type_says() -> None:
    """Since Python 3.14 that is a word later than before; programs ask the type."""
    items = tuple(object() for _ in range(5))
    assert objects.words(id(items) + tuple.__basicsize__, 5) == [*map(id, items)]


def test_references_are_counted_alike_by_every_python() -> None:
    """From 3.14 on a call may borrow its arguments, and `getrefcount` counts one less."""
    kept = [object()]
    one = kept[0]
    alone = references((one,))
    assert alone == 4  # the list, the name, the tuple, the counting
    others = [one] * 7
    assert references((one,)) == alone + len(others)
    assert ctypes.c_uint32.from_address(id(one)).value == alone - 2 + len(others)
