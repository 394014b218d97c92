"""Splitting of text before pairs of bytes are joined, by the names that GGUF files give.

Sources: the tokenizer.json of the models, and llama.cpp's list of names.
"""

from __future__ import annotations

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(after: str) -> str:
    """Words that begin with capitals, or have none."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    return f"{begin}{_UPPER}*{_LOWER}+{after}|{begin}{_UPPER}+{_LOWER}*{after}|"


_SLASHES = _REST.replace(r"[\r\n]*|", r"[\r\n/]*|", 1)
_LLAMA3 = (_WORDS + r"\p{N}{1,3}|" + _REST,)
_QWEN2 = (_WORDS + r"\p{N}|" + _REST,)
_DIGITS = (r"\p{N}", GPT2)

_EAST = r"\x{4e00}-\x{9fa5}"
_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    rf"[{_EAST}\x{{800}}-\x{{4e00}}\x{{ac00}}-\x{{d7ff}}]+",
)
# Letters with cases of Unicode's first versions.
_CASED = (
    r"(?:(?![\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c88}\x{2d00}-\x{2d2d}\x{a790}-\x{ab6f}"
    r"\x{10570}-\x{105bc}\x{16e40}-\x{1df1e}])[\p{Lu}\p{Ll}\p{Lt}])"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    _CODER[-1],
    r"\p{N}+",
)
_SIGNS = r"\p{P}\$\+<=>\^~\|"
_FALCON = (rf"[{_SIGNS}`]+", GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (rf"[{_SIGNS}]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    rf"[{_EAST}\x{{3040}}-\x{{309f}}\x{{30a0}}-\x{{30ff}}]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jina-en", "mpt", "jina-de", "jina-es"), (GPT2,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    "deepseek-coder": (*_CODER, r"\p{N}"),
    "deepseek-v3": _DEEPSEEK3,
    "deepseek-llm": _DEEPSEEK,
    "falcon": _FALCON,
    "default": _DEFAULT,
    "tekken": (_cased("") + r"\p{N}|" + _SLASHES,),
    "gpt-4o": (_cased(f"{_SHORT}?") + r"\p{N}{1,3}|" + _SLASHES,),
}
"""Expressions whose matches are pieces, applied one after the other; by name."""

WHOLE_WORDS = frozenset(("llama-bpe", "llama3", "llama-v3", "tekken", "gpt-4o"))
"""Names of those that take a piece as one token where there is one, whatever pairs say."""
