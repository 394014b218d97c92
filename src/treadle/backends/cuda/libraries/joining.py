"""Several lowered ops as one: what one writes into a workspace, another reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.backends.api import Support, no
from treadle.backends.cuda.libraries.products import ProductCall
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.symbol import Dim


class Joining:
    """Launches in order, with the workspaces and constants of all of them."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self._workspaces: list[int] = []
        self._constants: list[Array] = []

    def workspace(self, nbytes: int) -> Ref:
        """Scratch memory of the whole."""
        self._workspaces.append(nbytes)
        return Ref("workspace", len(self._workspaces) - 1)

    def multiply(
        self, calls: Sequence[ProductCall], x: Ref, y: Ref, result: Ref, dtype: DType
    ) -> None:
        """Calls of the library."""
        for call in calls:
            product, itemsize = call.product, dtype.itemsize
            places = tuple(
                replace(ref, offset=ref.offset + elements * itemsize)
                for ref, elements in ((result, call.result), (x, call.x), (y, call.y))
            )
            layouts = (product.first, product.second, product.result)
            nbytes = sum(product.count * v.rows * v.columns * itemsize for v in layouts)
            flops = 2 * product.products
            self.launches.append(Launch(product, places, flops=flops, nbytes=nbytes))

    def add(
        self, lowered: Lowered, inputs: Sequence[Ref], outputs: Sequence[Ref]
    ) -> Support | None:
        """The launches of a lowered op on these places; why they cannot be added."""
        if lowered.views or lowered.kept or lowered.prelude:
            return no("layout", "a part of the op keeps memory, or is a view of its operand")
        spaces = [self.workspace(int(nbytes)) for nbytes in lowered.workspaces]
        first = len(self._constants)
        self._constants += lowered.constants
        constants = [Ref("constant", first + i) for i in range(len(lowered.constants))]
        places = {"input": inputs, "output": outputs, "workspace": spaces, "constant": constants}

        def place(argument: Ref | Dim) -> Ref | Dim:
            if not isinstance(argument, Ref):
                return argument
            found = places[argument.kind][argument.index]
            return replace(found, offset=found.offset + argument.offset)

        for launch in lowered.launches:
            arguments = tuple(place(a) for a in launch.arguments)
            self.launches.append(replace(launch, arguments=arguments))
        return None

    def lowered(self) -> Lowered:
        """All of it."""
        return Lowered(
            tuple(self.launches),
            workspaces=tuple(self._workspaces),
            constants=tuple(self._constants),
        )
