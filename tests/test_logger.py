"""Loggers of programs, and MegEngine's switches for them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle as mge
from treadle import logger


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logger, "_CHOSEN", [False])
    own = mge.get_logger("treadle")
    before = own.level
    yield
    own.setLevel(before)


def test_a_program_shows_what_it_tells(tmp_path: Path) -> None:
    code = (
        "import treadle as mge\n"
        "log = mge.get_logger('program')\n"
        "log.info('epoch %d', 1)\n"
        "log.debug('hidden')\n"
        "mge.get_logger('treadle').info('hidden, too')\n"
        "mge.get_logger().info('epoch %d', 2)\n"
        "mge.set_log_level('WARNING')\n"
        "log.info('hidden now')\n"
        "mge.get_logger().info('hidden now')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "INFO treadle.program: epoch 1\nINFO treadle.program: epoch 2\n"


def test_levels_are_set_for_all_or_for_new_loggers_only() -> None:
    old = mge.get_logger("tests.old")
    assert old.getEffectiveLevel() == logging.INFO
    mge.set_log_level("ERROR", update_existing=False)
    assert old.getEffectiveLevel() == logging.INFO
    assert mge.get_logger("tests.new").getEffectiveLevel() == logging.ERROR
    assert mge.set_log_level(logging.DEBUG) == logging.ERROR
    assert old.getEffectiveLevel() == logging.DEBUG


def test_the_level_of_the_core_is_that_of_the_package() -> None:
    before = logger.set_mgb_log_level("ERROR")
    with logger.replace_mgb_log_level(logging.DEBUG):
        assert mge.get_logger("treadle").level == logging.DEBUG
    assert logger.set_mgb_log_level(before) == logging.ERROR
    with pytest.raises(ValueError, match="level"):
        logger.set_mgb_log_level("LOUD")


def test_a_formatter_of_the_programs_own(capsys: pytest.CaptureFixture[str]) -> None:
    log = mge.get_logger("tests.formatted", formatter=logger.MegEngineLogFormatter)
    log.handlers[0].setStream(sys.stderr)  # type: ignore[attr-defined]
    log.info("hello")
    assert "test_logger.py:" in (text := capsys.readouterr().err) and text.endswith("INFO hello\n")
    assert mge.get_logger("tests.formatted", logger.MegEngineLogFormatter) is log
    assert len(log.handlers) == 1
