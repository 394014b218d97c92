"""Targets: for each kind of place, what its stages do and what executes the result.

`host` and `device` compile (`compiled` has what they share), `op_by_op` serves devices without a
compiler, `several` cuts a program by device.
"""

from __future__ import annotations

from treadle.backends.program import Compiler
from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import compiling, engines_of
from treadle.engine.options import Options
from treadle.engine.spread import ValuePlaces
from treadle.engine.targets.compiled import CompiledTarget
from treadle.engine.targets.device import DeviceTarget
from treadle.engine.targets.host import Host
from treadle.engine.targets.op_by_op import OpByOp
from treadle.engine.targets.several import Several
from treadle.engine.targets.target import Build, Divided, EngineTarget, Made, StagedProgram


def target_of(
    options: Options,
    home: CompNode | None,
    places: ValuePlaces | None,
    crossing: Compiler | None,
    build: Build,
) -> EngineTarget:
    """The target of a program.

    Args:
        options: of the compilation.
        home: the device that the program lives on; None for the host.
        places: where its values are, if there are several devices.
        crossing: lowers the ops for another machine, in place of the home's compiler.
        build: takes other graphs through the stages.

    Raises:
        CompileError: the options name an engine that is not there.
    """
    if places is not None:
        return Several(options, places, build)
    if home is None or home.on_host:
        return Host(options, build, crossing)
    if compiling(engines_of(options, home.kind)):
        return DeviceTarget(options, build, crossing, home)
    return OpByOp(options, home, crossing)


__all__ = ["CompiledTarget", "Divided", "EngineTarget", "Made", "StagedProgram", "target_of"]
