"""`Module`: a tree of parameters, buffers and sub-modules, found by attribute."""

from __future__ import annotations

import abc
import textwrap
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from treadle.autodiff import no_grad
from treadle.base.errors import TreadleError
from treadle.base.layers import note_layer
from treadle.base.modes import ACTIVE, capturing
from treadle.base.observer import OBSERVER
from treadle.base.saved_objects import allow
from treadle.base.spelling import Constructed, MissingAttribute, note_call, of_module_method
from treadle.module import state
from treadle.module.hook import Hook, HookHandler
from treadle.tensor import Parameter, Tensor

M = TypeVar("M", bound="Module")
Leaf: TypeAlias = "Tensor | Module"


def _depend_on_mode(module: Module) -> None:
    """A program that is being captured holds for the module's present mode only."""
    capture = capturing()
    if capture is not None:
        owner = weakref.ref(module)
        capture.guard(lambda: getattr(owner(), "training", None), module.training)


_TOO_EARLY = (
    "cannot assign {!r} before Module.__init__() call; start the constructor with "
    "super().__init__()"
)
_BOOKKEEPING = frozenset({"_modules", "_forward_hooks", "_forward_pre_hooks"})


class Module(metaclass=Constructed):
    """Base of all layers and models; a subclass defines `forward`.

    A `Parameter` assigned to an attribute is trained, any other `Tensor` is a buffer, a `Module`
    is a sub-module; all three are also found inside lists, tuples and dicts with string keys, at
    any depth, under dotted names such as `blocks.0.weight`. Iteration is alphabetical by name at
    each level and yields an object that is reachable by several names once, under the first.

    Args:
        name: a name for messages and graphs.

    Attributes:
        training: whether layers such as Dropout and BatchNorm behave as in training.
        quantize_disabled: True keeps quantization away from this module.
    """

    # Norm layers keep parameters as (1, C, 1, 1) and save them as (C,).
    _flat_state: ClassVar[bool] = False

    def __init__(self, name: str | None = None) -> None:
        # Names of attributes that may hold modules, in order of assignment, for repr.
        self._modules: list[str] = []
        self._forward_pre_hooks: dict[int, Hook] = {}
        self._forward_hooks: dict[int, Hook] = {}
        self.name = name
        # MegEngine's pickles hold these two, and tracing names modules by them.
        self._name: str | None = None
        self._short_name: str | None = None
        self.training = True
        self.quantize_disabled: bool | None = None

    @abc.abstractmethod
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Compute the outputs; called through the module itself, so that hooks run."""

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if ACTIVE.count:
            _depend_on_mode(self)
        for hook in tuple(self._forward_pre_hooks.values()):
            replaced = hook(self, inputs)
            if replaced is not None:
                inputs = replaced if isinstance(replaced, tuple) else (replaced,)
        try:
            if OBSERVER.now is None:
                outputs = self.forward(*inputs, **kwargs)
            else:
                given = (*inputs, *kwargs.values())
                outputs = OBSERVER.now.module(self, given, lambda: self.forward(*inputs, **kwargs))
        except TreadleError as error:
            note_layer(error, self)
            raise
        except TypeError as error:
            note_call(error, "forward", self.forward)
            raise
        for hook in tuple(self._forward_hooks.values()):
            replaced = hook(self, inputs, outputs)
            if replaced is not None:
                outputs = replaced
        return outputs

    def register_forward_pre_hook(self, hook: Callable[[Any, Any], Any]) -> HookHandler:
        """Call `hook(module, inputs)` before `forward`; what it returns replaces the inputs.

        Keyword arguments are not shown to hooks. Returns a handle with `remove()`.
        """
        return HookHandler(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Any, Any, Any], Any]) -> HookHandler:
        """Call `hook(module, inputs, outputs)` after `forward`; a result replaces the outputs.

        Returns a handle with `remove()`.
        """
        return HookHandler(self._forward_hooks, hook)

    # -- attributes ------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _BOOKKEEPING:
            self._note(name, value)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # A type checker shall see the attributes that exist only.

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # A property has failed: let it say why.
                return object.__getattribute__(self, name)
            raise MissingAttribute(self, name, of_module_method)

    def _note(self, name: str, value: Any) -> None:
        """Keep `_modules` up to date; containers count, as they may be filled later."""
        names: list[str] | None = self.__dict__.get("_modules")
        if names is None:
            if any(isinstance(leaf, Module) for _, leaf in expand(name, value)):
                raise AttributeError(_TOO_EARLY.format(name))
        elif isinstance(value, (Module, list, tuple, dict)):
            if name not in names:
                names.append(name)
        elif name in names:
            names.remove(name)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in self._modules:
            self._modules.remove(name)

    # -- iteration -------------------------------------------------------------------------

    # `with_parent`: items end with their holder. `requires_grad=False`: none, as in MegEngine.

    def parameters(
        self, recursive: bool = True, *, with_parent: bool = False, requires_grad: bool = True
    ) -> Iterator[Any]:
        """Trainable tensors of this module and, if `recursive`, of its sub-modules."""
        named = self.named_parameters(None, recursive, with_parent, requires_grad)
        return _unnamed(named, with_parent)

    def named_parameters(
        self,
        prefix: str | None = None,
        recursive: bool = True,
        with_parent: bool = False,
        requires_grad: bool = True,
    ) -> Iterator[Any]:
        """Iterate over pairs of dotted name, with `prefix` in front, and trainable tensor."""
        found = self._flat(prefix, recursive, with_parent)
        return (item for item in found if requires_grad and isinstance(item[1], Parameter))

    def buffers(self, recursive: bool = True, *, with_parent: bool = False) -> Iterator[Any]:
        """Tensors that are not trained, such as running statistics."""
        return _unnamed(self.named_buffers(None, recursive, with_parent), with_parent)

    def named_buffers(
        self, prefix: str | None = None, recursive: bool = True, with_parent: bool = False
    ) -> Iterator[Any]:
        """Iterate over pairs of dotted name and buffer."""
        every = self.named_tensors(prefix, recursive, with_parent)
        return (item for item in every if not isinstance(item[1], Parameter))

    def tensors(self, recursive: bool = True, *, with_parent: bool = False) -> Iterator[Any]:
        """Parameters and buffers."""
        return _unnamed(self.named_tensors(None, recursive, with_parent), with_parent)

    def named_tensors(
        self, prefix: str | None = None, recursive: bool = True, with_parent: bool = False
    ) -> Iterator[Any]:
        """Iterate over pairs of dotted name and parameter or buffer."""
        return (x for x in self._flat(prefix, recursive, with_parent) if isinstance(x[1], Tensor))

    def children(self, *, with_parent: bool = False) -> Iterator[Any]:
        """Direct sub-modules, those inside containers included."""
        return _unnamed(self.named_children(with_parent), with_parent)

    def named_children(self, with_parent: bool = False) -> Iterator[Any]:
        """Iterate over pairs of dotted name and direct sub-module."""
        return (x for x in self._flat(None, False, with_parent) if isinstance(x[1], Module))

    def modules(self, *, with_parent: bool = False) -> Iterator[Any]:
        """Iterate over this module and all modules below it, each once."""
        return _unnamed(self.named_modules(None, with_parent), with_parent)

    def named_modules(self, prefix: str | None = None, with_parent: bool = False) -> Iterator[Any]:
        """Iterate over pairs of dotted name and module, this one first as `prefix` or ""."""
        own = prefix or ""
        yield (own, self, None) if with_parent else (own, self)
        yield from (x for x in self._flat(prefix, True, with_parent) if isinstance(x[1], Module))

    def _flat(self, prefix: str | None, recursive: bool, with_parent: bool) -> Iterator[Any]:
        found = _walk_with_parent(self, prefix, recursive, {id(self)})
        return found if with_parent else ((key, leaf) for key, leaf, _ in found)

    # -- modes and places ------------------------------------------------------------------

    def apply(self, fn: Callable[[Module], Any]) -> None:
        """Call `fn` with this module and every module below it."""
        for module in self.modules():
            fn(module)

    def train(self, mode: bool = True, recursive: bool = True) -> None:
        """Switch training behaviour on or off, here and, if `recursive`, below."""
        if recursive:  # Through `train`, which a module below may have overridden.
            self.apply(lambda module: module.train(mode, recursive=False))
        else:
            self.training = mode

    def eval(self) -> None:
        """Switch to evaluation: `train(False)`."""
        self.train(False)

    def disable_quantize(self, value: bool = True) -> None:
        """Keep quantization away from this module and all below it, or allow it again."""
        for module in self.modules():
            module.quantize_disabled = value

    def to(self: M, device: Any) -> M:
        """Move parameters, buffers and gradients to a device; handles keep their identity.

        Returns the module. Raises DeviceError for a malformed name or a missing device.
        """
        with no_grad():
            for tensor in self.tensors():
                tensor._reset(tensor.to(device))
                if isinstance(tensor.grad, Tensor):
                    tensor.grad = tensor.grad.to(device)
        return self

    def zero_grad(self) -> None:
        """Forget all gradients; deprecated in favor of the optimizer's `clear_grad()`."""
        warnings.warn("use Optimizer.clear_grad()", DeprecationWarning, stacklevel=2)
        for parameter in self.parameters():
            parameter.grad = None

    def replace_param(
        self, params: Mapping[int, Parameter], start_pos: int, seen: set[int] | None = None
    ) -> int:
        """Replace parameters of this module and those below by others, counted from `start_pos`.

        Only parameters and modules that are attributes themselves are counted. A key without a
        parameter in `params` keeps what it has. Returns how many parameters were counted.

        Raises:
            ValueError: a replacement has another shape.
        """
        visited = {id(self)} if seen is None else seen
        offset = 0
        for key in sorted(vars(self)):
            held = vars(self)[key]
            if not isinstance(held, (Parameter, Module)) or id(held) in visited:
                continue
            visited.add(id(held))
            if isinstance(held, Module):
                offset += held.replace_param(params, start_pos + offset, visited)
                continue
            new = params.get(start_pos + offset)
            if new is not None:
                if new.shape != held.shape:
                    raise ValueError(f"{key} has shape {held.shape}, its replacement {new.shape}")
                setattr(self, key, new)
            offset += 1
        return offset

    # -- state -----------------------------------------------------------------------------

    def state_dict(
        self,
        rst: OrderedDict[str, Any] | None = None,
        prefix: str = "",
        keep_var: bool = False,
    ) -> OrderedDict[str, Any]:
        """Values of all parameters and buffers by dotted name.

        Args:
            rst: a dict to add to and return instead of a new one.
            prefix: put in front of every name as it is.
            keep_var: give tensors instead of NumPy arrays.

        Returns:
            Read-only arrays in their own shapes, except that norm layers' are flattened to one
            axis. A tensor shared by several modules stands under each of them.
        """
        result = OrderedDict() if rst is None else rst
        result.update(state.export(self._entries(prefix), keep_var))
        return result

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Callable[[str, Tensor], Any], strict: bool = True
    ) -> None:
        """Replace the values of parameters and buffers; all of them or, on an error, none.

        The loaded element type replaces the tensor's; the device stays.

        Args:
            state_dict: NumPy arrays or tensors by name, or a function from (name, tensor) to an
                array, or None for a name it does not have.
            strict: whether a missing or unused name is an error; else it is logged.

        Raises:
            KeyError: names are missing or unused and `strict` is set.
            ValueError: a shape differs; norm layers take their own shape and the flattened one.
            AssertionError: a value is not an array.
        """
        state.load(self._entries(""), state_dict, strict)

    def _entries(self, prefix: str) -> Iterator[state.StateEntry]:  # Own tensors come first.
        for key, leaf in sorted(_members(self), key=lambda m: isinstance(m[1], Module)):
            if isinstance(leaf, Module):
                yield from leaf._entries(f"{prefix}{key}.")
            else:
                yield state.StateEntry(prefix + key, leaf, self._flat_state)

    # -- printing --------------------------------------------------------------------------

    def _flatten(
        self,
        *,
        recursive: bool = True,
        with_key: bool = False,
        with_parent: bool = False,
        prefix: str | None = None,
        predicate: Callable[[Any], bool] = lambda _: True,
        seen: set[int] | None = None,
    ) -> Iterator[Any]:
        """Members that `predicate` takes, as MegEngine's programs ask for them.

        With names and holders these are tuples (name, member, holder).
        """
        known = {id(self)} if seen is None else seen
        for key, leaf, parent in _walk_with_parent(self, prefix, recursive, known):
            if predicate(leaf):
                found = (*([key] if with_key else ()), leaf, *([parent] if with_parent else ()))
                yield found if len(found) > 1 else leaf

    def _module_info_string(self) -> str:
        """Return the text between the parentheses of `repr`, before the sub-modules."""
        return ""

    def __repr__(self) -> str:
        info = self._module_info_string()
        children = [
            f"({key}): {leaf!r}"
            for name in self._modules
            for key, leaf in expand(name, self.__dict__[name])
            if isinstance(leaf, Module)
        ]
        inside = info
        if children or "\n" in info:
            lines = [*info.splitlines(), *children]
            inside = "\n" + textwrap.indent("\n".join(lines), "  ") + "\n"
        return f"{type(self).__name__}({inside})"


# -- walking the tree ------------------------------------------------------------------------


allow(Module)


def expand(key: str, value: Any) -> Iterator[tuple[str, Leaf]]:
    """Tensors and modules in an attribute, with dotted names; dicts go by sorted keys.

    Raises:
        AssertionError: a dict that holds a tensor or module has a key that is not a string.
    """
    if isinstance(value, (Tensor, Module)):
        yield key, value
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            for below, leaf in expand(str(name), value[name]):
                if not isinstance(name, str):
                    raise AssertionError(
                        f"keys for Tensor and Module must be str, error key: {name!r}"
                    )
                yield f"{key}.{below}", leaf
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from expand(f"{key}.{i}", item)


def _access_structure(
    obj: Module, key: str, callback: Callable[[Any, str, Any], Any] | None = None
) -> Any:
    """Return the object at a dotted name, or the result of `callback(holder, last part, it)`.

    MegEngine's programs import it; `utils.module_utils.get_expand_structure` is the public way.
    """
    holder: Any = None
    found, part = obj, ""
    for part in key.split("."):
        holder = found
        if isinstance(holder, (list, tuple)):
            found = holder[int(part)]
        else:
            found = holder[part] if isinstance(holder, dict) else getattr(holder, part)
    return found if callback is None else callback(holder, part, found)


def _members(module: Module) -> Iterator[tuple[str, Leaf]]:
    """A module's own tensors and direct sub-modules, each once, alphabetically."""
    seen = {id(module)}
    held = vars(module)
    for name in sorted(held):
        if name in _BOOKKEEPING:
            continue
        for key, leaf in expand(name, held[name]):
            if id(leaf) not in seen:
                seen.add(id(leaf))
                yield key, leaf


def _walk_with_parent(
    module: Module, prefix: str | None, recursive: bool, seen: set[int]
) -> Iterator[tuple[str, Leaf, Module]]:
    """Everything below a module that `seen` does not hold yet: names, objects, holders."""
    before = f"{prefix}." if prefix else ""
    for key, leaf in _members(module):
        if id(leaf) in seen:
            continue
        seen.add(id(leaf))
        yield before + key, leaf, module
        if recursive and isinstance(leaf, Module):
            yield from _walk_with_parent(leaf, before + key, recursive, seen)


def _unnamed(found: Iterable[Any], with_parent: bool) -> Iterator[Any]:
    """Items without their names."""
    return (item[1:] if with_parent else item[1] for item in found)
