"""Branches and loops in which data decide extents, by files and C libraries, as ONNX Runtime."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

from tests.interop.onnx import (  # noqa: E402
    test_computed_loops as computed,
)
from tests.interop.onnx import (  # noqa: E402
    test_found_extents as found,
)
from tests.interop.onnx import (  # noqa: E402
    test_loops_of_sequences as sequences,
)

from treadle.cli.models.opening import open_model  # noqa: E402
from treadle.deploy import compile_offline, load_offline, write_library  # noqa: E402
from treadle.engine.package.models import write_models  # noqa: E402

HAS_C = any(map(shutil.which, ("cc", "gcc", "clang")))
CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (computed.test_a_number_of_turns, ()),
    (computed.test_a_condition, ()),
    (computed.test_a_loop_in_a_branch_and_masks_in_a_loop, ()),
    (computed.test_ranges, ()),
    (computed.test_a_state_that_grows, ()),
    (computed.test_what_turns_give_beside_a_state_that_grows, ()),
    (found.test_a_branch_in_which_data_decide_an_extent, ()),
    (found.test_a_branch_that_gives_what_data_decide, ()),
    (found.test_quotients_and_questions_of_extents, ()),
    (found.test_unique_values_and_rows, (0, 1)),
    (found.test_unique_values_and_rows, (None, 0)),
    (sequences.test_a_list_that_turns_append_to, ()),
    (sequences.test_values_of_a_list_are_read_by_computed_places, ()),
    (sequences.test_a_condition_ends_it_and_values_go_to_the_front, ()),
    (sequences.test_a_branch_in_a_turn_appends, ()),
]


class Tensor(ctypes.Structure):
    """`net_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("nbytes", ctypes.c_size_t),
    )


class Library:
    """A C library in this process."""

    def __init__(self, path: Path) -> None:
        self.net, self.model = ctypes.CDLL(str(path)), ctypes.c_void_p()
        self.net.net_output_at.restype = ctypes.POINTER(Tensor)
        self.net.net_get_output.restype = ctypes.c_void_p
        self.net.net_error.restype = ctypes.c_char_p
        assert self.net.net_create(ctypes.byref(self.model), 1, None) == 0

    def run(self, arrays: list[Any]) -> list[Any]:
        """Results as arrays."""
        for i, a in enumerate(arrays):
            assert self.net.net_set_input(self.model, i, ctypes.c_void_p(a.ctypes.data)) == 0
        assert self.net.net_run(self.model) == 0, self.net.net_error()
        made = []
        for i in range(self.net.net_outputs()):
            end = self.net.net_output_at(self.model, i).contents
            raw = ctypes.string_at(self.net.net_get_output(self.model, i), end.nbytes)
            flat = np.frombuffer(raw, end.dtype.decode())
            made.append(flat.reshape([end.shape[axis] for axis in range(end.ndim)]))
        return made


def by_files(folder: Path) -> Callable[..., None]:
    """A comparison of a file and a library, for the shapes of each feed, with ONNX Runtime."""

    def agree(built: Any, feeds: list[dict[str, Any]], *_: Any, **__: Any) -> None:
        (folder / "m.onnx").write_bytes(built.SerializeToString())
        session = runtime.InferenceSession(built.SerializeToString())
        known: dict[str, list[Callable[[list[Any]], list[Any]]]] = {}
        for feed in feeds:
            shapes = {n: tuple(np.shape(a)) for n, a in feed.items()}
            if str(shapes) not in known:
                known[str(shapes)] = opened(shapes, folder / str(len(known)))
            arrays = [np.array(a, order="C") for a in feed.values()]
            for run in known[str(shapes)]:
                for got, want in zip(run(arrays), session.run(None, feed), strict=True):
                    assert got.shape == want.shape and got.dtype == want.dtype
                    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    def opened(shapes: dict[str, Any], place: Path) -> list[Callable[[list[Any]], list[Any]]]:
        place.mkdir()
        model = open_model(folder / "m.onnx", shapes)
        write_models(place / "net.tm", [compile_offline(model)], "test")
        offline = load_offline(place / "net.tm")
        runs: list[Callable[[list[Any]], list[Any]]] = [lambda x: list(offline.run(x).values())]
        if HAS_C:
            runs.append(Library(write_library(model, place, "net").library).run)
        return runs

    return agree


@pytest.mark.parametrize(
    ("case", "given"), CASES, ids=[f"{c.__name__.removeprefix('test_')}{g or ''}" for c, g in CASES]
)
def test_a_file_and_a_library_give_what_onnx_runtime_gives(
    case: Any, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[case.__module__], "agree", by_files(tmp_path))
    case(*given)
