"""Datasets, samplers, transforms, collation and loading in worker processes.

A `DataLoader` asks its sampler for the indices of a batch, reads those samples from the dataset,
runs the transform over them and merges them with the collator, in this process or in workers.
"""

from treadle.data import dataset, transform
from treadle.data.collator import Collator
from treadle.data.dataloader import DataLoader
from treadle.data.failure import DataLoaderError
from treadle.data.parallel import parallel_map
from treadle.data.sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)
from treadle.data.worker_info import WorkerInfo, get_worker_info

__all__ = [
    "Collator",
    "DataLoader",
    "DataLoaderError",
    "Infinite",
    "MapSampler",
    "RandomSampler",
    "ReplacementSampler",
    "Sampler",
    "SequentialSampler",
    "StreamSampler",
    "WorkerInfo",
    "dataset",
    "get_worker_info",
    "parallel_map",
    "transform",
]
