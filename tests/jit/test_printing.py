"""`jit.print` and `jit.breakpoint`: what is shown, when, how often, and what files keep of it."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.sim.backend import Sim

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.log import get_logger
from treadle.serialization import load_program, save_program

__all__ = ["plugins"]

WAYS: dict[str, Callable[..., object]] = {
    "eager": lambda f: f,
    "compiled": jit.compile,
    "traced": lambda f: jit.trace(f, symbolic=True),
    "traced op by op": lambda f: jit.trace(f, symbolic=False),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[..., object]:
    return WAYS[request.param]


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_lines_come_in_program_order_at_every_call(
    way: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    def f(x):
        jit.print("begin")
        y = x * 2
        jit.print("y {} of {n}, mean {:.2f}", y, y.mean(), n=y.shape)
        jit.print("unused {}", F.exp(x * 0))  # Nobody else asks for it.
        jit.print("unused {}", F.exp(x * 0))  # Equal, and not the same.
        return F.relu(y) + 1

    f = way(f)
    for i in range(2):
        f(mge.tensor([i, 1.0], dtype="float32"))
        one = ["begin", f"y [{2 * i}. 2.] of (2,), mean {i + 1}.00", *["unused [1. 1.]"] * 2]
        assert shown(capsys) == one


FORMATS = {
    "{:.1f}|{!r}": ("[1.0 -2.5]|3", lambda x, n: (x, n)),
    "{1} {0:+.2f}": ("3 [+1.00 -2.50]", lambda x, n: (x, n)),
    "{{{}}}": ("{3}", lambda x, n: (n,)),
    "{:>{}}!": ("     3!", lambda x, n: (n, 6)),
    "{.shape} {[1]}": ("(2,) -2.5", lambda x, n: (x, x)),
    "x": ("x [ 1.  -2.5] 7", lambda x, n: (x, 7)),
    "{} {}": ("{a} 3", lambda x, n: ("{a}", n)),
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats(fmt: str, way: Callable[..., object], capsys: pytest.CaptureFixture[str]) -> None:
    wanted, values = FORMATS[fmt]

    def f(x, n):
        jit.print(fmt, *values(x, n))
        return x + 1

    way(f)(mge.tensor([1.0, -2.5]), mge.tensor(3))
    assert shown(capsys) == [wanted]


def test_what_is_no_text_is_printed_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    jit.print(mge.tensor(1.5), None, mge.tensor([True]))
    jit.print()
    assert shown(capsys) == ["1.5 None [ True]", ""]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: jit.print("{} {}", x), IndexError, "more fields than the 1 values"),
        (lambda x: jit.print("{a}", x), KeyError, "names 'a', which is not given"),
        (lambda x: jit.print("{}", x, x), ValueError, "shows value 1"),
        (lambda x: jit.print("loss", a=x), KeyError, "no field of the format is named 'a'"),
        (lambda x: jit.print("{:d}", x), TypeError, "the format 'd' does not fit float32"),
        (lambda x: jit.print("{", x), ValueError, "[Ss]ingle '{'"),
        (lambda x: jit.breakpoint(3), TypeError, "value_0 is not a tensor but int"),
    ],
)
def test_slips_are_told_where_they_are_made(call, error, text, way) -> None:
    with pytest.raises(error, match=text):
        way(lambda x: (call(x), x)[1])(mge.tensor([1.0]))


def test_loops_and_branches_print_at_every_turn(
    way: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    def turn(s, x):
        jit.print("scan {:.0f} {:.0f}", s, x)
        return s + x, s

    def small(n, x):
        jit.print("test {}", n)
        return n < 2

    def f(x):
        (total,), _ = jit.scan(turn, (mge.tensor(0.0),), (x,))
        _ = jit.while_loop(small, lambda n, s: (n + 1, s), (mge.tensor(0), total))

        def negative(x):
            jit.print("negative")
            return -x

        return jit.cond(total < 0, negative, lambda x: x, total)

    f = way(f)
    loop = ["test 0", "test 1", "test 2"]
    f(mge.tensor([1.0, 2.0]))
    assert shown(capsys) == ["scan 0 1", "scan 1 2", *loop]
    f(mge.tensor([-1.0, 0.0]))
    assert shown(capsys) == ["scan 0 -1", "scan -1 0", *loop, "negative"]


@pytest.mark.parametrize("inside", [True, False], ids=["step", "forward"])
def test_a_forward_prints_once_though_its_gradient_runs_it_again(
    inside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gradients of scans and branches, and of whole functions, compute the forward once more."""
    w = mge.Parameter(2.0)
    gm = mge.autodiff.GradManager().attach([w])

    def turn(s, x):
        jit.print("turn {:.0f}", s)
        return s * w + x, s

    def branch(s):
        jit.print("branch {:.0f}", s)
        return s * w

    def forward(x):
        (s,), _ = jit.scan(turn, (mge.tensor(0.0),), (x,))
        s = jit.cond(s > 0, branch, lambda s: s, s)
        jit.print("loss {:.0f}", s)
        return s

    def step(x):
        with gm:
            loss = forward(x)
            gm.backward(loss)
        return loss

    if inside:
        step = jit.compile(step)
    else:
        forward = jit.compile(forward)
    for _ in range(2):
        w.grad = None
        step(mge.tensor([1.0, 2.0, 3.0]))
        assert shown(capsys) == ["turn 0", "turn 1", "turn 4", "branch 11", "loss 22"]
        assert w.grad.item() == 11 + 2 * (2 * 2 + 2)


def test_ops_beside_a_print_are_fused_as_without_it() -> None:
    @jit.compile
    def f(x):
        y = F.exp(x)
        jit.print("{}", y.sum())
        return F.relu(F.sin(y) * 2 + 1).sum()

    assert "1 launches, 1 host tasks" in f.explain(mge.tensor(np.ones((64, 64), "float32")))


def test_files_hold_no_prints_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def f(x):
        def turn(s, e):
            jit.print("{}", s)
            return s + e, s

        (s,), _ = jit.scan(turn, (x[0],), (x,))
        jit.breakpoint(s)
        return s

    x = mge.tensor([1.0, 2.0])
    traced = jit.trace(f, symbolic=True, capture_as_const=True)
    get_logger().addHandler(caplog.handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "breakpointhook", lambda: None)
        traced(x)
        model, program = io.BytesIO(), io.BytesIO()
        traced.dump(model)
        save_program(f, program, x)
    get_logger().removeHandler(caplog.handler)
    assert len(shown(capsys)) == 2
    texts = [r.getMessage() for r in caplog.records]
    assert [t.partition(":")[0] for t in texts] == ["dump f", "save_program"]
    assert all(t.count("test_printing.py:") == 2 for t in texts), texts
    assert load_program(io.BytesIO(program.getvalue()))(x).item() == 4
    network = mge.utils.network.Network.load(io.BytesIO(model.getvalue()))
    assert not [o for o in network.all_oprs if o.type in ("print", "pause", "Print", "Pause")]
    assert shown(capsys) == []


PAUSED = """
@mge.jit.compile
def step(x):
    y = x * 2
    mge.jit.breakpoint(WHAT)
    return y.sum()  # the line behind

print("result", step(mge.tensor([1.0, 2.0])).item())
"""


def test_the_debugger_opens_at_the_line_with_the_values(tmp_path: Path) -> None:
    """Four functions one after the other; the last is left."""
    parts = [
        ("", "p y.tolist(), x.tolist()\nc\n", "([2.0, 4.0], [1.0, 2.0])"),
        ("total=y.sum()", "p total\nl\nc\n", "float32(6.0)"),
        ("y", "y[0] = 100\nc\n", "result 6.0"),
        ("", "q\n", "BdbQuit"),
    ]
    script = tmp_path / "paused.py"
    texts = [PAUSED.replace("WHAT", what) for what, _, _ in parts]
    script.write_text("import treadle as mge\n" + "print('next', flush=True)\n".join(texts))
    done = subprocess.run(
        [sys.executable, str(script)],
        input="".join(commands for _, commands, _ in parts),
        capture_output=True,
        text=True,
        timeout=120,
    )
    shown = done.stdout.split("next\n")
    assert len(shown) == len(parts), done.stdout + done.stderr
    shown[-1] += done.stderr
    for output, (_, commands, wanted) in zip(shown, parts, strict=True):
        assert wanted in output and "the line behind" in output, output
        assert ("result 6.0" in output) == ("q" not in commands)


def test_values_on_a_device_are_shown(
    way: Callable[..., object], plugins: Plugins, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.offer("sim", Sim())

    def f(x):
        y = x * 2
        jit.print("y {}, mean {:.2f}", y, y.mean())
        return y + 1

    f = way(f)
    for i in range(2):
        y = f(mge.tensor([i, 1.0], dtype="float32", device="sim0"))
        assert str(y.device).startswith("sim0")
        assert y.tolist() == [2 * i + 1, 3.0]
        assert shown(capsys) == [f"y [{2 * i}. 2.], mean {i + 1}.00"]
