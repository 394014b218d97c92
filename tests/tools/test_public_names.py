"""The list of public names: what is in it, and that a name that goes is noticed."""

import pytest

from tools import public_names


def test_names_that_vanish_are_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = public_names.PAGE.read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))
    for name in ("treadle.module.Linear", "treadle.Tensor.reshape", "treadle.functional.relu"):
        assert name in listed
    now = [name for name in public_names.names() if name != "treadle.module.Linear"]
    monkeypatch.setattr(public_names, "names", lambda: [*now, "treadle.new"])
    assert public_names.main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("treadle.module.Linear is gone: ")
    monkeypatch.setattr(public_names, "names", lambda: [*listed, "treadle.new"])
    assert public_names.main(["--check"]) == 0
