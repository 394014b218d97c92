"""The partition stage: which engine runs what, and where values cross between memory spaces."""

from treadle.engine.partition.check import check_partition, without_borders
from treadle.engine.partition.device import DeviceEngine, part_on_device
from treadle.engine.partition.hosted import leave_to_host
from treadle.engine.partition.stage import partition

__all__ = [
    "DeviceEngine",
    "check_partition",
    "leave_to_host",
    "part_on_device",
    "partition",
    "without_borders",
]
