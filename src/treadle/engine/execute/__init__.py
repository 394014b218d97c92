"""Stage 6, execute: a loaded program run on arrays, once, or many times in one native loop."""

from treadle.engine.execute.device_executor import DeviceExecutor
from treadle.engine.execute.executor import Executor, ProgramInstance
from treadle.engine.execute.runner import Runner
from treadle.engine.execute.scheduler import Scheduler
from treadle.engine.execute.stepwise import Stepwise
from treadle.engine.execute.timeline import Span, Timeline

__all__ = [
    "DeviceExecutor",
    "Executor",
    "ProgramInstance",
    "Runner",
    "Scheduler",
    "Span",
    "Stepwise",
    "Timeline",
]
