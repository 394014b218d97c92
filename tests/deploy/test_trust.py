"""Whose machine code runs: one's own, that of trusted keys, and that of nobody else.

The hostile file of these tests is a model whose native part is a shared object with a constructor,
which leaves a mark wherever it is opened.
"""

import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.networks import image, traced

import treadle as mge
import treadle.functional as F
from treadle.base.dtype import float32
from treadle.base.errors import LoadError, TreadleError
from treadle.base.files import sealed, trust
from treadle.base.files.container import header_bytes, read_header
from treadle.base.files.source import open_source
from treadle.base.types import TensorType
from treadle.cli import main
from treadle.deploy import compile_offline, load_offline
from treadle.engine.execute import segments
from treadle.engine.package.models import Model, Runner, read_models, write_models
from treadle.graph.builder import trace_body
from treadle.lite import LiteNetwork
from treadle.ops import custom
from treadle.ops.custom import RuntimeBlob, store_blob

X = image(2, 4)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of the test's own."""
    monkeypatch.setenv("TREADLE_CONFIG_DIR", str(tmp_path / "mine"))
    return tmp_path / "mine"


@pytest.fixture(scope="module")
def model() -> Model:
    mge.set_default_device("cpux")
    weights = mge.tensor(image(4, 3))
    return compile_offline(traced(lambda x: F.matmul(x, weights), X))


@pytest.fixture
def file(model: Model, tmp_path: Path) -> Path:
    write_models(tmp_path / "net.tm", [model], "test")
    return tmp_path / "net.tm"


def as_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Become another user, or oneself on another machine."""
    monkeypatch.setenv("TREADLE_CONFIG_DIR", str(tmp_path / "theirs"))


def right(results: Any) -> bool:
    return np.allclose(results["label"], X @ image(4, 3), rtol=1e-5)


# -- one's own -------------------------------------------------------------------------------------


def test_own_code_runs_and_nobody_elses(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = load_offline(file)
    assert own.target and right(own.run([X]))
    as_another(monkeypatch, tmp_path)
    capsys.readouterr()
    other = load_offline(file)
    [said] = capsys.readouterr().err.splitlines()
    assert other.target == "" and right(other.run([X]))
    assert "machine code is left alone" in said and "nobody has signed it" in said
    allowed = load_offline(file, allow_native=True)
    assert allowed.target == own.target and right(allowed.run([X]))
    assert not (tmp_path / "theirs").exists(), "reading makes no key"


def test_the_key_is_the_users_alone(file: Path, settings: Path) -> None:
    status = (settings / "key").stat()
    assert status.st_mode & 0o777 == 0o600 and settings.stat().st_mode & 0o777 == 0o700
    first = file.read_bytes()
    write_models(file, read_models(file, allow_native=True), "test")
    assert file.read_bytes() == first, "equal files under equal keys"


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_key_that_others_can_read_is_none(
    file: Path, settings: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a group of the user's own it matters that the group can read it."""
    (settings / "key").chmod(mode)
    assert load_offline(file).target == ""
    assert "others" in capsys.readouterr().err


def test_no_key_can_be_kept(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TREADLE_CONFIG_DIR", str(tmp_path / "file" / "folder"))
    path = tmp_path / "here.tm"
    write_models(path, [model], "test")
    assert load_offline(path).target, "this process has compiled it"


# -- hostile files ---------------------------------------------------------------------------------

HOSTILE = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { open("%s", O_CREAT | O_WRONLY, 0600); }
"""


@pytest.fixture
def hostile(file: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model file with a stranger's code, and the mark that the code leaves."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a hostile library with")
    mark, library = tmp_path / "mark", tmp_path / "hostile.so"
    (tmp_path / "hostile.c").write_text(HOSTILE % mark)
    command = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "hostile.c"]
    subprocess.run(command, check=True)
    image_ = library.read_bytes()
    image_ += bytes(-len(image_) % 64)
    with open_source(file) as source:
        header = read_header(source)
        data = source.read(header.data_start, source.size)
    manifest = json.loads(header.metadata[sealed.MANIFEST])
    arrays = {n: np.frombuffer(data, np.uint8)[e.begin : e.end] for n, e in header.entries.items()}
    arrays = {
        n: a.view(header.entries[n].dtype).reshape(header.entries[n].shape)
        for n, a in arrays.items()
    }
    arrays["native0.0.code"] = np.frombuffer(image_, np.int64)
    manifest["models"][0]["native"][0]["memory"]["code"] = len(image_)
    content = {
        k: v for k, v in manifest.items() if k not in ("format", "version", "producer", "sha256")
    }
    kind = sealed.Kind("treadle model", 2)
    chunks = sealed.chunks_of(kind, content, arrays)
    with open_source(file) as source:  # with the seal of the honest file
        seal = read_header(source).metadata[trust.SEAL]
    path = tmp_path / "hostile.tm"
    path.write_bytes(b"".join(bytes(c) for c in chunks))
    with open_source(path) as source:
        made = read_header(source)
        rest = source.read(made.data_start, source.size)
    path.write_bytes(header_bytes(made.entries, {**made.metadata, trust.SEAL: seal}) + rest)
    return path, mark


def test_the_hostile_file_is_hostile(
    hostile: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = hostile
    with pytest.raises(LoadError):
        load_offline(path, allow_native=True)
    assert not mark.exists(), "code that runs when a library is opened is never ours"
    shipped = importlib.import_module("treadle.backends.cpu.shipped")
    monkeypatch.setattr(shipped, "check_image", lambda image: None)
    with pytest.raises(LoadError):
        load_offline(path, allow_native=True)
    assert mark.exists()


def by_loading(path: Path) -> None:
    assert right(load_offline(path).run([X]))
    assert right(load_offline(path, recompile=True).run([X]))


def by_reading(path: Path) -> None:
    [result] = Runner(read_models(path)[0].graph)([X])
    assert right({"label": result})


def by_other_commands(path: Path) -> None:
    assert main(["info", str(path), "--verify"]) == 0
    assert main(["compile", str(path), "-o", f"{path}.again"]) == 0


def by_lite(path: Path) -> None:
    network = LiteNetwork()
    network.load(path)
    network.get_io_tensor("image").set_data_by_copy(X)
    network.forward()
    network.wait()
    assert right({"label": network.get_io_tensor("label").to_numpy()})


def by_lite_in_memory(path: Path) -> None:
    with path.open("rb") as stream:
        LiteNetwork().load(stream)


def by_command(path: Path) -> None:
    assert main(["run", str(path), "--iterations", "1"]) == 0


def by_server(path: Path) -> None:
    from treadle.cli.serve import _native

    assert _native(path, None) is None


def by_appending(path: Path) -> None:
    double = mge.jit.trace(symbolic=True, capture_as_const=True)(lambda x: x + x)
    double(mge.tensor(image(4)))
    double.dump(str(path), append=True)
    assert load_offline(path).target == "", "what is written again is still a stranger's"


@pytest.mark.parametrize(
    "opened",
    [
        by_loading,
        by_reading,
        by_lite,
        by_lite_in_memory,
        by_command,
        by_server,
        by_appending,
        by_other_commands,
    ],
)
def test_code_of_strangers_does_not_run(hostile: tuple[Path, Path], opened: Any) -> None:
    path, mark = hostile
    opened(path)
    assert not mark.exists()


def test_what_a_stranger_wrote_is_not_sealed_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_another(monkeypatch, tmp_path)
    [model] = read_models(file, allow_native=True)
    again = tmp_path / "again.tm"
    write_models(again, [model], "test")
    assert load_offline(again).target == ""


# -- trusted keys ----------------------------------------------------------------------------------

pytest.importorskip("cryptography", reason="files are signed by the package cryptography")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    assert main(["trust", "--new", str(tmp_path / "release")]) == 0
    return tmp_path / "release"


@pytest.fixture
def signed(pair: Path, file: Path, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "signed.tm"
    assert main(["compile", str(file), "-o", str(path), "--sign", str(pair)]) == 0
    yield path


def test_compiled_here_and_run_there(
    signed: Path,
    pair: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_another(monkeypatch, tmp_path)
    before = load_offline(signed)
    assert before.target == "" and right(before.run([X]))
    assert main(["trust", f"{pair}.pub"]) == 0
    after = load_offline(signed)
    assert after.target and right(after.run([X]))
    capsys.readouterr()
    assert main(["info", str(signed)]) == 0 and "made by release" in capsys.readouterr().out
    assert main(["trust", "--remove", "release"]) == 0
    assert load_offline(signed).target == ""


def test_it_runs_there_in_lite_without_a_compiler(signed: Path, pair: Path, tmp_path: Path) -> None:
    """By native code if the key is trusted, else by NumPy."""
    script = """
        import importlib.machinery, sys
        find = importlib.machinery.PathFinder.find_spec
        class NoCompiler:
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                return None if name.split(".")[0] == "llvmlite" else find(name, path, target)
        sys.meta_path = [
            NoCompiler if f is importlib.machinery.PathFinder else f for f in sys.meta_path
        ]
        import numpy as np
        from treadle.lite import LiteNetwork
        network = LiteNetwork()
        network.load(sys.argv[1])
        network.get_io_tensor("image").set_data_by_copy(np.load(sys.argv[2]))
        network.forward()
        network.wait()
        np.save(sys.argv[3], network.get_io_tensor("label").to_numpy())
        print("treadle.engine.package.models" in sys.modules)
    """
    np.save(tmp_path / "x.npy", X)
    there = {
        "TREADLE_CONFIG_DIR": str(tmp_path / "theirs"),
        "TREADLE_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", textwrap.dedent(script), signed, tmp_path / "x.npy"]
    for trusted in (False, True):
        if trusted:
            words = [sys.executable, "-m", "treadle", "trust", f"{pair}.pub"]
            subprocess.run(words, env={**os.environ, **there}, check=True, capture_output=True)
        done = subprocess.run(
            [*command, tmp_path / "y.npy"],
            env={**os.environ, **there},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(not trusted)
        assert ("NumPy runs the model" in done.stderr) is not trusted
        assert right({"label": np.load(tmp_path / "y.npy")})


def test_signatures_are_of_the_whole_file(
    signed: Path, pair: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature on another file, or one that was changed, is none."""
    as_another(monkeypatch, tmp_path)
    trust.set_trusted_keys({trust.public_key(Path(f"{pair}.pub")): "release"})
    with open_source(signed) as source:
        given = read_header(source).metadata[trust.SIGNATURE]
    digest = "0" * 64
    wrong = trust.origin(digest, {trust.SIGNATURE: given})
    assert not wrong.who and "signature is wrong" in wrong.why_unknown
    for text in ("", ":", "zz:zz", given[:40], f"{given[:64]}:", f"{'0' * 64}:{given[65:]}"):
        assert not trust.origin(digest, {trust.SIGNATURE: text}).who


def test_keys_that_are_none(tmp_path: Path, pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(64))
    for key in (tmp_path / "noise", pair):
        assert main(["trust", str(key)]) == 1
        assert "no public key" in capsys.readouterr().err
    with pytest.raises(LoadError, match="no private key"):
        trust.Signer(tmp_path / "noise")
    assert main(["trust", "--new", str(pair)]) == 1, "pairs are not overwritten"
    assert main(["trust", "--remove", "nobody"]) == 2


def test_keys_of_openssh(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (tmp_path / "id").write_bytes(private)
    (tmp_path / "id.pub").write_bytes(public + b" me@here\n")
    assert trust.Signer(tmp_path / "id").key == trust.public_key(tmp_path / "id.pub")
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    text = other.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "curve.pub").write_bytes(text)
    with pytest.raises(LoadError, match="cannot be used"):
        trust.public_key(tmp_path / "curve.pub")


def test_a_list_of_keys_that_others_can_write_is_refused(pair: Path, settings: Path) -> None:
    assert main(["trust", f"{pair}.pub"]) == 0
    (settings / "trusted_keys").chmod(0o666)
    with pytest.raises(LoadError, match="others"):
        trust.trusted_keys()


# -- what other engines have made ------------------------------------------------------------------


def test_blobs_of_strangers_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled segments are not put where engines look; models of engines are not kept."""
    plane = TensorType(float32, (2, 4))
    shift = RuntimeBlob("treadle.shift", store_blob(b"\x09"), (plane,), (plane,))
    graph = trace_body(lambda x: x.apply(shift, (x,))[0] * 2.0, [plane], "shifted")
    model = Model(graph, ("x",), ("y",), segments={"0" * 64 + ".segment": b"compiled"})
    write_models(tmp_path / "blobs.tm", [model], "test")

    def read(allow_native: bool | None = None) -> tuple[Model, dict[str, Any]]:
        monkeypatch.setattr(custom, "_BLOBS", {})
        monkeypatch.setattr(segments, "_SHELF", {})
        [found] = read_models(tmp_path / "blobs.tm", allow_native=allow_native)
        return found, dict(segments._SHELF)

    own, shelf = read()
    assert shelf and own.segments
    np.testing.assert_array_equal(Runner(own.graph)([X])[0], (X + 9) * 2)
    for allowed in (False, None):
        if allowed is None:
            as_another(monkeypatch, tmp_path)
        capsys.readouterr()
        strange, shelf = read(allowed)
        assert "is left alone" in capsys.readouterr().err
        assert not shelf and not strange.segments
        with pytest.raises(TreadleError, match="no blob is stored"):
            Runner(strange.graph)([X])
    asked, shelf = read(True)
    assert shelf and asked.segments and not asked.own
    np.testing.assert_array_equal(Runner(asked.graph)([X])[0], (X + 9) * 2)


# -- damage ----------------------------------------------------------------------------------------


def test_flipped_bits_are_refused_or_harmless(file: Path, tmp_path: Path) -> None:
    """All over the file, and in weights, where 15 of 40 went unnoticed."""
    content = file.read_bytes()
    generator = random.Random(0)
    places = [generator.randrange(len(content) * 8) for _ in range(150)]
    with open_source(file) as source:
        header = read_header(source)
    weights = header.entries["native0.0.weights"]
    first, last = (8 * (header.data_start + n) for n in (weights.begin, weights.end))
    inside = range(first, last, 7)
    refused = 0
    for place in (*places, *inside):
        bad = bytearray(content)
        bad[place // 8] ^= 1 << place % 8
        path = tmp_path / "bad.tm"
        path.unlink(missing_ok=True)
        path.write_bytes(bad)
        try:
            # Whatever is changed of what the seal covers makes the file somebody else's.
            assert right(load_offline(path).run([X]))
            assert place not in inside
        except TreadleError:
            refused += 1
    assert refused > len(inside) + len(places) // 4
