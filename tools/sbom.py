"""What a wheel brings with it: a bill of materials in CycloneDX's JSON form, version 1.6.

It is read off metadata alone: the requirements of the wheel, and the packages of this environment
that they lead to, with the versions and licenses that were tried. Nothing in it tells when or where
it was made, so that one wheel and one environment give one file.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r";.*\bextra\b")


def bill_of(wheel: Path) -> str:
    """The bill of materials of a wheel, as text.

    Raises:
        PackageNotFoundError: a requirement is not installed, so that nothing is known of it.
    """
    about = _metadata(wheel)
    data = wheel.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    own = _purl(about["Name"], about["Version"])
    parts = {d.metadata["Name"]: d for d in _needed(about.get_all("Requires-Dist") or [])}
    components = [_component(d) for _, d in sorted(parts.items(), key=lambda p: p[0].lower())]
    direct = [_purl_of(d) for d in _found(about.get_all("Requires-Dist") or [])]
    edges = [{"ref": own, "dependsOn": sorted(direct)}]
    for part in components:
        found = _found(distribution(part["name"]).requires or [])
        edges.append({"ref": part["bom-ref"], "dependsOn": sorted({_purl_of(d) for d in found})})
    subject = {
        "type": "library",
        "bom-ref": own,
        "name": about["Name"],
        "version": about["Version"],
        "purl": own,
        "licenses": [{"expression": about["License-Expression"]}],
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
    return _text(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sha256:{digest}')}",
            "version": 1,
            "metadata": {"component": subject},
            "components": components,
            "dependencies": edges,
        }
    )


def _metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def _needed(requirements: Sequence[str]) -> Iterator[Distribution]:
    """The packages that requirements lead to, each once, without those of extras."""
    seen: set[str] = set()
    rest = list(requirements)
    while rest:
        for found in _found([rest.pop()]):
            name = found.metadata["Name"]
            if name not in seen:
                seen.add(name)
                yield found
                rest += found.requires or []


def _found(requirements: Sequence[str]) -> list[Distribution]:
    """The installed packages of requirements that hold without extras.

    Other markers (systems, versions of Python) hold for those that are installed.
    """
    found = []
    for text in requirements:
        match = _NAME.match(text)
        if match is None or _EXTRA.search(text):
            continue
        try:
            found.append(distribution(match.group()))
        except PackageNotFoundError:
            if ";" not in text:
                raise
    return found


def _component(part: Distribution) -> dict[str, Any]:
    licenses = _licenses(part)
    made = {
        "type": "library",
        "bom-ref": _purl_of(part),
        "name": part.metadata["Name"],
        "version": part.version,
        "purl": _purl_of(part),
    }
    return {**made, "licenses": licenses} if licenses else made


def _licenses(part: Distribution) -> list[dict[str, Any]]:
    """As the package says: an expression, or the names of its classifiers or of its old field."""
    about = part.metadata
    if (expression := about.get_all("License-Expression")) is not None:
        return [{"expression": expression[0]}]
    kinds = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if "License" in c]
    old = "".join(about.get_all("License") or []).strip()
    names = kinds or ([old] if old and "\n" not in old else [])
    return [{"license": {"name": name}} for name in names]


def _purl_of(part: Distribution) -> str:
    return _purl(part.metadata["Name"], part.version)


def _purl(name: str, version: str) -> str:
    """The package's address among those of PyPI, whose names have one spelling."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def _text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
