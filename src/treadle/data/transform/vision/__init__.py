"""Transforms of images and of what belongs to them: masks, boxes, points."""

from treadle.data.transform.compose import Compose
from treadle.data.transform.vision import functional
from treadle.data.transform.vision.color import (
    BrightnessTransform,
    ColorJitter,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    Normalize,
    SaturationTransform,
)
from treadle.data.transform.vision.crop import CenterCrop, RandomCrop, RandomResizedCrop
from treadle.data.transform.vision.flip import RandomHorizontalFlip, RandomVerticalFlip
from treadle.data.transform.vision.resize import (
    Pad,
    RandomResize,
    Resize,
    ShortestEdgeResize,
)
from treadle.data.transform.vision.torch_compose import TorchTransformCompose
from treadle.data.transform.vision_transform import ToMode, VisionTransform

__all__ = [
    "BrightnessTransform",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ContrastTransform",
    "GaussianNoise",
    "HueTransform",
    "Lighting",
    "Normalize",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResize",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "SaturationTransform",
    "ShortestEdgeResize",
    "ToMode",
    "TorchTransformCompose",
    "VisionTransform",
    "functional",
]
