"""From a checkpoint to a model."""

from __future__ import annotations

from treadle.base.errors import DTypeError
from treadle.llm.models.config import Config
from treadle.llm.models.decoder import DecoderStack
from treadle.llm.models.families import describe
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
    if dtype not in (*ELEMENTS, STORED):
        hint = f"use one of {', '.join(ELEMENTS)} and {STORED}"
        raise DTypeError("build", "models do not compute in this", saw=repr(dtype), hint=hint)
    stored = dtype == STORED
    dtype = "float32" if stored else dtype
    declared = describe(Config(checkpoint.config))
    weights = Weights(checkpoint, declared.names, dtype, stored=stored)
    stack = DecoderStack(weights, declared)
    weights.check_all_taken()
    return Model(stack, checkpoint.config, dtype)
