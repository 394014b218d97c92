"""Lines that say which rank they come from."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from treadle.base.log import get_logger, set_log_prefix
from treadle.distributed.streams import RankStream, finish_lines, name_lines


def test_whole_lines_get_a_prefix() -> None:
    target = io.StringIO()
    stream = RankStream(target, "[rank 3] ")
    assert stream.write("one\ntw") == 6
    assert target.getvalue() == "[rank 3] one\n"
    print("o", "\n\nthree", end="", file=stream, flush=True)
    stream.finish()
    stream.finish()
    assert target.getvalue().splitlines() == [
        "[rank 3] one",
        "[rank 3] two ",
        "[rank 3] ",
        "[rank 3] three",
    ]
    assert stream.writable() and not stream.isatty()
    real = io.TextIOWrapper(io.BytesIO(), "utf-8")
    assert RankStream(real, "").buffer is real.buffer
    assert RankStream(real, "").encoding == "utf-8"


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    target = io.StringIO()
    stream = RankStream(target, "")
    for i in range(3):
        stream.write(f"\r{i} of 2")
    stream.write("\n")
    stream.write("windows\r\n")
    assert target.getvalue() == "2 of 2\nwindows\n"


def test_both_streams_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    name_lines(1)
    print("result", end="")
    print("warning", file=sys.stderr)
    finish_lines()
    assert (out.getvalue(), err.getvalue()) == ("[rank 1] result\n", "[rank 1] warning\n")


@pytest.fixture
def plain_log() -> Iterator[None]:
    yield
    set_log_prefix("")


def test_log_records_get_it_too(plain_log: None, capsys: pytest.CaptureFixture[str]) -> None:
    set_log_prefix("[rank 2, 50%] ")
    get_logger("engine").log(logging.WARNING, "cold")
    assert capsys.readouterr().err == "[rank 2, 50%] WARNING treadle.engine: cold\n"
