"""From a checkpoint to a model."""

from __future__ import annotations

from treadle.base.errors import DTypeError
from treadle.llm.models.config import Config
from treadle.llm.models.declared import Names
from treadle.llm.models.decoder import DecoderStack
from treadle.llm.models.embedder import Embedder
from treadle.llm.models.encoder import EncoderStack
from treadle.llm.models.families import describe, describe_encoder
from treadle.llm.models.model import Model
from treadle.llm.models.weights import ELEMENTS, Checkpoint, Weights

STORED = "stored"
"""Names the element type that the checkpoint has."""


def build(checkpoint: Checkpoint, dtype: str = "float32") -> Model:
    """A model with the weights of a checkpoint.

    Args:
        checkpoint: `config` has the values of config.json, `tensor` the weights by the names that
            Hugging Face gives them.
        dtype: what is computed in, "float32" or "bfloat16"; or "stored": weights stay in quantized
            blocks, where the checkpoint has such, and products are those of `F.block_linear`. The
            rest is computed in float32.

    Raises:
        CheckpointError: the family is unknown, the config says what cannot be, weights are missing
            or of another shape than it says.
        DTypeError: there is no such element type.
    """
    declared = describe(Config(checkpoint.config))
    weights, dtype = _weights(checkpoint, declared.names, dtype)
    stack = DecoderStack(weights, declared)
    weights.check_all_taken()
    return Model(stack, checkpoint.config, dtype)


def build_embedder(checkpoint: Checkpoint, dtype: str = "float32") -> Embedder:
    """A model that makes vectors or scores of texts, with the weights of a checkpoint.

    Arguments and errors are those of `build`.
    """
    declared = describe_encoder(Config(checkpoint.config))
    weights, _ = _weights(checkpoint, declared.names, dtype)
    stack = EncoderStack(weights, declared)
    weights.check_all_taken()
    return Embedder(stack, checkpoint.config, checkpoint.pooling)


def _weights(checkpoint: Checkpoint, names: Names, dtype: str) -> tuple[Weights, str]:
    """What takes tensors, and the element type that is computed in."""
    if dtype not in (*ELEMENTS, STORED):
        hint = f"use one of {', '.join(ELEMENTS)} and {STORED}"
        raise DTypeError("build", "models do not compute in this", saw=repr(dtype), hint=hint)
    stored = dtype == STORED
    dtype = "float32" if stored else dtype
    return Weights(checkpoint, names, dtype, stored=stored), dtype
