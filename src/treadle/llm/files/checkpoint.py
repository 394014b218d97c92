"""Content of a language model's file, whichever kind of file it is.

Names, shapes and configs are those of Hugging Face's libraries. Tensors are made when they are
asked for: views of a mapped file, arrays that are read, blocks that stay blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten


def _nothing(rows: slice | None = None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that was not read yet: its shape, what makes it, what gives the memory back that it
    (None), or some of its rows, took.
    """

    shape: tuple[int, ...]
    make: Callable[[], Array | BlockTensor]
    release: Callable[[slice | None], None] = _nothing


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer that the library tokenizers reads.

    Attributes:
        path: of `tokenizer.json`.
        config: what `tokenizer_config.json` holds.
    """

    path: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenizerTables:
    """A tokenizer as GGUF files have it.

    Attributes:
        model: "gpt2" (pairs of bytes), "llama" (pieces by score), "bert" or "t5".
        pre: the name of the expression that splits text; "" where there is none.
        tokens: by id.
        scores, types: of tokens; types are 1 normal, 2 unknown, 3 control, 4 of users, 5 unused,
            6 a byte.
        merges: pairs with a space between, the first to be joined first.
        ids: of special tokens, by `bos`, `eos`, `eot`, `unknown`, `padding`, `seperator`, ...
        flags: `add_bos_token`, `add_eos_token`, `add_space_prefix`, ... as far as they are there.
    """

    model: str
    pre: str
    tokens: list[str]
    scores: Array | None
    types: Array | None
    merges: list[str]
    ids: Mapping[str, int]
    flags: Mapping[str, bool]


TokenizerSource: TypeAlias = "TokenizerFile | TokenizerTables"


@dataclass(frozen=True)
class ModelCheckpoint:
    """A language model in a file, see `open_checkpoint`.

    Attributes:
        path: of the file or directory.
        config: the keys of config.json; those of GGUF are translated.
        generation: the keys of generation_config.json; `eos_token_id` is a list.
        tokens: the tokenizer, None where there is none.
        chat_template: a Jinja template of conversations. It is a program of whoever made the file:
            it belongs into a sandbox.
        pooling: of encoders, how rows become one: `mode` ("mean", "cls" or "last") and `normalize`.
        tensors: by name.
        metadata: of GGUF files, by key, as they are.
    """

    path: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer: TokenizerSource | None
    chat_template: str | None
    pooling: dict[str, Any]
    tensors: Mapping[str, Stored]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """The tensors, in the order of the files."""
        return tuple(self.tensors)

    def tensor(self, name: str) -> Array | BlockTensor:
        """A tensor: an array or, where the file has blocks, those.

        Raises:
            CheckpointError: the file has no such tensor.
        """
        return self._stored(name).make()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it.

        Raises:
            CheckpointError: the file has no such tensor.
        """
        return self._stored(name).shape

    def release(self, name: str, rows: slice | None = None) -> None:
        """Release the memory that a tensor took of a mapped file, since it was copied or packed.

        Args:
            name: of the tensor.
            rows: only these, counted through all axes but the last.
        """
        self._stored(name).release(rows)

    def no_tokenizer(self) -> CheckpointError:
        """Return the error for a checkpoint without a tokenizer."""
        hint = "put tokenizer.json beside the weights"
        return CheckpointError(self.path, "the model has no tokenizer", hint=hint)

    def _stored(self, name: str) -> Stored:
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(
                self.path,
                f"the model lacks the tensor {shorten(name)}",
                saw=", ".join(map(shorten, list(self.tensors)[:8])) + ", ...",
                hint=f"the config says that this is a {self.config.get('model_type')}",
            )
        return found
