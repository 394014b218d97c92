"""Stateless functions of tensors, under MegEngine's names: `import treadle.functional as F`.

Elementwise, math, tensor and network functions are flat; losses are `F.loss.*` and `F.nn.*`,
image functions `F.vision.*`.
"""

import typing

from treadle.base import late, spelling
from treadle.functional import (  # noqa: F401
    activation,
    conv,
    debug_param,
    deformable,
    elemwise,
    external,
    inplace,
    loss,
    math,
    metric,
    nn,
    normalization,
    tensor,
    utils,
    vision,
    windows,
)
from treadle.functional import quantized as quantized
from treadle.functional.activation import *  # noqa: F403
from treadle.functional.attention import scaled_dot_product_attention
from treadle.functional.block_linear import block_experts, block_linear
from treadle.functional.cache import cache_update, cached_attention, rope
from treadle.functional.conv import *  # noqa: F403
from treadle.functional.deformable import *  # noqa: F403
from treadle.functional.detection import deformable_psroi_pooling
from treadle.functional.einsum import einsum
from treadle.functional.elemwise import *  # noqa: F403
from treadle.functional.math import *  # noqa: F403
from treadle.functional.metric import topk_accuracy
from treadle.functional.multi_head_attention import multi_head_attention
from treadle.functional.nn import dropout, embedding, indexing_one_hot, one_hot, pixel_shuffle
from treadle.functional.normalization import *  # noqa: F403
from treadle.functional.region_conv import region_restricted_conv
from treadle.functional.tensor import *  # noqa: F403
from treadle.functional.vision import remap
from treadle.functional.warp import warp_affine, warp_perspective
from treadle.functional.windows import *  # noqa: F403

__all__ = [
    *activation.__all__,
    *conv.__all__,
    *deformable.__all__,
    *elemwise.__all__,
    *math.__all__,
    *normalization.__all__,
    *tensor.__all__,
    *windows.__all__,
    "block_experts",
    "block_linear",
    "cache_update",
    "cached_attention",
    "deformable_psroi_pooling",
    "dropout",
    "einsum",
    "elemwise",
    "embedding",
    "indexing_one_hot",
    "loss",
    "math",
    "metric",
    "multi_head_attention",
    "nn",
    "one_hot",
    "pixel_shuffle",
    "region_restricted_conv",
    "remap",
    "rope",
    "scaled_dot_product_attention",
    "tensor",
    "topk_accuracy",
    "vision",
    "warp_affine",
    "warp_perspective",
]
spelling.KNOWN.update(__all__)


def __getattr__(name: str) -> typing.Any:
    if name == "distributed":
        # It stands above this package, and few programs name it.
        found = late.collectives()
        globals()[name] = found  # So that Python does not ask here again.
        return found
    raise AttributeError(
        f"treadle.functional has no {name!r}{spelling.of_function(name)}", name=name
    )
