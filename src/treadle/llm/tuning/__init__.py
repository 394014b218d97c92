"""Fine-tuning: additions of low rank to the products of a model, trained, written and read."""

from treadle.llm.tuning.course import Batches, Course, Progress, keep, resume, take
from treadle.llm.tuning.examples import Example, Reader, packed
from treadle.llm.tuning.files import adapter_for, merged, read_adapter, write_adapter
from treadle.llm.tuning.lora import Adapter, Lora, fresh
from treadle.llm.tuning.tuner import Rows, Schedule, Tuner

__all__ = [
    "Adapter",
    "Batches",
    "Course",
    "Example",
    "Lora",
    "Progress",
    "Reader",
    "Rows",
    "Schedule",
    "Tuner",
    "adapter_for",
    "fresh",
    "keep",
    "merged",
    "packed",
    "read_adapter",
    "resume",
    "take",
    "write_adapter",
]
