"""Deformable position-sensitive pooling of regions."""

from __future__ import annotations

import treadle.functional as F
from treadle.module.module import Module
from treadle.tensor import Tensor


class DeformablePSROIPooling(Module):
    """`F.deformable_psroi_pooling` as a layer (Dai et al., Deformable convolutions, 2017).

    `forward(inp, rois, trans)`: each region's bins, moved by `trans`, average the channels that
    stand for their position.

    Args:
        no_trans: leave the bins where they are.
        part_size: parts along each side that `trans` tells apart.
        pooled_h, pooled_w: bins of the result.
        sample_per_part: samples along each side of a bin.
        spatial_scale: extents of the feature map relative to those of the image.
        trans_std: factor of `trans`.
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        no_trans: bool,
        part_size: int,
        pooled_h: int,
        pooled_w: int,
        sample_per_part: int,
        spatial_scale: float,
        trans_std: float = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.no_trans = no_trans
        self.part_size = part_size
        self.pooled_h = pooled_h
        self.pooled_w = pooled_w
        self.sample_per_part = sample_per_part
        self.spatial_scale = spatial_scale
        self.trans_std = trans_std

    def forward(self, inp: Tensor, rois: Tensor, trans: Tensor) -> Tensor:
        out: Tensor = F.deformable_psroi_pooling(
            inp,
            rois,
            trans,
            self.no_trans,
            self.part_size,
            self.pooled_h,
            self.pooled_w,
            self.sample_per_part,
            self.spatial_scale,
            self.trans_std,
        )
        return out
