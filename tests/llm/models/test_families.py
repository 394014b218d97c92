"""Every family against what transformers computed once; wrong configs; small files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.cases import some
from tests.llm.models.small import FAMILIES, Given, random_weights, read

from treadle.base.errors import CheckpointError
from treadle.llm.models import build, families

KEPT: dict[str, Any] = json.loads(FAMILIES.read_text(encoding="utf-8"))


def given(case: str, **changes: Any) -> Given:
    kept = KEPT[case]
    return Given({**kept["config"], **changes}, random_weights(kept["shapes"]))


# Each kind of block once, and what is special about positions and caches; the rest are mixtures.
HERE = ("gemma3", "gpt_oss", "llama", "mixtral, window", "phi3, longrope, short", "qwen3_moe")


@pytest.mark.parametrize("case", some(KEPT, HERE))
def test_logits_are_those_of_transformers(case: str) -> None:
    text = KEPT[case]["text"]
    model = build(given(case))
    (whole, _), _ = read(model, [text, text[:5]], 16, 0)
    np.testing.assert_allclose(whole[-1], KEPT[case]["logits"], atol=1e-4)
    (parts,), _ = read(model, [text], 4, 0)  # with the cache
    np.testing.assert_allclose(parts, whole, atol=5e-5)


def test_every_family_is_tried() -> None:
    pictures = {"gemma3"}
    tried = {kept["config"]["model_type"] for kept in KEPT.values()}
    assert tried == set(families.DECODERS) - pictures


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_of_a_model_that_sees(prefix: str) -> None:
    inner = given("gemma3")
    tensors = {name.replace("model.", prefix): t for name, t in inner.tensors.items()}
    model = build(Given({"model_type": "gemma3", "text_config": inner.config}, tensors))
    (logits,), _ = read(model, [KEPT["gemma3"]["text"]], 16, 0)
    np.testing.assert_allclose(logits[-1], KEPT["gemma3"]["logits"], atol=1e-4)


def test_older_names_of_gemma3() -> None:
    config = dict(KEPT["gemma3"]["config"])
    del config["rope_parameters"], config["layer_types"]
    old: dict[str, Any] = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    model = build(Given({**config, **old}, given("gemma3").tensors))
    (logits,), _ = read(model, [KEPT["gemma3"]["text"]], 16, 0)
    np.testing.assert_allclose(logits[-1], KEPT["gemma3"]["logits"], atol=1e-4)


@pytest.mark.parametrize(
    ("case", "changes", "told"),
    [
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit is not 7"),
        ("mixtral", {"num_experts_per_tok": 5}, "more than the 4"),
        ("mixtral", {"num_local_experts": 5}, "another shape"),
        ("smollm3", {"no_rope_layers": [1]}, "not a list of 5 values"),
        ("qwen3_moe", {"mlp_only_layers": ["0"]}, "not a list of whole numbers"),
        ("qwen3_moe", {"mlp_only_layers": []}, "missing"),
        ("gemma2", {"layer_types": ["linear_attention"] * 3}, "kinds of layers"),
        ("gemma2", {"hidden_activation": "cubic"}, "hidden_activation is unknown"),
        ("mistral", {"sliding_window": 0}, "sliding_window is not from 1"),
        ("phi3", {"partial_rotary_factor": 0.4, "rope_parameters": None}, "is turned"),
        ("phi3", {"intermediate_size": 47}, "another shape"),
    ],
)
def test_configs_that_cannot_be(case: str, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        build(given(case, **changes))


def test_a_family_is_a_small_file() -> None:
    files = list(Path(families.__file__).parent.glob("*.py"))
    assert len(files) > 10
    told_apart = {f for f in files if f.name not in ("plain.py", "__init__.py")}
    assert {f.name for f in told_apart if len(f.read_text().splitlines()) > 120} == set()
