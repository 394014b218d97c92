"""The fuzzer itself: it repeats, it notices, it makes small, and it outlives what it runs."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import numpy as np
import pytest
from tests.backends.interpreted import InterpretedExecutable, interpreting
from tests.fuzz import modes
from tests.fuzz.__main__ import KNOWN, Worker, packed, program_of
from tests.fuzz.families import caches, quantized_blocks, sampled
from tests.fuzz.generate import Generator, generate, out_of_range, targets
from tests.fuzz.minimize import minimized
from tests.fuzz.modes import MODES, differences
from tests.fuzz.program import SAMPLED, Leaf, Program

from treadle.backends.codegen.kernel.text import kernel_text


@pytest.mark.parametrize("seed", range(6))
def test_a_few_programs(seed: int) -> None:
    """`make fuzz-programs` runs as many as there is time for."""
    program = generate(seed)
    assert program == generate(seed) == program_of(packed(program))
    names = sorted(MODES)
    assert differences(program, ["reference", "level 2", names[seed % len(names)]]) == {}


@pytest.mark.parametrize(("target", "most"), [("avx2", 8), ("avx512", 16)])
def test_programs_for_processors_that_are_not_here(
    target: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels are interpreted, in programs that are planned for the target."""
    lanes: set[int] = set()
    launch = InterpretedExecutable.launch

    def noted(self: Any, run: Any, bases: Any) -> None:
        lanes.update(int(n) for n in re.findall(r"float32x(\d+)", kernel_text(run.kernel)))
        launch(self, run, bases)

    monkeypatch.setattr(InterpretedExecutable, "launch", noted)
    with interpreting(target):
        assert not differences(PLANTED, ["level 2", "program file"])
        assert max(lanes) == most
        assert not differences(PLANTED, ["dynamic"])  # numbers that a call brings
        monkeypatch.setattr(InterpretedExecutable, "launch", lambda *_: None)
        assert "wrong" in differences(PLANTED, ["level 2"])["level 2"]


PLANTED = Program(
    {"x0": Leaf("input", "float32", (3, 4), 1), "p0": Leaf("param", "float32", (4, 2), 2)},
    (
        "v1 = F.relu(x0)",
        "v2 = F.matmul(v1, p0 * 2.0)",
        "v3 = F.tanh(v2) + 0.5",
        "v4 = v3[1:] * 2.0",
        "v5 = F.sin(v1)",
    ),
    ("v4", "v5"),
    grads=True,
)


def test_interpreted_kernels_read_rows_backwards() -> None:
    leaves = {
        "x0": Leaf("input", "float32", (16, 5), 1),
        "p0": Leaf("param", "float32", (16, 8), 2),
    }
    program = Program(
        leaves, ("v1 = x0[None, ::-1, -2]", "v2 = F.matmul(v1, p0)"), ("v2",), grads=False
    )
    with interpreting("avx512"):
        assert not differences(program, ["level 2"])


def test_a_fault_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Program) -> Any:
        found = MODES["level 2"](program)
        if any("tanh" in line for line in program.lines):
            found[2][0] = found[2][0] + np.float32(0.01)
        return found

    monkeypatch.setitem(modes.MODES, "planted", wrong)
    assert "wrong" in differences(PLANTED, ["planted"])["planted"]
    assert not differences(PLANTED, ["level 2"])
    small = minimized(PLANTED, lambda p: bool(differences(p, ["planted"])))
    assert small.lines == ("v3 = F.tanh(v2) + 0.5",) and small.outputs == ("v3",)
    scope: dict[str, Any] = {}
    exec(small.script("level 2").replace("print(differences", "found = (differences"), scope)
    assert scope["found"] == {}


def test_errors_count_too() -> None:
    broken = PLANTED.without(lines=(*PLANTED.lines[:-1], "v5 = v1.nothing"))
    assert "AttributeError" in differences(broken, ["level 2"])["eager"]
    index = Leaf("input", "int32", (3,), 4, 0, 3)
    rows = Program({"x0": PLANTED.leaves["x0"], "x1": index}, ("v1 = x0[x1]",), ("v1",))
    beyond = out_of_range(rows, 0)
    assert modes.Truth(beyond).error is not None
    assert differences(beyond, ["level 2", "trace"]) == {}


def test_a_process_that_ends_is_survived() -> None:
    deadly = PLANTED.without(
        lines=("v1 = F.relu(x0)", "v2 = __import__('os').abort()"), outputs=("v2",), grads=False
    )
    worker = Worker("")
    try:
        worker.ask({"program": packed(deadly), "modes": ["level 2"]})
        assert "died" in worker.answer()
    finally:
        worker.end()


def test_a_dropped_rounding_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of 16-bit arithmetic have one right result, which is compared bit by bit."""
    leaves = {"x0": Leaf("input", "float16", (37,), 1), "x1": Leaf("input", "float16", (37,), 2)}
    lines = ("v1 = x0 / 3.0 + 0.3", "v2 = v1 * x1 + x0", "v3 = 1.0 - v2 * v1")
    program = Program(leaves, lines, ("v3",), coarse="float16")
    other = program.without(lines=("v3 = F.exp(x0) + x1",))

    def wrong(program: Program) -> Any:
        found = MODES["level 2"](program)
        found[0][0] = np.nextafter(found[0][0], np.float16(9))
        return found

    monkeypatch.setitem(modes.MODES, "planted", wrong)
    assert program.exact and not differences(program, ["level 2"])
    assert "wrong" in differences(program, ["planted"])["planted"]
    assert not other.exact and not differences(other, ["planted"])


def test_every_op_can_be_a_line() -> None:
    missing = []
    for name in SAMPLED:
        for seed in range(8):
            g = Generator(seed)
            made = sampled(g, name)
            if made is not None and g.add(*made):
                break
        else:
            missing.append(name)
    assert missing == ["make_complex"]  # Complex numbers are no results; F.real and F.imag are.


def test_known_differences_only_shrink() -> None:
    known = tomllib.loads(KNOWN.read_text())
    entries = known.get("difference", [])
    assert len(entries) == known["most"] <= 0, "raising the number needs a reason in the review"
    assert all(len(e["reason"]) > 20 for e in entries)


def test_calls_behind_training_that_diverges_mean_nothing() -> None:
    """Gradients of a sine of 10^9 hang on its last bit, and so do all parameters after them."""
    program = Program(
        {
            "x1": Leaf("input", "float32", (1, 3, 7, 7), 563109019),
            "p1": Leaf("param", "float32", (3, 3, 3, 3), 796176694),
            "p5": Leaf("param", "float32", (2, 20), 924819213),
        },
        (
            "v1 = F.conv2d(x1, (F.relu(p1) - 0.1) * 0.16666666666666666, stride=2, padding=1)",
            "v2 = F.matmul(F.avg_pool2d(v1, 2, 2), p5)",
            "(v3,), (v4,) = mge.jit.scan(lambda s, e: (s * 0.5 + e, s.sum() + e), (v2[0],), (v2,))",
            "v5 = F.prod(v4, axis=-2, keepdims=True)",
        ),
        ("v4", "v5"),
        grads=True,
        optimizer="mge.optimizer.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)",
    )
    truth = modes.Truth(program)
    assert all(np.isfinite(s).all() for s in truth.spread[0])
    assert all(np.isinf(s).all() for s in truth.spread[2])
    assert not differences(program, ["no together"])


def test_programs_that_were_found() -> None:
    """What the fuzzer has met, made small."""
    x = Leaf("input", "float32", (8, 4), 8)
    shapes = Program({"x0": x}, ("v1 = F.where(x0 > 0.1, x0, F.zeros_like(x0))",), ("v1",))
    assert differences(shapes, ["model file"]) == {}
    # Gradients that cancel to 0: an order of sums that leaves 1e-9 is a whole step of AdamW.
    leaves = {
        "x5": Leaf("input", "float32", (2, 2, 2, 1), 410953392),
        "p2": Leaf("param", "float32", (3, 2), 103578305),
        "p4": Leaf("param", "float32", (2, 1, 1, 2, 2), 510841444),
    }
    lines = (
        "v2 = p2.reshape(1, 3, 2, 1).transpose(0, 2, 3, 1)",
        "v5 = F.matmul(x5, F.broadcast_to(v2, (2, 2, 1, 3)))",
        "v14 = F.conv2d(F.sign(v5), F.tanh(p4), padding=1, stride=1, groups=2)",
    )
    step = Program(leaves, lines, ("v14",), True, optimizer="mge.optimizer.AdamW(params, lr=0.01)")
    assert differences(step, ["level 2"]) == {}
    # Behind a norm gradients cancel: what is left of them are the last digits of the norm's values.
    norm = Program(
        {"p1": Leaf("param", "float32", (2, 1, 3, 3, 3), 208736872)},
        (
            "v3 = F.layer_norm(p1, 3, False)",
            "(v6,), (v7,) = mge.jit.scan(lambda s, e: (s * 0.5 + e, s.sum() + e), (v3[0],), (v3,))",
        ),
        ("v7",),
        grads=True,
    )
    assert differences(norm, ["level 0"]) == {}


@pytest.mark.parametrize(
    ("maker", "op"),
    [(caches, "cache_update"), (caches, "cached_attention"), (caches, "rope"),
     (quantized_blocks, "block_linear")],
)  # fmt: skip
def test_language_models_are_in_programs(maker: Any, op: str) -> None:
    """Kept keys, positions and weights in blocks, of any extents and not the samples' alone."""
    for seed in range(9):
        g = Generator(seed)
        made = maker(g)
        if made is not None and g.add(f"v99 = {made}", ["v99"]) and f"F.{op}(" in str(g.lines):
            break
    else:
        pytest.fail(f"nine programs without {op}")
    program = Program(dict(g.leaves), tuple(g.lines), ("v99",), coarse="bfloat16")
    assert len(targets(g.lines[-1])) == 1, "programs are cut by lines"
    assert differences(program, ["level 2"]) == {}
