"""From a checkpoint to a model."""

from __future__ import annotations

from treadle.base.errors import DTypeError
from treadle.llm.models.config import Config
from treadle.llm.models.decoder import DecoderStack
from treadle.llm.models.families import describe
from treadle.llm.models.model import Model
from treadle.llm.models.weights import ELEMENTS, Checkpoint, Weights


def build(checkpoint: Checkpoint, dtype: str = "float32") -> Model:
    """A model with the weights of a checkpoint.

    Args:
        checkpoint: `config` has the values of config.json, `tensor` the weights by the names that
            Hugging Face gives them.
        dtype: what is computed in, "float32" or "bfloat16".

    Raises:
        CheckpointError: the family is unknown, the config says what cannot be, weights are missing
            or of another shape than it says.
        DTypeError: there is no such element type.
    """
    if dtype not in ELEMENTS:
        raise DTypeError("build", "models compute in float32 or bfloat16", saw=repr(dtype))
    declared = describe(Config(checkpoint.config))
    weights = Weights(checkpoint, declared.names, dtype)
    stack = DecoderStack(weights, declared)
    weights.check_all_taken()
    return Model(stack, checkpoint.config, dtype)
