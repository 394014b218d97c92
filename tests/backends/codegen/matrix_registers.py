"""x86's matrix registers (AMX) in instructions that every processor with vectors of floats has.

What is printed for the registers runs, whatever processor tests it. Operation: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2, "TDPBF16PS" and "TDPBUSD".
"""

from __future__ import annotations

import re

from treadle.backends.codegen.kernel.llvm_writer import spread

_INTRINSIC = re.compile(r"@llvm\.x86\.(ldtilecfg|tilerelease|tile\w+|tdp\w+)")
_FMA = "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)"


def emulated(text: str) -> str:
    """The text of a module whose intrinsics of matrix registers are functions of its own."""
    kept = [
        line
        for line in text.split("\n")
        if line != _FMA and not (line.startswith("declare") and _INTRINSIC.search(line))
    ]
    functions = [_function(name) for name in sorted(set(_INTRINSIC.findall(text)))]
    written = _INTRINSIC.sub(r"@matrices.\1", "\n".join(kept))
    return "\n".join([written, _FMA, _COMMON, *functions])


def _all(bits: int) -> str:
    return spread("i32", 16, str(bits))


_COMMON = f"""
@matrices = internal global [8 x [1024 x i8]] zeroinitializer, align 64

define internal <16 x float> @matrices.flushed(<16 x float> %x) {{
  %bits = bitcast <16 x float> %x to <16 x i32>
  %exponent = and <16 x i32> %bits, {_all(0x7F800000)}
  %small = icmp eq <16 x i32> %exponent, zeroinitializer
  %sign = and <16 x i32> %bits, {_all(-0x80000000)}
  %made = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %bits
  %result = bitcast <16 x i32> %made to <16 x float>
  ret <16 x float> %result
}}
"""


def _function(name: str) -> str:
    if name == "tilerelease":
        return _by_rows(name, "", "", 0, "")
    if name == "ldtilecfg":  # Bytes of all ones, so that what is used before it is set shows.
        ones = f"  store <16 x i32> {_all(-1)}, ptr %row, align 64\n"
        return _by_rows(name, "ptr %configuration", "", 128, ones)
    if name == "tilezero":
        zero = "  store <16 x i32> zeroinitializer, ptr %row, align 64\n"
        return _by_rows(name, "i8 %a", "a", 16, zero)
    if name.startswith("tdp"):
        body = _BFLOAT16 if name == "tdpbf16ps" else _bytes(name)
        return _by_rows(name, "i8 %a, i8 %b, i8 %c", "abc", 16, body)
    source, target = ("there", "row") if "load" in name else ("row", "there")
    moved = f"""\
  %offset = mul i64 %m, %step
  %there = getelementptr i8, ptr %memory, i64 %offset
  %moved = load <16 x i32>, ptr %{source}, align 1
  store <16 x i32> %moved, ptr %{target}, align 1
"""
    return _by_rows(name, "i8 %a, ptr %memory, i64 %step", "a", 16, moved)


def _by_rows(name: str, parameters: str, registers: str, rows: int, body: str) -> str:
    """A function that does something for rows of its first register: for row m, which is at %row.

    A register r is parameter %r and lies at %r.place. Without registers, rows are those of all.
    """
    places = "".join(
        f"  %{r}.number = zext i8 %{r} to i64\n"
        f"  %{r}.place = getelementptr [1024 x i8], ptr @matrices, i64 %{r}.number\n"
        for r in registers
    )
    return f"""
define internal void @matrices.{name}({parameters}) {{
entry:
{places}  br label %next
next:
  %m = phi i64 [0, %entry], [%m.next, %{"last" if "last:" in body else "rows"}]
  %more = icmp ult i64 %m, {rows}
  br i1 %more, label %rows, label %exit
rows:
  %byte = shl i64 %m, 6
  %row = getelementptr i8, ptr {"%a.place" if registers else "@matrices"}, i64 %byte
{body}  %m.next = add i64 %m, 1
  br label %next
exit:
  ret void
}}
"""


def _terms(states: dict[str, str], initial: dict[str, str], body: str, total: str) -> str:
    """A loop over words k of a row of register b and over rows k of register c."""
    carried = "".join(
        f"  %{name} = phi <16 x {kind}> [{initial[name]}, %rows], [%{name}.next, %terms]\n"
        for name, kind in states.items()
    )
    return f"""\
  %total = load <16 x i32>, ptr %row, align 64
  %b.row = getelementptr i8, ptr %b.place, i64 %byte
  br label %terms
terms:
  %k = phi i64 [0, %rows], [%k.next, %terms]
{carried}  %b.word.place = getelementptr i32, ptr %b.row, i64 %k
  %b.word = load i32, ptr %b.word.place, align 4
  %b.first = insertelement <16 x i32> poison, i32 %b.word, i64 0
  %x = shufflevector <16 x i32> %b.first, <16 x i32> poison, <16 x i32> zeroinitializer
  %y.place = getelementptr [16 x i32], ptr %c.place, i64 %k
  %y = load <16 x i32>, ptr %y.place, align 64
{body}  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, 16
  br i1 %k.more, label %terms, label %last
last:
{total}"""


def _flushed(result: str, given: str) -> str:
    return f"  %{result} = call <16 x float> @matrices.flushed(<16 x float> %{given})\n"


def _half(part: str, how: str) -> str:
    """One product of each pair, added to the sum of its kind."""
    factors = ""
    for x in "xy":
        factors += f"  %{x}.{part} = {how.format(x)}\n"
        factors += f"  %{x}.{part}.float = bitcast <16 x i32> %{x}.{part} to <16 x float>\n"
        factors += _flushed(f"{x}.{part}.factor", f"{x}.{part}.float")
    arguments = ", ".join(
        f"<16 x float> %{v}" for v in (f"x.{part}.factor", f"y.{part}.factor", part)
    )
    sums = f"  %{part}.exact = call <16 x float> @llvm.fma.v16f32({arguments})\n"
    return factors + sums + _flushed(f"{part}.next", f"{part}.exact")


_BFLOAT16 = _terms(
    {"even": "float", "odd": "float"},
    {"even": "zeroinitializer", "odd": "zeroinitializer"},
    _half("even", f"shl <16 x i32> %{{}}, {_all(16)}")
    + _half("odd", f"and <16 x i32> %{{}}, {_all(-0x10000)}"),
    "  %both.exact = fadd <16 x float> %even.next, %odd.next\n"
    + _flushed("both", "both.exact")
    + "  %total.float = bitcast <16 x i32> %total to <16 x float>\n"
    + _flushed("before", "total.float")
    + "  %sum = fadd <16 x float> %before, %both\n"
    + _flushed("after", "sum")
    + "  store <16 x float> %after, ptr %row, align 64\n",
)


def _bytes(name: str) -> str:
    """Products of four bytes; the letters behind `tdpb` say which of them have a sign."""
    before, body = "sum", ""
    for position in range(4):
        for x, sign in zip("xy", name.removeprefix("tdpb"), strict=False):
            shift, left = "ashr" if sign == "s" else "lshr", _all(24 - 8 * position)
            body += f"  %{x}.high{position} = shl <16 x i32> %{x}, {left}\n"
            body += f"  %{x}.{position} = {shift} <16 x i32> %{x}.high{position}, {_all(24)}\n"
        after = f"sum.{position}" if position < 3 else "sum.next"
        body += f"  %product.{position} = mul <16 x i32> %x.{position}, %y.{position}\n"
        body += f"  %{after} = add <16 x i32> %{before}, %product.{position}\n"
        before = after
    store = "  store <16 x i32> %sum.next, ptr %row, align 64\n"
    return _terms({"sum": "i32"}, {"sum": "%total"}, body, store)


__all__ = ["emulated"]
