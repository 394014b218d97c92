"""`compare_layers`: every layer of a network on a device beside the same layer on the host."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from treadle.autodiff import no_grad
from treadle.base import tree
from treadle.base.difference import Difference, difference, magnitude
from treadle.base.errors import TreadleError
from treadle.base.table import lines
from treadle.module import Module
from treadle.tensor import Tensor
from treadle.utils.check_ops import Checked, CompareOps


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One output of one layer.

    Attributes:
        path: of the layer in the network; "" for the network itself.
        kind: the layer's class.
        output: number and type of the output.
        difference: from the same layer on the other device.
    """

    path: str
    kind: str
    output: str
    difference: Difference


@dataclass(frozen=True)
class LayersCompared:
    """Result of `compare_layers`; prints as a table.

    Attributes:
        device, against: what was compared with what.
        layers: every output of every layer, in the order in which they ran, up to the first that
            differs where it was to stop there.
        op: the op inside of the first layer at fault whose result differs; None where all layers
            agree, or each of its ops does and their rounding adds up.
    """

    device: str
    against: str
    layers: tuple[LayerComparison, ...]
    op: Checked | None

    @property
    def first(self) -> LayerComparison | None:
        """The first layer whose output differs, None where all agree."""
        return next((row for row in self.layers if row.difference.differs), None)

    @property
    def agrees(self) -> bool:
        """True if nothing differs by more than rounding."""
        return self.first is None

    def __str__(self) -> str:
        head = f"{self.device} against {self.against}: {len(self.layers)} outputs of layers"
        first = self.first
        if first is None:
            head += "; all agree"
        else:
            head += f"; the first that differs: {first.path} ({first.kind})"
            head += f"\n  {first.difference}\n  {first.difference.around}"
        if self.op is not None:
            head += f"\n  by its op {self.op.op} at {self.op.at}: {self.op.difference}"
        rows = [(r.path, r.kind, r.output, str(r.difference)) for r in self.layers]
        return "\n".join((head, *lines(("layer", "class", "output", "difference"), rows)))


class _Stop(Exception):
    """The first divergence was found."""


class _Comparing:
    """Hooks on every layer, each with the same layer of a copy elsewhere."""

    def __init__(self, net: Module, against: str, own: bool, stop: bool, rtol: float | None):
        self.rows: list[LayerComparison] = []
        self.at_fault: tuple[Module, tuple[Any, ...]] | None = None
        self._against = against
        self._own = own
        self._stop = stop
        self._rtol = rtol
        self._copy = deepcopy(net).to(against)
        self._pairs = dict(zip((m for _, m in net.named_modules()), self._modules(), strict=True))

    def _modules(self) -> list[Module]:
        return [m for _, m in self._copy.named_modules()]

    def run(self, net: Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One call of the network, looked at."""
        theirs: dict[int, list[Any]] = {}
        handles = []
        if self._own:
            handles += [m.register_forward_hook(_noting(theirs)) for m in self._modules()]
            self._copy(*_moved(inputs, self._against), **_moved(kwargs, self._against))
            for handle in handles:
                handle.remove()
        handles = [
            m.register_forward_hook(self._hook(path, m, theirs)) for path, m in net.named_modules()
        ]
        try:
            net(*inputs, **kwargs)
        except _Stop:
            pass
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, path: str, layer: Module, theirs: dict[int, list[Any]]) -> Callable[..., None]:
        def compare(_: Module, inputs: tuple[Any, ...], outputs: Any) -> None:
            other = self._pairs[layer]
            if self._own:
                wanted = theirs[id(other)].pop(0)
            else:
                wanted = self._again(path, other, inputs)
            self._compare(path, layer, inputs, outputs, wanted)

        return compare

    def _again(self, path: str, other: Module, inputs: tuple[Any, ...]) -> Any:
        try:
            return other(*_moved(inputs, self._against))
        except TypeError as error:
            raise TypeError(
                f"compare_layers: {path or 'the network'} is called with keywords, which hooks do "
                f"not see; use accumulate=True: {error}"
            ) from error

    def _compare(
        self, path: str, layer: Module, inputs: tuple[Any, ...], outputs: Any, wanted: Any
    ) -> None:
        pairs = zip(_tensors(outputs), _tensors(wanted), strict=True)
        scale = max((magnitude(t.numpy()) for t in _tensors(inputs)), default=0.0)
        for number, (found, expected) in enumerate(pairs):
            x, y = found.numpy(), expected.numpy()
            apart = difference(x, y, scale=scale, rtol=self._rtol)
            told = f"{number}: {y.dtype.name}{list(y.shape)}"
            self.rows.append(LayerComparison(path, type(layer).__name__, told, apart))
            if apart.differs and self.at_fault is None:
                self.at_fault = layer, inputs
        if self.at_fault is not None and self._stop:
            raise _Stop


def compare_layers(
    net: Module,
    *inputs: Any,
    against: str = "cpux",
    accumulate: bool = False,
    stop: bool = True,
    rtol: float | None = None,
    **kwargs: Any,
) -> LayersCompared:
    """Run a network, and every layer of it a second time on another device, and compare outputs.

    Each layer of the copy is given what the network's own layer was given, so that a difference
    belongs to the layer itself, and the innermost one that differs comes first. The ops of that
    layer are then compared one by one. The network's state changes as in one call; use `eval()`
    where layers draw random numbers.

    Args:
        net: on the device that is looked at.
        inputs, kwargs: of one call; tensors on the same device. Layers are given positional ones.
        against: the device whose results count.
        accumulate: give the copy's layers what its own layers made instead, so that errors add up
            as they do in use.
        stop: at the first layer that differs; else look at all.
        rtol: largest difference over the largest magnitude among inputs and output; None: as
            `CompareOps`.

    Returns:
        A `LayersCompared`: `first` is the layer at fault or None, `op` the op in it, `str` a table.

    Raises:
        DeviceError: there is no such device.

    Example:
        >>> x = mge.tensor([[1.0, 2.0]], device="cpux")
        >>> found = compare_layers(M.Linear(2, 3).to("cpux"), x, against="cpu1")
        >>> found.agrees, len(found.layers)
        (True, 1)
    """
    here = next(iter(_tensors((inputs, kwargs))), None)
    device = str(here.device) if here is not None else "the default device"
    comparing = _Comparing(net, against, accumulate, stop, rtol)
    with no_grad():
        comparing.run(net, inputs, kwargs)
        op = _op_at_fault(*comparing.at_fault, rtol) if comparing.at_fault else None
    return LayersCompared(device, against, tuple(comparing.rows), op)


def _op_at_fault(layer: Module, inputs: tuple[Any, ...], rtol: float | None) -> Checked | None:
    """The first op of a layer whose result differs; None also where the layer takes more."""
    again = deepcopy(layer)
    try:
        with CompareOps("record", rtol) as compared:
            again(*inputs)
    except (TreadleError, TypeError):
        return None
    return compared.first


def _noting(into: dict[int, list[Any]]) -> Callable[..., None]:
    def note(layer: Module, _: Any, outputs: Any) -> None:
        into.setdefault(id(layer), []).append(outputs)

    return note


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree.flatten(values)[0] if isinstance(x, Tensor)]


def _moved(values: Any, device: str) -> Any:
    """The structure, its tensors on another device."""
    leaves, shape = tree.flatten(values)
    moved = [x.to(device) if isinstance(x, Tensor) else x for x in leaves]
    return tree.unflatten(shape, moved)


__all__ = ["LayerComparison", "LayersCompared", "compare_layers"]
