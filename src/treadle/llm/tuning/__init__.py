"""Fine-tuning: additions of low rank to the products of a model, trained, written and read."""

from treadle.llm.tuning.files import merged, read_adapter, write_adapter
from treadle.llm.tuning.lora import Adapter, Lora, fresh
from treadle.llm.tuning.tuner import Rows, Schedule, Tuner

__all__ = [
    "Adapter",
    "Lora",
    "Rows",
    "Schedule",
    "Tuner",
    "fresh",
    "merged",
    "read_adapter",
    "write_adapter",
]
