"""Transforms of samples; the vision transforms join them in `transform.vision`."""

from treadle.data.transform.base import PseudoTransform, Transform
from treadle.data.transform.compose import Compose

__all__ = ["Compose", "PseudoTransform", "Transform"]
