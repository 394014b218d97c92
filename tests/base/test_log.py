"""The package's logger: one handler, a level from outside, MegEngine's switches."""

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.base import log
from treadle.logger import enable_debug_log, get_logger, set_log_file, set_log_level


@pytest.fixture(autouse=True)
def fresh_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package logger that nobody has configured."""
    for name in log.LOG_LEVEL.names:
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger("treadle")
    before = root.handlers[:], root.level, root.propagate
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def _handlers() -> list[logging.Handler]:
    """The package's own handlers; pytest adds some of its own to every logger."""
    handlers = logging.getLogger("treadle").handlers
    return [h for h in handlers if type(h).__module__ == log.__name__]


def test_the_handler_is_added_once() -> None:
    root = get_logger("treadle")
    assert get_logger("treadle") is root is log.get_logger()
    child = get_logger("data")
    assert child.name == "treadle.data" and child.parent is root and not child.handlers
    assert len(_handlers()) == 1 and not root.propagate
    assert root.level == logging.WARNING


def test_a_users_own_handler_stays() -> None:
    own = logging.NullHandler()
    logging.getLogger("treadle").addHandler(own)
    get_logger()
    assert own in log.get_logger().handlers and len(_handlers()) == 1


@pytest.mark.parametrize("value", ["debug", "DEBUG", "10"])
def test_the_level_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MEGENGINE_LOGGING_LEVEL", value)
    assert log.get_logger().level == logging.DEBUG


def test_a_wrong_level_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_LOG_LEVEL", "loud")
    for _ in range(2):  # A failure leaves nothing half done.
        with pytest.raises(ValueError, match=r"^TREADLE_LOG_LEVEL='loud' is not a logging level"):
            get_logger()


def test_setting_the_level_returns_the_one_before() -> None:
    assert set_log_level("info") == logging.WARNING
    assert set_log_level(logging.ERROR) == logging.INFO
    enable_debug_log()
    assert set_log_level("CRITICAL") == logging.DEBUG
    assert get_logger("x").getEffectiveLevel() == logging.CRITICAL
    with pytest.raises(ValueError):
        set_log_level("loud")


def test_records_go_to_the_standard_error_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = get_logger("x")
    for text in ("one", "two"):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logger.warning(text)
        logger.info("not shown")
        assert stream.getvalue() == f"WARNING treadle.x: {text}\n"


def test_records_go_to_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, stream = tmp_path / "log", io.StringIO()
    set_log_file(str(file), "w")
    set_log_file(stream)
    get_logger("x").error("broken")
    assert stream.getvalue() == file.read_text(encoding="utf-8")
    assert file.read_text(encoding="utf-8").endswith("ERROR treadle.x: broken\n")
    assert capsys.readouterr().err == "ERROR treadle.x: broken\n"
