"""From a checkpoint to a model."""

from __future__ import annotations

from treadle.base.blocks.activations import ACTIVATIONS
from treadle.base.errors import DTypeError
from treadle.device import get_device_properties
from treadle.llm.models.config import Config
from treadle.llm.models.declared import Names
from treadle.llm.models.decoder import DecoderStack
from treadle.llm.models.embedder import Embedder
from treadle.llm.models.encoder import EncoderStack
from treadle.llm.models.families import describe, describe_encoder
from treadle.llm.models.matrices import PIECE
from treadle.llm.models.model import DecoderModel
from treadle.llm.models.packing import Packer
from treadle.llm.models.weights import ELEMENTS, Checkpoint, CheckpointWeights

STORED = "stored"
"""Names the element type that the checkpoint has."""


def build(
    checkpoint: Checkpoint, dtype: str = "float32", prompts: str | None = None
) -> DecoderModel:
    """A model with the weights of a checkpoint.

    Args:
        checkpoint: `config` has the values of config.json, `tensor` the weights by the names that
            Hugging Face gives them.
        dtype: what is computed in, "float32" or "bfloat16"; or "stored": matrices stay in quantized
            blocks, where the checkpoint has such, and products are those of `F.block_linear`, or in
            floats of 16 bits, which products widen. The rest is computed in float32.
        prompts: what quantized weights multiply where 32 and more neighboring tokens are read:
            activations rounded to "int16", "bfloat16" or "int8". bfloat16 where the device has
            instructions for its products, else int16, unless it is said. Fewer tokens, and all that
            are generated, have 16 bits.

    Raises:
        CheckpointError: the family is unknown, the config says what cannot be, weights are missing
            or of another shape than it says.
        DTypeError: there is no such element type, or prompts cannot be rounded to it.
    """
    declared = describe(Config(checkpoint.config))
    rounded = _pieces(prompts)
    alike = dtype != STORED or rounded == "int16"
    with Packer() as packer:
        weights, dtype = _weights(checkpoint, declared.names, dtype, rounded, packer)
        stack = DecoderStack(weights, declared)
        weights.check_all_taken()
    weights.release()
    return DecoderModel(stack, checkpoint.config, dtype, 1 if alike else PIECE)


def build_embedder(checkpoint: Checkpoint, dtype: str = "float32") -> Embedder:
    """A model that makes vectors or scores of texts, with the weights of a checkpoint.

    Arguments and errors are those of `build`.
    """
    declared = describe_encoder(Config(checkpoint.config))
    with Packer() as packer:
        weights, _ = _weights(checkpoint, declared.names, dtype, _pieces(None), packer)
        stack = EncoderStack(weights, declared)
        weights.check_all_taken()
    weights.release()
    return Embedder(stack, checkpoint.config, checkpoint.pooling)


def _pieces(prompts: str | None) -> str:
    """Return the rounding of pieces of texts."""
    if prompts is None:
        return "bfloat16" if "bfloat16" in get_device_properties().units else "int16"
    if prompts not in ACTIVATIONS:
        hint = f"use one of {', '.join(ACTIVATIONS)}"
        raise DTypeError("build", "prompts cannot be rounded to it", saw=repr(prompts), hint=hint)
    return prompts


def _weights(
    checkpoint: Checkpoint, names: Names, dtype: str, pieces: str, packer: Packer
) -> tuple[CheckpointWeights, str]:
    """Return the taker of tensors, and the element type that is computed in."""
    if dtype not in (*ELEMENTS, STORED):
        hint = f"use one of {', '.join(ELEMENTS)} and {STORED}"
        raise DTypeError("build", "models do not compute in it", saw=repr(dtype), hint=hint)
    stored = dtype == STORED
    dtype = "float32" if stored else dtype
    weights = CheckpointWeights(
        checkpoint, names, dtype, stored=stored, pieces=pieces, packer=packer
    )
    return weights, dtype
