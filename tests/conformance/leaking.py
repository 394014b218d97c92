"""A backend that leaks, and one without hardware."""

from tests.sim.backend import Sim
from tests.sim.mutations import MUTATIONS

from treadle.backends.api import Availability

backend = MUTATIONS["KeepsWhatIsFreed"].make()


class Unplugged(Sim):
    def probe(self) -> Availability:
        return Availability(False, "nobody plugged it in")


unplugged = Unplugged("none")
