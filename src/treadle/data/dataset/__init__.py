"""Datasets: indexable ones, streams, arrays in memory and concatenation."""

from treadle.data.dataset.array import ArrayDataset, ConcatDataset
from treadle.data.dataset.base import Dataset, StreamDataset

__all__ = ["ArrayDataset", "ConcatDataset", "Dataset", "StreamDataset"]
