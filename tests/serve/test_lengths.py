"""Requests of several lengths that run together, padded as a mask or their lengths tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import Array, ask, running

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.errors import LoadError
from treadle.cli import main
from treadle.cli.models.ranges import parsed_pads, parsed_ranges, ranged_onnx
from treadle.cli.status import Misuse
from treadle.engine.extents import making
from treadle.serve import trial
from treadle.serve.joining import Padded, PaddedRows
from treadle.serve.ranges import RangedFunction, RangedModel, ServedAxis, ServedInput, load_ranged

ROWS, LENGTH = ServedAxis("rows", 1, 4), ServedAxis("length", 1, 40)
WHOLE, FLOAT = np.dtype("int64"), np.dtype("float32")
WIDTH, HEADS, WORDS, LAYERS = 16, 2, 11, 1
Function = Callable[..., Any]


def encoder(scale: float = -1e9) -> Function:
    """Tokens and mask of (rows, length) to states of (rows, length, 16) and means (rows, 16)."""
    mge.random.seed(0)
    words, places = M.Embedding(WORDS, WIDTH), M.Embedding(64, WIDTH)
    layers = [[M.Linear(WIDTH, 3 * WIDTH), M.Linear(WIDTH, WIDTH)] for _ in range(LAYERS)]

    def run(tokens: mge.Tensor, mask: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        n, t = tokens.shape
        x = words(tokens) + places(F.arange(t).astype("int32"))
        kept = mask.astype("float32")
        bias = F.expand_dims((1 - kept) * scale, (1, 2))
        for packed, out in layers:
            parts = F.split(packed(F.nn.layer_norm(x, (WIDTH,), False)), 3, axis=2)
            q, k, v = (F.transpose(F.reshape(p, (n, t, HEADS, -1)), (0, 2, 1, 3)) for p in parts)
            scores = F.matmul(q, F.transpose(k, (0, 1, 3, 2))) / 3 + bias
            seen = F.matmul(F.softmax(scores, axis=-1), v)
            x = x + out(F.reshape(F.transpose(seen, (0, 2, 1, 3)), (n, t, WIDTH)))
        wide = F.expand_dims(kept, 2)
        return x, (x * wide).sum(axis=1) / wide.sum(axis=1)

    return run


TEXT = [ServedInput("tokens", WHOLE, (ROWS, LENGTH)), ServedInput("mask", WHOLE, (ROWS, LENGTH))]


def served(
    function: Function,
    inputs: Sequence[ServedInput] = TEXT,
    pads: Mapping[str, float] | None = None,
    outputs: Sequence[str] = ("states", "mean"),
) -> RangedModel:
    programs = RangedFunction("m", function, inputs)
    return RangedModel("m", "1", programs, inputs, outputs, 4, pads)


def text(rows: int, length: int, seed: int = 0) -> list[Array]:
    tokens = np.random.default_rng(seed).integers(0, WORDS, (rows, length))
    return [tokens, np.ones((rows, length), np.int64)]


def test_rows_of_several_lengths_have_the_results_that_they_have_alone() -> None:
    model = served(encoder(), pads={"mask": 0})
    assert not model.notes and isinstance(model.joining, PaddedRows)
    requests = [text(1, 3), text(2, 9, 1), text(1, 40, 2)]
    assert len({model.joining.alike(r) for r in requests}) == 1
    joined = model.joining.joined(requests)
    assert [a.shape for a in joined] == [(4, 40), (4, 40)]
    assert joined[1].sum() == 3 + 18 + 40
    found = model.joining.parted(requests, model.run(joined))
    for arrays, parts in zip(requests, found, strict=True):
        assert all(part.flags.c_contiguous for part in parts)
        for part, own in zip(parts, model.run(arrays), strict=True):
            assert part.shape == own.shape
            np.testing.assert_allclose(part, own, rtol=1e-5, atol=1e-6)


def test_without_being_asked_lengths_are_kept_apart() -> None:
    model = served(encoder())
    assert model.most == 4 and model.joining.alike(text(1, 3)) != model.joining.alike(text(1, 4))


def test_a_model_whose_mask_does_not_hide_padding_joins_equal_lengths_only() -> None:
    model = served(encoder(scale=0), pads={"mask": 0})
    assert model.most == 4 and not isinstance(model.joining, PaddedRows)
    assert "padding that mask tells of changes results" in model.notes[0]


def test_masks_that_are_true_at_padding() -> None:
    run = encoder()
    model = served(lambda tokens, hidden: run(tokens, 1 - hidden), pads={"mask": 1})
    assert not model.notes and isinstance(model.joining, PaddedRows)
    hidden = [[tokens, 1 - mask] for tokens, mask in (text(1, 2), text(1, 5))]
    assert model.joining.joined(hidden)[1].tolist() == [[0, 0, 1, 1, 1], [0] * 5]
    wrong = served(lambda tokens, hidden: run(tokens, 1 - hidden), pads={"mask": 0})
    assert wrong.notes and not isinstance(wrong.joining, PaddedRows)


def test_lengths_of_rows_tell_what_is_padding() -> None:
    def last(x: mge.Tensor, lengths: mge.Tensor) -> mge.Tensor:
        real = F.expand_dims(F.arange(x.shape[1]), 0) < F.expand_dims(lengths, 1)
        return F.where(F.expand_dims(real, 2), x, F.full_like(x, -1e30)).max(axis=1)

    inputs = [ServedInput("x", FLOAT, (ROWS, LENGTH, 3)), ServedInput("lengths", WHOLE, (ROWS,))]
    model = served(last, inputs, {"lengths": 0}, ["y"])
    assert not model.notes and isinstance(model.joining, PaddedRows)
    xs = [np.full((1, n, 3), -n, np.float32) for n in (4, 9, 1)]
    requests = [[x, np.array([x.shape[1]])] for x in xs]
    (found,) = model.run(model.joining.joined(requests))
    assert found[:, 0].tolist() == [-4, -9, -1]


def test_pictures_are_padded_along_both_axes() -> None:
    size = ServedAxis("height", 1, 9), ServedAxis("width", 1, 12)
    inputs = [ServedInput("x", FLOAT, (ROWS, 2, *size)), ServedInput("real", FLOAT, (ROWS, *size))]

    def blurred(x: mge.Tensor, real: mge.Tensor) -> mge.Tensor:
        kept = x * F.expand_dims(real, 1)
        return kept + kept.sum(axis=(2, 3), keepdims=True)

    model = served(blurred, inputs, {"real": 0}, ["y"])
    assert not model.notes and isinstance(model.joining, PaddedRows)
    random = np.random.default_rng(0)
    requests = [
        [random.standard_normal((n, 2, h, w), "float32"), np.ones((n, h, w), np.float32)]
        for n, h, w in ((1, 9, 2), (2, 3, 12))
    ]
    joined = model.joining.joined(requests)
    assert joined[0].shape == (3, 2, 9, 12)
    parts = model.joining.parted(requests, model.run(joined))
    for arrays, (part,) in zip(requests, parts, strict=True):
        np.testing.assert_allclose(part, model.run(arrays)[0], rtol=1e-5, atol=1e-5)


def test_results_that_are_shorter_than_requests_are_not_joined() -> None:
    def halves(tokens: mge.Tensor, mask: mge.Tensor) -> mge.Tensor:
        return (tokens * mask)[:, ::2]

    model = served(halves, pads={"mask": 0}, outputs=["y"])
    assert not isinstance(model.joining, PaddedRows)
    assert "1 and 20 elements on axis 1 for lengths of 1 and 40" in model.notes[0]


def test_what_cannot_pad_is_refused() -> None:
    with pytest.raises(LoadError, match=r"no input masks(?s:.)*it has tokens, mask"):
        served(encoder(), pads={"masks": 0})
    fixed = [ServedInput("tokens", WHOLE, (ROWS, 5)), ServedInput("mask", WHOLE, (ROWS, 5))]
    with pytest.raises(LoadError, match="mask pads nothing"):
        served(encoder(), fixed, {"mask": 0})


def test_requests_join_whose_padding_costs_less_than_a_run() -> None:
    rows = PaddedRows([Padded({1: "t"})], [Padded({1: "t"})], price=5)
    given = [[np.zeros((1, n))] for n in (90, 11, 12, 100, 10, 95)]
    assert rows.chosen([np.zeros((1, 10))], given, 8) == [1, 2, 4]
    assert rows.chosen([np.zeros((1, 10))], given, 3) == [1, 4], "the nearest ones"
    assert rows.chosen([np.zeros((1, 100))], given, 8) == [0, 3, 5]
    assert rows.chosen([np.zeros((8, 10))], given, 8) == []
    rows.price = np.inf
    assert rows.chosen([np.zeros((1, 10))], given, 8) == [0, 1, 2, 3, 4, 5]


def test_what_a_run_costs_beside_its_elements_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def run(arrays: Sequence[Array]) -> list[Array]:
        nonlocal now
        now += 3 + 0.5 * arrays[0].size
        return []

    monkeypatch.setattr(trial.time, "perf_counter", lambda: now)
    assert trial.price_of_runs(run, [np.zeros(4)], [np.zeros(40)]) == pytest.approx(6)
    flat = [np.zeros(4)], [np.zeros(4)]
    assert trial.price_of_runs(run, *flat) == np.inf


def test_eight_clients_with_texts_of_many_lengths_get_their_own_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = served(encoder(), pads={"mask": 0})
    assert isinstance(model.joining, PaddedRows)
    model.joining.price = np.inf
    requests = [text(1 + i % 2, 1 + (7 * i) % 40, i) for i in range(64)]
    expected = [model.run(arrays) for arrays in requests]
    monkeypatch.setattr(making, "compile_regime", None)
    batches: list[tuple[int, ...]] = []
    run = model.run

    def noted(arrays: Sequence[Array]) -> list[Array]:
        batches.append(arrays[0].shape)
        return run(arrays)

    monkeypatch.setattr(model, "run", noted)

    def answer(arrays: list[Array]) -> list[Array]:
        named = zip(("tokens", "mask"), arrays, strict=True)
        entries = [
            {"name": n, "shape": list(a.shape), "datatype": "INT64", "data": a.tolist()}
            for n, a in named
        ]
        found = ask(port, "/v2/models/m/infer", {"inputs": entries})
        assert found.status == 200, found.body
        return [np.array(y["data"], "f").reshape(y["shape"]) for y in found.json["outputs"]]

    with running([model]) as server, ThreadPoolExecutor(8) as pool:
        port = server.port
        results = list(pool.map(answer, requests))
    for found, own in zip(results, expected, strict=True):
        for y, z in zip(found, own, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)
    assert len(batches) < len(requests), "some ran together"
    assert max(length for _, length in batches) == 40


# -- as the command has them -------------------------------------------------------------------


def test_inputs_that_pad_are_written_with_their_value() -> None:
    assert parsed_pads(["mask", "hidden=1", "bias=-inf"]) == {
        "mask": 0,
        "hidden": 1,
        "bias": -np.inf,
    }
    with pytest.raises(Misuse, match="pads with no number"):
        parsed_pads(["mask=x"])


def test_padding_needs_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.tm"
    positive = jit.trace(symbolic=True, capture_as_const=True)(F.relu)
    positive(mge.tensor(np.ones((1, 3), np.float32)))
    positive.dump(str(path), arg_names=["x"])
    assert main(["serve", str(path), "--port", "0", "--pad", "mask"]) != 0
    assert "no extents that may differ" in capsys.readouterr().err


@pytest.mark.onnx
@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter
def test_an_exported_encoder_joins_texts_of_several_lengths(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="exports the model")
    pytest.importorskip("onnx", reason="needs the onnx extra")

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.packed = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.out, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)

        def forward(self, x: Any, mask: Any) -> Any:
            n, t = x.shape[:2]
            parts = self.packed(self.norm(x)).chunk(3, dim=-1)
            q, k, v = (p.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
            seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
            return x + self.out(seen.transpose(1, 2).reshape(n, t, WIDTH))

    class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = torch.nn.Embedding(WORDS, WIDTH)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, tokens: Any, mask: Any) -> Any:
            x, wide = self.words(tokens), (mask > 0)[:, None, None, :]
            for layer in self.layers:
                x = layer(x, wide)
            return x

    net, path = Encoder(), tmp_path / "encoder.onnx"
    example = tuple(torch.from_numpy(a) for a in text(2, 7))
    axes = {name: {0: "rows", 1: "length"} for name in ("tokens", "mask", "states")}
    more = {"input_names": ["tokens", "mask"], "output_names": ["states"]}
    torch.onnx.export(net, example, str(path), dynamo=False, dynamic_axes=axes, **more)
    made = ranged_onnx(path, parsed_ranges(["tokens=1..4,1..40"]))
    model = load_ranged("m", "1", *made, 4, pads={"mask": 0})
    assert not model.notes and isinstance(model.joining, PaddedRows)
    requests = [text(1, 3), text(2, 9, 1), text(1, 33, 2)]
    assert len({model.joining.alike(r) for r in requests}) == 1
    found = model.joining.parted(requests, model.run(model.joining.joined(requests)))
    for arrays, (part,) in zip(requests, found, strict=True):
        with torch.no_grad():
            own = net(*map(torch.from_numpy, arrays)).numpy()
        np.testing.assert_allclose(part, own, rtol=1e-4, atol=1e-5)
