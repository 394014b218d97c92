"""Lines of LLVM's text that read and write words."""

from __future__ import annotations

from treadle.interop.torch.native.layout import CONTEXT


def read(name: str, base: str, word: int, kind: str = "i64") -> str:
    """`%name` is word number `word` behind `%base`."""
    return f"""  %{name}.at = getelementptr i64, ptr %{base}, i64 {word}
  %{name} = load {kind}, ptr %{name}.at, align 8"""


def put(value: str, base: str, word: int, kind: str = "i64") -> str:
    """Word number `word` behind `%base` becomes a value; once for each word in a function."""
    return f"""  %{base}.{word}.at = getelementptr i64, ptr %{base}, i64 {word}
  store {kind} {value}, ptr %{base}.{word}.at, align 8"""


def known(name: str, what: str, kind: str = "ptr") -> str:
    """`%name` is what the context has of this name."""
    return f"""  %{name}.at = getelementptr i64, ptr @context, i64 {CONTEXT[what]}
  %{name} = load {kind}, ptr %{name}.at, align 8"""
