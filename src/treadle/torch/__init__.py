"""PyTorch programs on Treadle's devices: `import treadle.torch`, then `model.to("treadle:0")`.

Importing it makes Treadle the accelerator of the process (`torch.accelerator`), which is why
nothing else of Treadle imports it. What belongs to the devices is in `torch.treadle`. Processes
join by `torch.distributed.init_process_group("treadle")`.
"""

from treadle.interop.torch import processes
from treadle.interop.torch.device import register

__all__ = ["register"]

register()
processes.register()
