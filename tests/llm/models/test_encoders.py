"""Encoders: vectors and scores of texts against transformers, batches, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import Given, directory, random_weights

from treadle.base.errors import CheckpointError, EngineError, IndexRangeError, ShapeError
from treadle.llm.models import Embedder, build, build_embedder

ENCODERS = Path(__file__).with_name("encoders.json")
KEPT: dict[str, Any] = json.loads(ENCODERS.read_text(encoding="utf-8"))
SIZES = {
    **{"vocab_size": 71, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "max_position_embeddings": 40, "pad_token_id": 0},
    **{"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {"num_labels": 1}),
    "modernbert": ("ModernBert", {"num_labels": 1, "local_attention": 6}),
    "modernbert, biases, mean": (
        "ModernBert",
        {
            **{"num_labels": 3, "local_attention": 8, "classifier_pooling": "mean"},
            **{"attention_bias": True, "mlp_bias": True, "norm_bias": True},
            **{"classifier_bias": True, "global_attn_every_n_layers": 2},
        },
    ),
}
RNG = np.random.default_rng(5)
LENGTHS = [23, 7, 1, 16]
TOKENS = RNG.integers(3, 71, (4, 23))
TYPES = (np.arange(23) > 4).astype(int) * np.ones((4, 1), int)


def given(case: str, **changes: Any) -> Given:
    kept = KEPT[case]
    return Given({**kept["config"], **changes}, random_weights(kept["shapes"]))


def mean_of(rows: np.ndarray) -> np.ndarray:
    mean: np.ndarray = rows.mean(0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("case", KEPT)
def test_vectors_and_scores_are_those_of_transformers(case: str) -> None:
    kept, model = KEPT[case], build_embedder(given(case))
    types = TYPES if model.config["model_type"] == "bert" else None
    got = model.embed(TOKENS, LENGTHS, types).numpy()
    np.testing.assert_allclose(got, kept["vectors"], atol=1e-5)
    scores = model.rank(TOKENS, LENGTHS, types).numpy()
    np.testing.assert_allclose(scores, kept["scores"], atol=1e-4)


@pytest.mark.parametrize("case", KEPT)
def test_company_and_padding_change_nothing(case: str) -> None:
    model = build_embedder(given(case))
    together = model.embed(TOKENS, LENGTHS).numpy()
    for i, n in enumerate(LENGTHS):
        alone = model.embed(TOKENS[i : i + 1, :n], [n]).numpy()[0]
        np.testing.assert_allclose(alone, together[i], atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "last"])
def test_pooling(mode: str) -> None:
    checkpoint = given("bert")
    checkpoint.pooling = {"mode": mode, "normalize": False}
    model = build_embedder(checkpoint)
    rows = model.rows(TOKENS, LENGTHS).numpy()
    assert rows.shape == (4, 23, 32)
    got = model.embed(TOKENS, LENGTHS).numpy()
    for i, n in enumerate(LENGTHS):
        expected = {"mean": rows[i, :n].mean(0), "cls": rows[i, 0], "last": rows[i, n - 1]}[mode]
        np.testing.assert_allclose(got[i], expected, atol=1e-5)


def test_names_with_a_prefix_and_of_the_first_years() -> None:
    plain, old = given("bert"), given("bert")
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in old.tensors.items():
        told = name.removeprefix("bert.")
        for new, before in renamed.items():
            told = told.replace(new, before)
        tensors[told] = tensor
    got = build_embedder(Given(old.config, tensors)).embed(TOKENS, LENGTHS).numpy()
    expected = build_embedder(plain).embed(TOKENS, LENGTHS).numpy()
    np.testing.assert_array_equal(got, expected)


def test_no_classifier() -> None:
    checkpoint = given("bert")
    kept = {k: v for k, v in checkpoint.tensors.items() if "classifier" not in k}
    model = build_embedder(Given(checkpoint.config, kept))
    with pytest.raises(EngineError, match="no classifier"):
        model.rank(TOKENS, LENGTHS)


@pytest.fixture(scope="module")
def bert() -> Embedder:
    return build_embedder(given("bert"))


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (([[71]], [1]), IndexRangeError, "a token is not"),
        (([[5]], [1], [[2]]), IndexRangeError, "a kind is not"),
        (([[5]], [0]), ShapeError, "counts are 1 to"),
        (([[5]], [2]), ShapeError, "counts are 1 to"),
        (([[5]], [1, 1]), ShapeError, "counts are 1 to"),
        (([5], [1]), ShapeError, "are .batch, time."),
        (([[5]], [1], [[0, 0]]), ShapeError, "are .batch, time."),
        (([[5] * 41], [1]), ShapeError, "longer than the model"),
    ],
)
def test_wrong_calls(bert: Embedder, arguments: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        bert.embed(*arguments)


@pytest.mark.parametrize(
    ("case", "changes", "told"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "is not absolute"),
        ("bert", {"hidden_act": "cubic"}, "hidden_act is unknown"),
        ("bert", {"num_hidden_layers": 5}, "is missing"),
        ("bert", {"num_hidden_layers": 3}, "have no place"),
        ("bert", {"max_position_embeddings": 41}, "another shape"),
        ("modernbert", {"classifier_pooling": "max"}, "neither cls nor mean"),
        ("modernbert", {"norm_bias": True}, "is missing"),
        ("modernbert", {"intermediate_size": 47}, "another shape"),
    ],
)
def test_checkpoints_that_disagree(case: str, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        build_embedder(given(case, **changes))


def test_the_other_kind_of_model() -> None:
    with pytest.raises(CheckpointError, match="build_embedder takes it"):
        build(given("bert"))
    with pytest.raises(CheckpointError, match="build takes it"):
        build_embedder(given("bert", model_type="llama"))


def test_unknown_pooling() -> None:
    checkpoint = given("bert")
    checkpoint.pooling = {"mode": "median"}
    with pytest.raises(CheckpointError, match="pooling 'median' is unknown"):
        build_embedder(checkpoint)


@pytest.mark.llm
@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Also writes encoders.json with --update-golden, which the tests above compare with."""
    transformers = pytest.importorskip("transformers")
    import torch
    from safetensors.numpy import save_file

    name, config = CASES[case]
    kind = getattr(transformers, f"{name}Config")(**{**SIZES, **config})
    architecture = getattr(transformers, f"{name}ForSequenceClassification")
    architecture(kind).save_pretrained(tmp_path)
    saved = directory(tmp_path)
    shapes = {n: list(saved.tensor(n).shape) for n in sorted(saved.names())}
    save_file(random_weights(shapes), tmp_path / "model.safetensors", {"format": "pt"})
    theirs = architecture.from_pretrained(
        tmp_path, dtype="float32", attn_implementation="eager"
    ).eval()
    ours = build_embedder(directory(tmp_path))
    meant = torch.arange(23)[None] < torch.tensor(LENGTHS)[:, None]
    named = {"input_ids": torch.tensor(TOKENS), "attention_mask": meant.long()}
    types = TYPES if name == "Bert" else None
    if types is not None:
        named["token_type_ids"] = torch.tensor(types)
    with torch.no_grad():
        made = theirs(**named, output_hidden_states=True)
        body = theirs.bert if name == "Bert" else theirs.model
        rows = body(**named).last_hidden_state.numpy()
    got = ours.rows(TOKENS, LENGTHS, types).numpy()
    for i, n in enumerate(LENGTHS):
        np.testing.assert_allclose(got[i, :n], rows[i, :n], atol=1e-4)
    vectors = np.stack([mean_of(rows[i, :n]) for i, n in enumerate(LENGTHS)])
    scores = made.logits.numpy()
    np.testing.assert_allclose(ours.embed(TOKENS, LENGTHS, types).numpy(), vectors, atol=1e-5)
    np.testing.assert_allclose(ours.rank(TOKENS, LENGTHS, types).numpy(), scores, atol=1e-4)
    if request.config.getoption("--update-golden"):
        found = json.loads(ENCODERS.read_text(encoding="utf-8"))
        kept = {"vectors": vectors.astype(float).round(6).tolist(), "scores": scores.tolist()}
        found[case] = {"config": saved.config, "shapes": shapes, **kept}
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
        ENCODERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    assert json.loads(ENCODERS.read_text(encoding="utf-8"))[case]["shapes"] == shapes
