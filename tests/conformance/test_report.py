"""Known failures, and reports for machines and people."""

import datetime
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import kernel

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.base.errors import LoadError
from treadle.conformance import CheckResult, Report, cli, read_known, runner
from treadle.conformance.check import Check, CheckFailed, NotOffered
from treadle.conformance.known import KnownFailure
from treadle.conformance.report import FILES, as_json, earlier_figures, junit, markdown, write

TODAY = datetime.date.today()
DAY = datetime.timedelta(days=1)


def failing() -> None:
    raise CheckFailed("3 of 4 bytes are wrong")


def outcome(run: object, *known: KnownFailure) -> CheckResult:
    check = Check("Device", "some_check", run)  # type: ignore[arg-type]
    return runner._run(check, known, 5.0)[0]


def test_failures_and_what_is_known_of_them() -> None:
    until = KnownFailure("device/*", "ticket 7", TODAY + DAY)
    over = KnownFailure("device/some_check", "ticket 7", TODAY - DAY)
    assert outcome(lambda: None).status == "passed"
    assert outcome(failing).status == "failed"
    assert outcome(failing, until).status == "known"
    assert outcome(failing, until).message == f"ticket 7 (until {TODAY + DAY})"
    expired = outcome(failing, over)
    assert expired.status == "expired" and expired.bad and "3 of 4 bytes" in expired.message
    assert outcome(lambda: None, until).status == "unexpected-pass"
    assert outcome(failing, KnownFailure("movement/*", "other", TODAY)).status == "failed"


def test_any_exception_is_a_finding() -> None:
    def odd() -> None:
        raise KeyError("x")

    def leave() -> None:
        raise SystemExit(3)

    def refuse() -> None:
        raise NotOffered("no second device")

    assert outcome(odd).message == "KeyError: 'x'"
    assert outcome(leave).status == "failed"
    assert outcome(refuse).status == "not-offered"


def test_the_share_of_fallback_is_that_of_one_pass(plugins: Plugins) -> None:
    """Rows that differ in what a broadcast is for are told apart."""
    plugins.toy(kernels=[kernel("add", np.add), kernel("mul", np.multiply)])
    x, y = (mge.tensor(np.ones(shape), device="toy0") for shape in ((4, 2), (2,)))
    with mge.fallback("silent"):
        for _ in range(50):
            F.broadcast_to(y, (4, 2))
        x * y
    (found,) = runner.run_checks("toy", only="*/share_of_fallback/mlp", quick=True).results
    assert found.status == "passed", found.message
    assert 0 < float(found.measured["calls that fell back"]) < 20


def test_a_check_that_hangs_ends_the_run(plugins: Plugins) -> None:
    plugins.write("sim", "from tests.conformance.hanging import backend\n")
    report = runner.run_checks("sim", groups=["Device"], quick=True, timeout=0.5)
    assert report.results[-1].message == "still running after 0.5 s"
    assert report.about["stopped"] == f"{report.results[-1].id} did not come to an end"
    assert not report.ok


def test_files_of_known_failures(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(
        '[[known]]\ncheck = "operators/erf/*"\nreason = "9 bits"\nexpires = 2027-03-31\n'
    )
    (entry,) = read_known(path)
    assert entry == KnownFailure("operators/erf/*", "9 bits", datetime.date(2027, 3, 31))
    assert entry.covers("operators/erf/float16") and not entry.covers("operators/exp/float16")
    path.write_text("")
    assert read_known(path) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[known]]\ncheck = "a"\nexpires = 2027-03-31\n', "entry 1 needs a proper reason"),
        ('[[known]]\ncheck = "a"\nreason = ""\nexpires = 2027-03-31\n', "a proper reason"),
        ('[[known]]\ncheck = "a"\nreason = "b"\nexpires = "soon"\n', "a proper expires"),
        (
            '[[known]]\ncheck = "a"\nreason = "b"\nexpires = 2027-03-31\nby = "me"\n',
            "unknown keys: by",
        ),
        ("[known\n", "cannot be read"),
        ('[knwon]\ncheck = "a"\n', "is not a list of"),
    ],
)
def test_bad_files_of_known_failures_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        read_known(path)


def sample_report() -> Report:
    results = [
        CheckResult(
            "device/info", "Device", "info", "passed", "", 0.1, {"memory": 64.0, "name": "a|b"}
        ),
        CheckResult("device/fill", "Device", "fill", "failed", "bad <&> \x00 bytes", 0.2),
        CheckResult("graph/x", "Graph", "x", "known", "ticket 7 (until 2027-01-01)"),
        CheckResult("graph/y", "Graph", "y", "not-offered", "no engine"),
        CheckResult("graph/z", "Graph", "z", "unexpected-pass", "passes"),
    ]
    coverage = {"add": {"float32": "kernel", "int8": "host (dtype)", "int16": "host (dtype)"}}
    return Report("demo", {"treadle": "0"}, results, coverage)


def test_junit() -> None:
    root = ElementTree.fromstring(junit(sample_report()))
    device, graph = root.findall("testsuite")
    assert device.attrib["failures"] == "1" and graph.attrib["skipped"] == "2"
    failure = device.find("testcase[@name='fill']/failure")
    assert failure is not None and failure.attrib["message"] == "bad <&> ? bytes"
    assert graph.find("testcase[@name='x']/skipped") is not None


def test_json_and_the_figures_of_an_earlier_run(tmp_path: Path) -> None:
    found = json.loads(as_json(sample_report()))
    assert not found["ok"] and [r["status"] for r in found["results"]][:2] == ["passed", "failed"]
    assert earlier_figures(tmp_path) == {}
    paths = write(sample_report(), tmp_path / "made")
    assert [p.name for p in paths] == list(FILES)
    assert earlier_figures(tmp_path / "made")["device/info"] == {"memory": 64.0}
    (tmp_path / "made" / FILES[1]).write_text("[1]")
    assert earlier_figures(tmp_path / "made") == {}


def test_figures_that_changed_much_are_pointed_out() -> None:
    result = CheckResult(
        "performance-sanity/a", "Performance sanity", "a", "passed", "", 0.1, {"up": 9.0, "down": 2}
    )
    report = Report("demo", results=[result])
    lines = cli.compared(report, {result.id: {"up": 3.0, "down": 2.0}})
    assert lines == ["performance-sanity/a: up is 9, last time it was 3"]
    assert cli.compared(report, {}) == []


def test_the_page_for_people(golden: object) -> None:
    golden(markdown(sample_report()))  # type: ignore[operator]


# -- the command -------------------------------------------------------------------------------


def test_the_command(plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins.toy("toy")
    folder = tmp_path / "report"
    given = ["toy", "--quick", "--group", "move", "--group", "Device", "--report", str(folder)]
    assert cli.main(given) == 0
    shown = capsys.readouterr().out
    assert "Movement" in shown and "not-offered" in shown and "toy: passed" in shown
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


def test_the_command_fails_for_what_is_not_known(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.write("sim", "from tests.conformance.leaking import backend\n")
    known = tmp_path / "known.toml"
    known.write_text(
        f'[[known]]\ncheck = "device/no_leak"\nreason = "later"\nexpires = {TODAY + DAY}\n'
    )
    given = ["sim", "--only", "device/no_leak", "--quick"]
    assert cli.main(given) == 1
    registry.rescan()  # what leaked is lost with the device
    assert cli.main([*given, "--known", str(known)]) == 0
    assert "later" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (["nobody"], 2, "there is no backend called 'nobody'"),
        (["toy", "--group", "wrong"], 2, "there is no group 'wrong'"),
        (["toy", "--only", "nothing/*"], 2, "there is no check nothing/*"),
        (["none"], 2, "no device of none can be used here: nobody plugged it in"),
        (["cpu", "--group", "Device"], 0, "it is an engine for those of others"),
    ],
)
def test_what_cannot_be_checked(
    given: list[str],
    status: int,
    said: str,
    plugins: Plugins,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plugins.toy("toy")
    plugins.write("none", "from tests.conformance.leaking import unplugged as backend\n")
    assert cli.main(given) == status
    caught = capsys.readouterr()
    assert said in caught.out + caught.err
