"""A report as JUnit XML, as JSON, and as a page of what is covered."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from treadle.conformance.result import CheckResult, Report

FILES = ("junit.xml", "results.json", "coverage.md")


def write(report: Report, folder: Path) -> list[Path]:
    """Write all three files; their paths.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = junit(report), as_json(report), markdown(report)
    paths = [folder / name for name in FILES]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def junit(report: Report) -> str:
    """One suite per group, one case per check; known failures count as skipped."""
    root = ElementTree.Element("testsuites", name=f"treadle-backend-test {report.backend}")
    for group, counts in report.counts().items():
        results = [r for r in report.results if r.group == group]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=group,
            tests=str(len(results)),
            failures=str(counts["failed"] + counts["expired"]),
            skipped=str(counts["known"] + counts["not-offered"]),
            time=f"{sum(r.seconds for r in results):.3f}",
        )
        for result in results:
            _case(suite, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, result: CheckResult) -> None:
    classname = result.id.partition("/")[0]
    case = ElementTree.SubElement(
        suite, "testcase", name=result.name, classname=classname, time=f"{result.seconds:.3f}"
    )
    if result.bad:
        failure = ElementTree.SubElement(case, "failure", message=_clean(result.message))
        failure.text = result.status
    elif result.status in ("known", "not-offered"):
        ElementTree.SubElement(case, "skipped", message=f"{result.status}: {result.message}")
    elif result.status == "unexpected-pass":
        ElementTree.SubElement(case, "system-out").text = result.message


def _clean(text: str) -> str:
    """Return the text with "?" for characters that XML does not have."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def as_json(report: Report) -> str:
    """Everything, for programs."""
    return json.dumps(
        {
            "backend": report.backend,
            "ok": report.ok,
            "about": report.about,
            "results": [_plain(result) for result in report.results],
            "coverage": report.coverage,
        },
        indent=1,
    )


def _plain(result: CheckResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "status": result.status,
        "message": result.message,
        "seconds": round(result.seconds, 4),
        "measured": dict(result.measured),
    }


def earlier_figures(folder: Path) -> dict[str, dict[str, float]]:
    """Figures of the run whose report is in a folder, by check; empty if there is none to read."""
    try:
        found = json.loads((folder / FILES[1]).read_text(encoding="utf-8"))
        return {r["id"]: _numbers(r["measured"]) for r in found["results"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _numbers(measured: Any) -> dict[str, float]:
    return {k: float(v) for k, v in measured.items() if isinstance(v, (int, float))}


# -- for people --------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """Counts by group, failures, figures, and who runs which op with which element type."""
    about = ", ".join(f"{key} {value}" for key, value in report.about.items())
    parts = [
        f"# {report.backend}: what was checked\n",
        f"{'Passed' if report.ok else '**Failed**'}. {about}.\n",
        _table(("group", *_STATUSES), _count_rows(report)),
        *_section("Failures", ("check", "what is wrong"), _messages(report, "failed", "expired")),
        *_section("Known failures", ("check", "why, until"), _messages(report, "known")),
        *_section("No longer failing", ("check", ""), _messages(report, "unexpected-pass")),
        *_section("Not offered", ("check", "why"), _messages(report, "not-offered")),
        *_section("Figures", ("check", "figure", "value"), _figures(report)),
        *_section("Ops", ("op", "runs on the device", "on the host"), _ops(report)),
    ]
    return "\n".join(parts)


_STATUSES = ("passed", "failed", "expired", "known", "unexpected-pass", "not-offered")


def _count_rows(report: Report) -> list[tuple[str, ...]]:
    return [
        (group, *(str(counts[status] or "") for status in _STATUSES))
        for group, counts in report.counts().items()
    ]


def _messages(report: Report, *statuses: str) -> list[tuple[str, ...]]:
    return [(f"`{r.id}`", r.message) for r in report.results if r.status in statuses]


def _figures(report: Report) -> list[tuple[str, ...]]:
    return [
        (f"`{result.id}`", name, value if isinstance(value, str) else f"{value:.4g}")
        for result in report.results
        for name, value in result.measured.items()
    ]


def _ops(report: Report) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for op, row in report.coverage.items():
        there = [f"{d} ({who})" for d, who in row.items() if not who.startswith("host")]
        here = Counter(who for who in row.values() if who.startswith("host"))
        names = [f"{n} types: {who[5:].strip('()') or 'no reason'}" for who, n in here.items()]
        rows.append((f"`{op}`", ", ".join(there), "; ".join(names)))
    return rows


def _section(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"## {title}\n", _table(header, rows)] if rows else []


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    escaped = [[" ".join(c.split()).replace("|", "\\|") for c in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"
