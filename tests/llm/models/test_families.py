"""Files of families stay small."""

from pathlib import Path

from treadle.llm.models import families


def test_a_family_is_a_small_file() -> None:
    files = list(Path(families.__file__).parent.glob("*.py"))
    assert len(files) > 3
    assert {f.name for f in files if len(f.read_text().splitlines()) > 120} == set()
