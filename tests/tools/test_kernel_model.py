"""`tools.kernel_model`: the loop that is modelled, and what its instructions count for."""

import pytest

from tools import kernel_model as model

X86 = """\
outer:
\tmovq\t%rax, %rbx
.LBB0_2:
\t.p2align\t4
\tvmovups\t(%rsi), %zmm1
\tvfmadd231ps\t%zmm1, %zmm2, %zmm3
\tvfmadd231ps\t%zmm1, %zmm2, %zmm4 # a remark
\tjne\t.LBB0_2
.LBB0_3:
\tvfmadd231ss\t%xmm1, %xmm2, %xmm3
\tjne\t.LBB0_3
\tjmp\touter
"""


def test_the_busiest_loop_is_one_without_loops_inside():
    found = model.busiest(X86.splitlines())
    assert [line.split()[0] for line in found] == ["vmovups", "vfmadd231ps", "vfmadd231ps", "jne"]
    assert model.busiest(["\tret"]) == []


@pytest.mark.parametrize(
    ("line", "terms"),
    [
        ("\tvfmadd231ps\t(%rax){1to16}, %zmm2, %zmm3", 16),
        ("\tvfmadd231ps\t%ymm1, %ymm2, %ymm3", 8),
        ("\tvpdpbusd\t%zmm1, %zmm2, %zmm3", 64),
        ("\tvdpbf16ps\t%zmm1, %zmm2, %zmm3", 32),
        ("\tvpmaddubsw\t%ymm1, %ymm2, %ymm3", 32),
        ("\tvpmaddwd\t%ymm1, %ymm2, %ymm3", 0),
        ("\tfmla\tv0.4s, v1.4s, v2.s[0]", 4),
        ("\tusdot\tv0.4s, v1.16b, v2.16b", 16),
        ("\tbfdot\tv0.4s, v1.8h, v2.8h", 8),
        ("\tbfmmla\tv0.4s, v1.8h, v2.8h", 16),
        ("\tusmmla\tv0.4s, v1.16b, v2.16b", 32),
    ],
)
def test_terms_of_an_instruction(line, terms):
    assert model.MULTIPLIES.search(line)
    assert model._terms(line) == terms


@pytest.mark.parametrize("machine", model.MACHINES, ids=lambda m: m.name)
def test_every_kernel_has_such_a_loop(machine):
    """A tile keeps sums in registers: multiply-adds outnumber loads."""
    found = model.inner_loop(machine, "float32")
    multiplies = [line for line in found if model.MULTIPLIES.search(line)]
    assert len(multiplies) >= 8
    assert sum(map(model._terms, multiplies)) == 4 * len(multiplies) * (
        machine.target.vector_bytes // 16
    )


def test_models_say_no_less_than_the_limit():
    program = model.analyzer()
    if program is None:
        pytest.skip("llvm-mca is not installed")
    for machine in model.MACHINES[::5]:
        lines = model.inner_loop(machine, "float32")
        multiplies = [line for line in lines if model.MULTIPLIES.search(line)]
        limit = model.run_model(program, machine, multiplies)[0]
        whole = model.run_model(program, machine, lines)[1]
        assert 0.5 * len(multiplies) / 2 <= limit <= whole * 1.02
