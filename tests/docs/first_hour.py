"""The first hour of three users, in a fresh clone with a fresh virtual environment.

    python -m tests.docs.first_hour [pytorch|deployment|megengine ...] [--keep FOLDER]

Commands and programs are those of README.md and the pages, found there by heading: what a page
no longer says, nobody runs. Packages come from the network (`PIP_FLAGS` is passed to pip). Every
step must succeed; programs of pages must show what the pages show, servers must end with 0.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks, prose

LISTENING, LONGEST = "listening at", 600


@dataclass
class User:
    """Somebody's clone, environment and working folder.

    Attributes:
        home: holds all three.
        failures: titles of the steps that failed.
        servers: that run, and what they were started by.
    """

    home: Path
    failures: list[str] = field(default_factory=list)
    servers: list[tuple[str, subprocess.Popen[str]]] = field(default_factory=list)

    @property
    def clone(self) -> Path:
        """The checkout, where packages are installed from."""
        return self.home / "treadle"

    @property
    def folder(self) -> Path:
        """Where the user works: nothing there imports the checkout."""
        return self.home / "work"

    def environment(self) -> dict[str, str]:
        """An activated environment, without settings of whoever runs this."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MGE_", "TREADLE_", "PYTHON", "VIRTUAL_ENV"))
        }
        own = {"HOME": str(self.home), "VIRTUAL_ENV": str(self.home / "env")}
        return {**kept, **own, "PATH": f"{self.home / 'env/bin'}{os.pathsep}{kept['PATH']}"}

    def run(self, command: str, at: Path | None = None) -> None:
        """Run a command; a server goes on in the background once it listens.

        Raises:
            Stopped: it failed.
        """
        where = at or self.folder
        if re.match(r"treadle serve\b", command):
            self._serve(command)
            return
        flags = os.environ.get("PIP_FLAGS", "")
        given = re.sub(r"^pip install", f"pip install -q {flags}", command)
        done = subprocess.run(
            ["bash", "-euc", given],
            cwd=where,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        if done.returncode:
            raise Stopped(f"status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def _serve(self, command: str) -> None:
        process = subprocess.Popen(
            shlex.split(command, comments=True),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.servers.append((command, process))
        lines: list[str] = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(LISTENING):
                return
        raise Stopped(f"the server ended\n{''.join(lines)}")

    def end_servers(self) -> None:
        """End the servers in order.

        Raises:
            Stopped: one ended with another status than 0.
        """
        running, self.servers = self.servers, []
        for _, process in running:
            process.terminate()
        for command, process in running:
            rest, _ = process.communicate(timeout=60)
            if process.returncode:
                raise Stopped(f"{command} ended with {process.returncode}\n{rest}")


class Stopped(Exception):
    """What stopped a user."""


@dataclass(frozen=True)
class Step:
    """Something that a user does.

    Attributes:
        title: what it is, and where it stands.
        act: does it.
    """

    title: str
    act: Callable[[User], None]


def commands(code: str) -> list[str]:
    """The commands of a block, each with the lines that continue it."""
    found: list[str] = []
    open_ = ""
    for line in code.splitlines():
        open_ = f"{open_}\n{line}" if open_ else line
        if open_.endswith("\\") or open_.count("'") % 2:
            continue
        if open_.strip():
            found.append(open_)
        open_ = ""
    return found


def under(page: str, heading: str, language: str = "sh") -> list[Block]:
    """The blocks of a page between a heading and the next of the same or a higher level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    # Comments of code look like headings.
    plain = re.sub(r"^```.*?^```$", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M | re.S)
    title = re.search(rf"^(#+) {re.escape(heading)}$", plain, re.M)
    if title is None:
        raise LookupError(f"{page} has no heading {heading!r}")
    end = re.compile(rf"^#{{1,{len(title[1])}}} ", re.M).search(plain, title.end())
    first = text.count("\n", 0, title.start()) + 1
    last = text.count("\n", 0, end.start() if end else len(text)) + 1
    return [b for b in blocks(ROOT / page, language) if first <= b.line <= last]


def shell(
    page: str, heading: str, *numbers: int, clone: bool = False, only: str = ""
) -> list[Step]:
    """The commands of blocks under a heading; `only` those that begin so."""
    found = under(page, heading)
    chosen = [found[i] for i in numbers] if numbers else found
    listed = [c for b in chosen for c in commands(b.code) if c.startswith(only)]
    if not listed:
        raise LookupError(f"{page}, {heading}: no command there begins with {only!r}")
    return [_running(page, command, clone) for command in listed]


def said(page: str, command: str, clone: bool = False) -> list[Step]:
    """A command that stands in a page's sentences."""
    if f"`{command}`" not in prose(ROOT / page):
        raise LookupError(f"{page} does not say `{command}`")
    return [_running(page, command, clone)]


def programs(*names: str, words: str = "") -> list[Step]:
    """Everything in Python that pages show, with what it prints; files stay in the folder."""
    found = []
    for name in names:
        if not blocks(ROOT / name):
            raise LookupError(f"{name} has no program")
        found.append(Step(f"{name}: its programs", partial(_run_page, name, words)))
    return found


def _run_page(name: str, words: str, user: User) -> None:
    runner = user.clone / "tests/docs/run_page.py"
    user.run(f"python {runner} {user.clone / name} folder={user.folder} {words}")


def _running(page: str, command: str, clone: bool) -> Step:
    def act(user: User) -> None:
        user.run(command, user.clone if clone else user.folder)

    return Step(f"{page}: {command}", act)


def _own(title: str, act: Callable[[User], None]) -> list[Step]:
    """What users bring along."""
    return [Step(f"brought along: {title}", act)]


def _network(user: User) -> None:
    """The network of the page on deployment as ONNX, under the names that pages use."""
    program = """
import numpy as np
import treadle as mge, treadle.functional as F, treadle.module as M
from treadle.interop.onnx import export

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.features = M.Sequential(
            M.Conv2d(3, 16, 3, 2, 1, bias=False), M.BatchNorm2d(16), M.ReLU6(),
            M.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), M.BatchNorm2d(16), M.ReLU6(),
            M.Conv2d(16, 32, 1, bias=False), M.BatchNorm2d(32))
        self.head = M.Linear(32, 10)

    def forward(self, image):
        return self.head(F.mean(self.features(image), axis=(2, 3)))

net = Net()
net.eval()
image = mge.tensor(np.random.rand(1, 3, 64, 64).astype("float32"))
for name in ("mobilenet", "resnet50"):
    export(net, image, path=f"{name}.onnx", arg_names=["image"])
"""
    user.run(f"python -c {shlex.quote(program)}")


def _picture(user: User) -> None:
    user.run(
        "python -c \"import cv2, numpy as np; cv2.imwrite('cat.jpg', "
        'np.random.default_rng(0).integers(0, 255, (80, 90, 3), np.uint8))"'
    )


def _megengine_program(user: User) -> None:
    """A program for MegEngine, and tests of it: the classifier of the first pages."""
    page = ROOT / "docs/getting-started.md"
    parts = [re.sub(r"^(>>>|\.\.\.) ?", "", line) for b in blocks(page) for line in _typed(b)]
    text = "\n".join(parts).replace("treadle", "megengine")
    (user.folder / "train.py").write_text(text + "\n", encoding="utf-8")
    (user.folder / "tests").mkdir()
    test = "import megengine\n\ndef test_type():\n    assert megengine.tensor(1).dtype == 'int32'\n"
    (user.folder / "tests/test_sum.py").write_text(test, encoding="utf-8")
    user.run("pip install pytest")


def _typed(block: Block) -> list[str]:
    """What one types of a block: its code without outputs."""
    lines = block.code.splitlines()
    return [x for x in lines if x.startswith((">>>", "..."))] if block.is_session else lines


def hours() -> dict[str, list[Step]]:
    """The steps of each user.

    Raises:
        LookupError: a page no longer has what is looked for.
    """
    readme = "README.md"
    install = shell(readme, "Install", 0, clone=True)
    look = [*shell(readme, "Install", 2), *said(readme, "treadle doctor")]
    pytorch = [
        *shell(readme, "Treadle", 0, clone=True, only="make demo"),
        *install,
        *look,
        *programs(readme, "docs/getting-started.md", "docs/migration.md", "docs/modules.md"),
        *said("docs/data.md", "pip install '.[vision]'", clone=True),
        *programs("docs/optimizers.md", "docs/data.md", "docs/trainer.md", "docs/jit.md"),
        *programs("docs/fine-tuning.md", "docs/save-load.md"),
    ]
    compiled, served = "docs/command-line.md", "docs/deploy.md"
    deployment = [
        *said(readme, 'pip install ".[onnx,serve,aot]"', clone=True),
        *_own("mobilenet.onnx and resnet50.onnx", _network),
        *shell(readme, "Ship it"),
        Step("the server ends", User.end_servers),
        *programs(served, words="oracle"),
        *shell(served, "One network, all ways", 0),
        *said(served, "pip install '.[sign]'", clone=True),
        *said(served, "treadle trust --new release"),
        *shell(served, "One network, all ways", 1),
        *said("docs/command-line.md", "pip install '.[onnx,vision,serve]'", clone=True),
        *_own("cat.jpg", _picture),
        *shell(compiled, "Command line", 0),
        *shell("docs/picture.md", "The picture of the compiler"),
        *shell(served, "One network, all ways", 2),
        Step("the server ends", User.end_servers),
        *programs("docs/serve.md", "docs/lite.md", "docs/model-files.md"),
    ]
    megengine = [
        *install,
        *_own("train.py and tests", _megengine_program),
        *shell("docs/migration-megengine.md", "Migration from MegEngine", 0),
        *programs("docs/migration-megengine.md", "docs/seed.md"),
        *programs("docs/model-files.md", "docs/traced-module.md", "docs/quantization.md"),
        *_own("data.npy and facts.json", lambda u: u.run(_ONES)),
        *shell("docs/model-files.md", "Time, lay out, pack"),
    ]
    return {"pytorch": pytorch, "deployment": deployment, "megengine": megengine}


_ONES = """python -c "import numpy as np; np.save('data.npy', np.ones((2, 4), 'float32'))"
echo '{"options": {"enable_nchw88": true}}' > facts.json"""


def spend(name: str, steps: list[Step], home: Path) -> User:
    """A user's hour; what stops a step is printed, and the next one is tried."""
    user = User(home)
    user.folder.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, user.clone], check=True)
    subprocess.run([sys.executable, "-m", "venv", home / "env"], check=True)
    for step in steps:
        began = time.perf_counter()
        try:
            step.act(user)
            ending = ""
        except (Stopped, subprocess.TimeoutExpired) as stop:
            user.failures.append(step.title)
            ending = f"\n  STOPPED: {stop}"
        print(f"{name} {time.perf_counter() - began:6.1f} s  {step.title}{ending}", flush=True)
    for _, process in user.servers:
        process.kill()
    return user


def main() -> int:
    """Spend the hours; 1 if a step failed."""
    planned = hours()
    parser = argparse.ArgumentParser(description="Spend the first hour of users.")
    parser.add_argument("users", nargs="*", help=", ".join(planned))
    parser.add_argument(
        "--keep", type=Path, help="a folder that stays, in place of a temporary one"
    )
    given = parser.parse_args()
    unknown = set(given.users) - planned.keys()
    if unknown:
        parser.error(f"no such user: {', '.join(sorted(unknown))}; there are {', '.join(planned)}")
    failures = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as temporary:
        for name in given.users or planned:
            began = time.perf_counter()
            user = spend(name, planned[name], (given.keep or Path(temporary)).resolve() / name)
            minutes = (time.perf_counter() - began) / 60
            print(f"{name}: {len(user.failures)} of {len(planned[name])} failed, {minutes:.1f} min")
            failures += [f"{name}: {title}" for title in user.failures]
    print("\n".join(["failed:", *failures]) if failures else "passed")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
