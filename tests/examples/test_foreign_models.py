"""Examples that use models of other packages: what they read and hear."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def folder(package: str) -> Path:
    """Where a package's files are, installed or where `make zoo` puts them."""
    beside = ROOT / "build/zoo" / package
    found = None if beside.exists() else importlib.util.find_spec(package)
    if found is not None and found.origin:
        beside = Path(found.origin).parent
    if not beside.exists():
        pytest.skip(f"{package} is not installed: `make zoo` fetches it")
    return beside


def printed(script: str, *arguments: str) -> str:
    """What an example prints; it must succeed."""
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


VOICES = [
    ("formants", "16000"),
    ("formants", "8000"),
    pytest.param(
        *("espeak-ng", "16000"),
        marks=pytest.mark.skipif(not shutil.which("espeak-ng"), reason="no espeak-ng here"),
    ),
]


@pytest.mark.onnx
@pytest.mark.parametrize(("voice", "rate"), VOICES)
def test_speech_is_found_between_other_sounds(voice: str, rate: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    model = folder("silero_vad") / "data/silero_vad.onnx"
    drawn, sound = tmp_path / "found.png", tmp_path / "made.wav"
    given = ("--model", str(model), "--picture", str(drawn))
    text = printed("find_speech.py", *given, "--voice", voice, "--rate", rate, "--save", str(sound))
    rows = re.findall(r"^(said|found) +([\d.]+) to +([\d.]+) s$", text, re.MULTILINE)
    said, found = ([(float(a), float(b)) for k, a, b in rows if k == w] for w in ("said", "found"))
    assert len(said) == len(found) == 3
    for true, heard in zip(said, found, strict=True):
        assert abs(true[0] - heard[0]) < 0.3 and abs(true[1] - heard[1]) < 0.3
    image = cv2.imread(str(drawn))
    green = (image == (205, 240, 205)).all(2).any(0).mean()
    assert (
        abs(green - sum(b - a for a, b in found) / float(text.split(" s of")[0].split()[-1])) < 0.03
    )
    # The file that was saved is heard as the sound was.
    again = printed("find_speech.py", str(sound), *given)
    assert re.findall("found.*", again) == re.findall("found.*", text)


@pytest.mark.onnx
def test_text_is_read_at_any_size(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    models = ("--models", str(folder("rapidocr_onnxruntime") / "models"))
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import read_text
    finally:
        sys.path.remove(str(ROOT / "examples"))
    picture = tmp_path / "text.png"
    cv2.imwrite(str(picture), cv2.resize(read_text.drawn(), (877, 397)))
    rows = printed("read_text.py", str(picture), *models).splitlines()
    assert [r.split("%  ")[1] for r in rows] == ["Treadle reads text", "at any size", "2026-11-22"]
