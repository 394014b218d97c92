"""Names that users of NumPy and PyTorch guess, and what Treadle calls them.

Attributes that are guessed become errors that name ours. Keywords of constructors that mean the
same as ours are taken (`Constructed`); those of functions that are called often are arguments.
"""

from __future__ import annotations

import abc
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

KNOWN: set[str] = set()
"""The names of `treadle.functional`, which adds them when it is imported."""

_FUNCTIONS = {
    "absolute": "F.abs(x)",
    "amax": "F.max(x, axis)",
    "amin": "F.min(x, axis)",
    "arccos": "F.acos(x)",
    "arccosh": "F.acosh(x)",
    "arcsin": "F.asin(x)",
    "arcsinh": "F.asinh(x)",
    "arctan": "F.atan(x)",
    "arctan2": "F.atan2(y, x)",
    "arctanh": "F.atanh(x)",
    "array": "treadle.tensor(data)",
    "as_tensor": "treadle.tensor(data)",
    "asarray": "treadle.tensor(data)",
    "avgpool2d": "F.avg_pool2d(x, kernel_size)",
    "batchnorm": "F.batch_norm(x, ...)",
    "binary_cross_entropy_with_logits": "F.nn.binary_cross_entropy(pred, label)",
    "bmm": "F.matmul(x, y)",
    "cat": "F.concat([x, y], axis)",
    "chunk": "F.split(x, parts, axis)",
    "clamp": "F.clip(x, lower, upper)",
    "clone": "F.copy(x)",
    "concatenate": "F.concat([x, y], axis)",
    "contiguous": "x.contiguous()",
    "count_nonzero": "F.sum(x != 0)",
    "cross_entropy": "F.nn.cross_entropy(pred, label)",
    "cross_entropy_loss": "F.nn.cross_entropy(pred, label)",
    "cube": "x ** 3",
    "detach": "x.detach()",
    "divide": "F.div(x, y)",
    "empty": "F.zeros(shape)",
    "empty_like": "F.zeros_like(x)",
    "eq": "F.equal(x, y)",
    "expand": "F.broadcast_to(x, shape)",
    "flip": "F.vision.flip(x) for images, x[::-1] in general",
    "flipud": "x[::-1]",
    "fliplr": "x[:, ::-1]",
    "floor_divide": "F.floor_div(x, y)",
    "fmod": "F.mod(x, y)",
    "from_numpy": "treadle.tensor(array)",
    "ge": "F.greater_equal(x, y)",
    "gt": "F.greater(x, y)",
    "hardsigmoid": "F.hsigmoid(x)",
    "hardswish": "F.hswish(x)",
    "index_select": "x[:, index]",
    "inner": "F.dot(x, y)",
    "interpolate": "F.vision.interpolate(x, size)",
    "inv": "F.matinv(x)",
    "inverse": "F.matinv(x)",
    "item": "x.item()",
    "kl_div": "F.sum(p * (F.log(p) - F.log(q)))",
    "le": "F.less_equal(x, y)",
    "log2": "F.log(x) / math.log(2)",
    "log10": "F.log(x) / math.log(10)",
    "log_sigmoid": "F.logsigmoid(x)",
    "log_softmax": "F.logsoftmax(x, axis)",
    "logical_xnor": "F.equal(x, y)",
    "lt": "F.less(x, y)",
    "masked_fill": "F.where(mask, value, x)",
    "masked_select": "F.cond_take(mask, x)",
    "maxpool2d": "F.max_pool2d(x, kernel_size)",
    "mm": "F.matmul(x, y)",
    "moveaxis": "F.transpose(x, pattern)",
    "movedim": "F.transpose(x, pattern)",
    "mse_loss": "F.nn.square_loss(pred, label)",
    "multiply": "F.mul(x, y)",
    "mv": "F.matmul(x, y)",
    "narrow": "x[:, start:stop]",
    "ne": "F.not_equal(x, y)",
    "negative": "F.neg(x)",
    "newaxis": "None as an index, or F.expand_dims(x, axis)",
    "nll_loss": "F.nn.cross_entropy(pred, label)",
    "nonzero": "F.non_zero(x)",
    "normal": "treadle.random.normal(mean, std, size)",
    "numel": "x.size",
    "permute": "F.transpose(x, pattern)",
    "power": "F.pow(x, y)",
    "product": "F.prod(x, axis)",
    "rand": "treadle.random.uniform(size=shape)",
    "randn": "treadle.random.normal(size=shape)",
    "randperm": "treadle.random.permutation(n)",
    "ravel": "F.flatten(x)",
    "reciprocal": "1 / x",
    "remainder": "F.mod(x, y)",
    "repeat_interleave": "F.repeat(x, repeats, axis)",
    "rint": "F.round(x)",
    "rsqrt": "x ** -0.5",
    "select": "x[:, index]",
    "slice": "x[start:stop]",
    "subtract": "F.sub(x, y)",
    "swish": "F.silu(x)",
    "t": "x.T",
    "take_along_axis": "F.gather(x, axis, index)",
    "take_along_dim": "F.gather(x, axis, index)",
    "tensor": "treadle.tensor(data)",
    "true_divide": "F.div(x, y)",
    "trunc": "F.sign(x) * F.floor(F.abs(x))",
    "uniform": "treadle.random.uniform(low, high, size)",
    "unsqueeze": "F.expand_dims(x, axis)",
    "upsample": "F.vision.interpolate(x, scale_factor=s)",
    "vstack": "F.concat(parts, 0)",
    "hstack": "F.concat(parts, 1)",
}

_METHODS = {
    "add_": "x += y",
    "data": "x.detach()",
    "grad_fn": "GradManager().attach(x), which records what is computed from x",
    "backward": "GradManager().attach(...).backward(loss)",
    "bool": 'x.astype("bool")',
    "byte": 'x.astype("uint8")',
    "char": 'x.astype("int8")',
    "copy": "treadle.Tensor(x), or F.copy(x) to let gradients through",
    "copy_": "x[...] = value",
    "cpu": 'x.to("cpux")',
    "cuda": 'x.to("gpux")',
    "dim": "x.ndim",
    "div_": "x /= y",
    "double": 'x.astype("float64")',
    "expand_as": "F.broadcast_to(x, other.shape)",
    "fill_": "x[...] = value",
    "float": 'x.astype("float32")',
    "half": 'x.astype("float16")',
    "int": 'x.astype("int32")',
    "is_cuda": "x.device",
    "itemsize": "x.dtype.itemsize",
    "long": 'x.astype("int64")',
    "mul_": "x *= y",
    "nbytes": "x.size * x.dtype.itemsize",
    "numel": "x.size",
    "repeat": "F.tile(x, reps) for whole copies, F.repeat(x, n, axis) for each element",
    "requires_grad": "GradManager().attach(x), as this name is reserved",
    "requires_grad_": "GradManager().attach(x)",
    "reshape_as": "x.reshape(other.shape)",
    "sub_": "x -= y",
    "type_as": "x.astype(other.dtype)",
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(other.shape)",
    "zero_": "x[...] = 0",
}

_LAYERS = {
    "Hardsigmoid": "treadle.module.HSigmoid",
    "Hardswish": "treadle.module.HSwish",
    "AvgPool1d": "F.avg_pool2d on x[:, :, None]",
    "ModuleDict": "a dict of modules as an attribute, which is registered as it is",
    "ModuleList": "a list of modules as an attribute, which is registered as it is",
    "MultiheadAttention": "treadle.module.MultiHeadAttention",
    "NLLLoss": "F.loss.cross_entropy(pred, label), which takes logits",
    "SiLU": "treadle.module.SiLU",
    "Upsample": "F.vision.interpolate(x, scale_factor=s) in forward",
}

_OPTIMIZERS = {
    "ExponentialLR": "treadle.optimizer.LambdaLR(optimizer, lambda epoch: gamma**epoch)",
    "lr_scheduler": "treadle.optimizer, where schedulers stand beside optimizers",
}

_MODULE_METHODS = {
    "add_module": "setattr(net, name, module)",
    "cpu": 'net.to("cpux")',
    "cuda": 'net.to("gpux")',
    "double": 'a loop over net.parameters() with p[...] = p.astype("float64")',
    "half": "treadle.amp.autocast, which computes in 16 bits",
    "freeze": "to leave its parameters out of gm.attach(...) and the optimizer",
    "register_buffer": "net.name = treadle.tensor(data); what is not a Parameter is a buffer",
    "register_parameter": "net.name = treadle.Parameter(data)",
    "summary": "treadle.summary(net, input_shapes=...)",
    "requires_grad_": "to leave its parameters out of gm.attach(...) and the optimizer",
}

_KEYWORDS = {
    "T_max": "t_max",
    "anneal_strategy": "anneal",
    "label_smoothing": "label_smooth",
    "dim": "axis",
    "end_dim": "end_axis",
    "last_epoch": "current_epoch",
    "lr_lambda": "factor",
    "elementwise_affine": "affine",
    "p": "drop_prob",
    "start_dim": "start_axis",
}
"""PyTorch's keywords of constructors that mean what ours mean."""

_ADVICE = {
    "backend": "options=treadle.jit.Options(...) and treadle.jit.engines choose who compiles",
    "capturable": "leave it out; jit.compile makes one program of the whole step",
    "device": "make it, then move it: .to(device)",
    "differentiable": "leave it out",
    "dtype": "make it in float32; treadle.amp.autocast computes in 16 bits",
    "foreach": "leave it out; jit.compile makes one program of the whole step",
    "fullgraph": "leave it out; a function is always one program, or a TraceError says why not",
    "fused": "leave it out; jit.compile makes one program of the whole step",
    "inplace": "leave it out; tensors are immutable, and compiled programs reuse memory",
    "max_norm": "clip the weight yourself after each step",
    "maximize": "negate the loss",
    "mode": "level=0, 1 or 2 says how much is fused, fast=True what may be rewritten",
    "return_indices": "leave it out; F.argmax of patches (F.sliding_window) gives the places",
    "sparse": "leave it out; gradients are dense",
    "verbose": "leave it out; log optimizer.param_groups[0]['lr']",
}

REQUIRES_GRAD = (
    "requires_grad is reserved; GradManager().attach(tensor) asks for a gradient, and what is left "
    "out of attach and of the optimizer is frozen"
)

_DTYPE = re.compile(r"(torch\.|numpy\.)?(bfloat16|bool|(float|u?int)\d+)")
_DEVICES = {"cuda": "gpux", "cpu": "cpux", "gpu": "gpux", "xpu": "xpux"}

_TOP_LEVEL = {
    "bfloat16": '"bfloat16", as dtypes are given by name or as NumPy\'s',
    "bool": '"bool", as dtypes are given by name or as NumPy\'s',
    "compile": "treadle.jit.compile(function)",
    "float16": '"float16", as dtypes are given by name or as NumPy\'s',
    "float32": '"float32", as dtypes are given by name or as NumPy\'s',
    "float64": '"float64", as dtypes are given by name or as NumPy\'s',
    "inference_mode": "treadle.autodiff.no_grad()",
    "int32": '"int32", as dtypes are given by name or as NumPy\'s',
    "int64": '"int64", as dtypes are given by name or as NumPy\'s',
    "enable_grad": "treadle.autodiff.GradManager()",
    "manual_seed": "treadle.random.seed(n)",
    "nn": "treadle.module",
    "no_grad": "treadle.autodiff.no_grad()",
    "optim": "treadle.optimizer",
}


def of_function(name: str) -> str:
    """`; did you mean ...?` for a name that `treadle.functional` lacks, or nothing."""
    if name in _FUNCTIONS:
        return _question(_FUNCTIONS[name])
    if name in _METHODS:
        return _question(_METHODS[name])
    if name.startswith("_"):
        return ""
    near = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.75)
    return _question(f"F.{near[0]}") if near else ""


def of_top_level(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?` for a name that `treadle` itself lacks, or nothing."""
    if name in _TOP_LEVEL:
        return _question(_TOP_LEVEL[name])
    if name in KNOWN:
        return _question(f"treadle.functional.{name}")
    return of_member(name, "treadle", known) or of_function(name)


class MissingAttribute(AttributeError):
    """A missing attribute of an object, whose message ends with advice.

    The advice is looked for when the message is read: `hasattr` and `getattr` with a default, which
    programs call in loops, drop the error.

    Args:
        owner: the object.
        name: the attribute.
        advise: gives the advice, or nothing, for a name and the public ones of the object's class.
    """

    def __init__(
        self, owner: object, name: str, advise: Callable[[str, Collection[str]], str]
    ) -> None:
        problem = f"{type(owner).__name__!r} object has no attribute {name!r}"
        super().__init__(problem, name=name, obj=owner)
        self._advice = functools.partial(advise, name)

    def __str__(self) -> str:
        public = [n for n in dir(type(self.obj)) if n[0] != "_"]
        return f"{self.args[0]}{self._advice(public)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)


# To people who read a traceback it is Python's own error.
MissingAttribute.__name__ = MissingAttribute.__qualname__ = AttributeError.__name__
MissingAttribute.__module__ = AttributeError.__module__


def of_member(name: str, owner: str, known: Collection[str]) -> str:
    """`; did you mean ...?` for a misspelt name of a package, or nothing."""
    if name.startswith("_"):
        return ""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return _question(f"{owner}.{near[0]}") if near else ""


def of_layer(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?` for a name that `treadle.module` lacks, or nothing."""
    return _question(_LAYERS.get(name, "")) or of_member(name, "treadle.module", known)


def of_optimizer(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?` for a name that `treadle.optimizer` lacks, or nothing."""
    return _question(_OPTIMIZERS.get(name, "")) or of_member(name, "treadle.optimizer", known)


def of_module_method(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?` for an attribute that a module lacks, or nothing."""
    return _question(_MODULE_METHODS.get(name, "")) or of_member(name, "net", known)


class Count(int):
    """A number of elements; called, as PyTorch's `size` is, it says what to write instead."""

    __slots__ = ()

    def __call__(self, *axis: Any) -> Any:
        """A `TypeError` that names `shape`."""
        raise TypeError(
            "size is the number of elements, no method; write x.shape, or x.shape[axis]"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def counted(elements: int) -> int:
    """A number of elements as `Count`; a symbolic one as it is."""
    return Count(elements) if type(elements) is int else elements


def of_truth(kind: object) -> str:
    """The error about a tensor of several elements that is read as one number."""
    return (
        f"only a tensor of one element is a number or truth value, got {kind}; reduce it first "
        "(F.any, F.all, x.sum()), or take x.numpy() or x.tolist() for all elements"
    )


def of_device(name: str) -> str:
    """`; did you mean ...?` for a device as PyTorch writes it (`cuda:1`), or nothing."""
    kind, _, number = name.partition(":")
    if _DTYPE.fullmatch(name):
        return _question(f"x.astype({name.rpartition('.')[2]!r})")
    if kind not in _DEVICES:
        return ""
    ours = _DEVICES[kind][:-1] + number if number.isdigit() else _DEVICES[kind]
    return _question(f"{ours!r}")


def of_method(name: str, known: Collection[str] = ()) -> str:
    """`; did you mean ...?` for an attribute that tensors lack, or nothing."""
    if name in _METHODS:
        return _question(_METHODS[name])
    plain = name.rstrip("_")
    if plain in KNOWN:
        return _question(f"F.{plain}(x)")
    return _question(_FUNCTIONS.get(plain, "")) or of_member(name, "x", known)


def accepted_by(function: Any) -> frozenset[str] | None:
    """The keywords that a function or constructor takes; None where it takes any."""
    given = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in given):
        return None
    named = frozenset(p.name for p in given if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL))
    return named - {"self"}


def note_call(error: TypeError, name: str, function: Any) -> None:
    """Add how a function is called to an error about the number of its arguments.

    The error of a call inside of the function is left as it is.
    """
    where = error.__traceback__
    if where is None or where.tb_next is not None or "argument" not in str(error):
        return
    given = inspect.signature(function).parameters.values()
    needed = [p.name for p in given if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if len(needed) < len(given):
        needed.append("...")
    error.add_note(f"  hint: {name}({', '.join(needed)})")


def none_operand() -> TypeError:
    """The error about None in place of a tensor."""
    error = TypeError("the operand is None and is not supported.")
    error.add_note("  hint: a function or forward() without `return` gives None")
    return error


def refuse(owner: str, given: Mapping[str, Any], takes: Collection[str]) -> None:
    """A `TypeError` for the first keyword that is given, none of which is known."""
    for name in given:
        raise TypeError(
            f"{owner}() got an unexpected keyword argument {name!r}{of_keyword(name, takes)}"
        )


def of_keyword(name: str, takes: Collection[str]) -> str:
    """Return what to pass in place of a keyword that is not known."""
    if name in _ADVICE:
        return f"; {_ADVICE[name]}"
    near = difflib.get_close_matches(name, sorted(takes), n=1, cutoff=0.6)
    return _question(f"{near[0]}=") if near else f"; it takes {', '.join(sorted(takes))}"


class Constructed(abc.ABCMeta):
    """Type of layers, optimizers and schedulers: constructors understand PyTorch's keywords.

    Only where a call has failed are its keywords looked at.
    """

    if not TYPE_CHECKING:  # A type checker shall see the constructors themselves.

        @property
        def __signature__(cls) -> inspect.Signature:
            """Signature of the constructor, which this type's own call would hide."""
            whole = inspect.signature(cls.__init__)
            return whole.replace(parameters=list(whole.parameters.values())[1:])

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Construct; a keyword that is refused is tried under our name."""
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if cls.__abstractmethods__:
                    missing = ", ".join(sorted(cls.__abstractmethods__))
                    error.add_note(f"  hint: define {missing} in class {cls.__name__}")
                takes = accepted_by(cls.__init__)
                if takes is None or kwargs.keys() <= takes:
                    note_call(error, cls.__name__, cls)
                    raise
            return super().__call__(*args, **_renamed(cls.__name__, kwargs, takes))


def _renamed(owner: str, given: Mapping[str, Any], takes: frozenset[str]) -> dict[str, Any]:
    """Keywords under our names; a `TypeError` for one that has none."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        ours = name if name in takes else _KEYWORDS.get(name, name)
        if ours not in takes:
            refuse(owner, {name: value}, takes)
        if ours in found or (ours != name and ours in given):
            raise TypeError(f"{owner}() got {ours!r} twice, once as {name!r}: leave that out")
        found[ours] = value
    return found


def _question(what: str) -> str:
    return f"; did you mean {what}?" if what else ""
