"""A backend whose device never comes back from a copy."""

import threading
from typing import Any

from tests.sim.backend import Sim
from tests.sim.device import SimBuffer, SimDevice


class Stuck(SimDevice):
    def copy_out(self, dst: memoryview, src: SimBuffer, stream: Any, /) -> None:
        threading.Event().wait(20)


backend = Sim(device=Stuck)
