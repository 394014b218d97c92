"""Doors for foreign code: ops defined by users, and blobs that other engines run.

`custom_op` registers three Python functions under a name; `Custom` is the op that calls them.
`RuntimeBlob` embeds a model of a foreign engine as bytes. Graph texts hold names and digests only,
so a text that is read elsewhere runs nothing that was not registered there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import (
    DTypeError,
    LoadError,
    NoGradient,
    NumericError,
    ShapeError,
    UnsupportedOp,
)
from treadle.base.shape import require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, as_tuple, op

Attributes = tuple[tuple[str, Any], ...]
Infer = Callable[..., tuple[TensorType, ...]]
Reference = Callable[..., Any]
Vjp = Callable[[Any, Any], tuple[Any, ...]]
CudaRule = Callable[..., Any]
Extents = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel in CUDA C++ and one launch of it.

    The kernel is `extern "C" __global__`, and takes pointers to the elements of all operands, of
    all results, and then the arguments: integers as `long long`, other numbers as `double`.

    Attributes:
        source: text for NVRTC, which has no headers of the host.
        name: of the kernel in it.
        blocks, threads: of the launch, up to three extents.
        arguments: numbers behind the pointers.
        shared: bytes of shared memory that the launch asks for.
    """

    source: str
    name: str
    blocks: Extents
    threads: Extents = 256
    arguments: tuple[int | float, ...] = ()
    shared: int = 0

    def __post_init__(self) -> None:
        for what, found in (("blocks", self.blocks), ("threads", self.threads)):
            every: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
            if not 1 <= len(every) <= 3 or not all(isinstance(n, int) and n >= 0 for n in every):
                raise ValueError(f"{what} of {self.name} are one to three extents, not {found!r}")
        if not all(isinstance(a, (int, float)) for a in self.arguments):
            raise TypeError(f"arguments of {self.name} are numbers, not {self.arguments!r}")

    @property
    def is_empty(self) -> bool:
        """True if it starts no thread."""
        return 0 in (self.blocks, self.threads) or any(
            0 in found for found in (self.blocks, self.threads) if isinstance(found, tuple)
        )


@dataclass(frozen=True, slots=True)
class CustomKernel:
    """A custom op as registered by `custom_op`; call it with attributes to make an op value.

    Attributes:
        name: how graphs refer to it.
        infer: result types from (attributes, *operand types).
        reference: one array or a tuple from (attributes, *arrays).
        vjp: cotangents of the inputs from (attributes, Pullback), or None.
        n_outputs: number of results.
        onnx: the operator that it is in ONNX, "domain::Name"; made of the name if left out.
        expand: the results from (attributes, *tensors), in ops that others know, or None.
        cuda: how NVIDIA's GPUs run it, from (attributes, operand types, result types), or None.
    """

    name: str
    infer: Infer
    reference: Reference
    vjp: Vjp | None = None
    n_outputs: int = 1
    onnx: str = ""
    expand: Callable[..., Any] | None = None
    cuda: CudaRule | None = None

    @property
    def operator(self) -> tuple[str, str]:
        """The domain and the name of the operator that it is in ONNX."""
        domain, _, name = self.onnx.rpartition("::")
        if not name:
            domain, _, name = self.name.rpartition(".")
        return domain or ONNX_DOMAIN, name

    def __call__(self, **attributes: Any) -> Custom:
        """The op with these attributes (hashable values)."""
        return Custom(self.name, tuple(sorted(attributes.items())), self.n_outputs)


ONNX_DOMAIN = "treadle.custom"
"""Of operators whose ops have a name without a point."""
_KERNELS: dict[str, CustomKernel] = {}


def custom_op(
    name: str,
    infer: Infer,
    reference: Reference,
    vjp: Vjp | None = None,
    n_outputs: int = 1,
    onnx: str = "",
    expand: Callable[..., Any] | None = None,
    cuda: CudaRule | None = None,
) -> CustomKernel:
    """Define an op from outside Treadle.

    Each function gets the op's attributes as a dict first. An op that should be compiled, listed
    and tested like Treadle's own is better written as a class with `@op`.

    Args:
        name: unique name, stored in graphs; the same module may register it again.
        infer: `(attributes, *types) -> tuple of TensorType`.
        reference: `(attributes, *arrays) -> array or tuple of arrays`.
        vjp: `(attributes, Pullback) -> one cotangent or None per input`, written in ops.
        n_outputs: number of results.
        onnx: how it is written to ONNX: "domain::Name"; "page.cube" is "page::cube" if left out.
        expand: `(attributes, *tensors) -> tensor or tuple of tensors`, in functions of Treadle's;
            ONNX files then hold these in place of an operator of its own.
        cuda: `(attributes, operand types, result types) -> CudaKernel`, or a function of the
            addresses of operands, those of results, and a stream, which puts work into it. Types
            that it refuses with `UnsupportedOp` run on the host.

    Raises:
        LoadError: another module has registered the name.
    """
    before = _KERNELS.get(name)
    if before is not None and before.infer.__module__ != infer.__module__:
        raise LoadError(
            "custom_op",
            f"{name!r} is already defined by {before.infer.__module__}",
            hint="prefix the name with that of your package",
        )
    _KERNELS[name] = CustomKernel(name, infer, reference, vjp, n_outputs, onnx, expand, cuda)
    return _KERNELS[name]


def custom_op_in_onnx(
    name: str, onnx: str = "", expand: Callable[..., Any] | None = None
) -> CustomKernel:
    """Say of a registered op, such as one of a library, what `custom_op` takes for ONNX.

    Raises:
        UnsupportedOp: nobody registered it.
    """
    known = Custom(name).registered()
    _KERNELS[name] = dataclasses.replace(known, onnx=onnx, expand=expand)
    return _KERNELS[name]


def custom_op_of_onnx(domain: str, operator: str) -> CustomKernel | None:
    """The registered op that an operator of ONNX is, if there is one."""
    wanted = domain, operator
    return next((k for k in _KERNELS.values() if k.operator == wanted), None)


def forget_custom_op(name: str) -> None:
    """Take a registration back; programs that hold the op raise `UnsupportedOp` from now on."""
    _KERNELS.pop(name, None)


@op
class Custom(Op):
    """The op that users registered under the name `kernel`; see `custom_op`."""

    kernel: str
    settings: Attributes = ()
    n_results: int = 1

    name = "custom"
    operands = ("*inputs",)
    dtypes = dt.ALL
    n_outputs = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outputs", self.n_results)

    def registered(self, types: tuple[TensorType, ...] = ()) -> CustomKernel:
        """The functions behind the name; `UnsupportedOp` where nobody registered them."""
        found = _KERNELS.get(self.kernel)
        if found is None:
            raise UnsupportedOp(
                self.name,
                f"no op is registered as {self.kernel!r}",
                saw=self.saw(types),
                hint="import the module that calls custom_op for it",
            )
        return found

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return self.registered(inputs).infer(dict(self.settings), *inputs)

    def reference(self, *inputs: Array) -> Any:
        kernel = self.registered()
        try:
            found = kernel.reference(dict(self.settings), *map(_read_only, inputs))
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            problem = "its forward function writes to an operand"
            raise NumericError(kernel.name, problem, hint="copy the array first") from error
        made = found if isinstance(found, tuple) else (found,)
        wanted = _results(kernel, self.settings, tuple((x.dtype, x.shape) for x in inputs))
        if len(made) != len(wanted):
            raise ShapeError(
                kernel.name,
                f"its forward function returned {len(made)} results, not {len(wanted)}",
                hint="return an array, or a tuple of n_outputs arrays",
            )
        results = [_as_inferred(kernel.name, *pair) for pair in zip(made, wanted, strict=True)]
        return tuple(results) if len(results) != 1 else results[0]

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        rule = self.registered().vjp
        if rule is None:
            raise NoGradient(
                self.name, f"{self.kernel!r} has no gradient", hint="pass vjp to custom_op"
            )
        return rule(dict(self.settings), at)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        op_ = _SCALED(factor=3.0)
        return tuple(
            Sample(op_, (Arg(shape),), dtypes=(dt.float32, dt.float64))
            for shape in ((2, 3), (), (0, 2))
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        missing = "no op is registered as 'nowhere.nothing'"
        return (BadSample(lambda: cls("nowhere.nothing"), (Arg((2,)),), UnsupportedOp, missing),)


def _read_only(array: Array) -> Array:
    """The array, which a function of a user must not write to."""
    view = array.view()
    view.flags.writeable = False
    return view


@functools.lru_cache(maxsize=256)
def _results(
    kernel: CustomKernel, settings: Attributes, given: tuple[tuple[Any, tuple[int, ...]], ...]
) -> tuple[TensorType, ...]:
    """Infer the types of results by the custom op's rule."""
    types = [TensorType(dt.as_dtype(dtype), shape) for dtype, shape in given]
    return tuple(kernel.infer(dict(settings), *types))


def _as_inferred(name: str, made: Any, wanted: TensorType) -> Array:
    """A result as an array of the type that was inferred; what is not an array becomes one of it.

    Raises:
        ShapeError, DTypeError: it is of another type.
    """
    known = isinstance(made, (np.ndarray, np.generic))
    array = np.asarray(made, None if known else wanted.dtype.numpy)
    problem = (
        f"its forward function returned {array.dtype}{list(array.shape)}, inferred was {wanted}"
    )
    if array.dtype != wanted.dtype.numpy:
        raise DTypeError(name, problem, hint="convert the result, or say its type in infer")
    if array.shape != wanted.shape:
        raise ShapeError(name, problem, hint="say in infer what the shape is")
    return array


# The example that documentation and tests use.
_SCALED = custom_op(
    "treadle.scaled",
    infer=lambda attributes, x: (x,),
    reference=lambda attributes, x: np.asarray(x * x.dtype.type(attributes["factor"])),
    vjp=lambda attributes, at: (at.dy * attributes["factor"],),
)

BlobRunner = Callable[[bytes, tuple[Array, ...]], Any]

_BLOBS: dict[str, bytes] = {}
_ENGINES: dict[str, BlobRunner] = {}


def blob_engine(name: str, run: BlobRunner) -> None:
    """Register `run(blob, arrays)`, which executes blobs of the engine `name` in this process."""
    _ENGINES[name] = run


def store_blob(data: bytes) -> str:
    """Keep a foreign engine's bytes in this process; returns their SHA-256 digest in hex."""
    digest = hashlib.sha256(data).hexdigest()
    _BLOBS[digest] = data
    return digest


def load_blob(digest: str) -> bytes:
    """The bytes stored under a digest; `LoadError` where they are not in this process."""
    data = _BLOBS.get(digest)
    if data is None:
        raise LoadError(
            "runtime_blob",
            f"no blob is stored under {digest[:12]}...",
            hint="load the package the graph came with; one of strangers with allow_native=True",
        )
    return data


@op
class RuntimeBlob(Op):
    """A model of the foreign engine `engine`, kept as bytes under `digest` (see `store_blob`).

    It runs only where the program has registered that engine with `blob_engine`, or chosen an
    installed backend that claims it.
    """

    engine: str
    digest: str
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]

    name = "runtime_blob"
    operands = ("*inputs",)
    dtypes = dt.ALL
    n_outputs = -1
    no_gradient = "is a black box to differentiation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outputs", len(self.output_types))

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        wanted = ", ".join(map(str, self.input_types))

        def mismatch() -> ShapeError:
            return self.error(
                f"the {self.engine} model takes ({wanted})",
                inputs,
                "convert the inputs, or compile the model for these types",
            )

        given = tuple((t.dtype, t.ndim) for t in inputs)
        if given != tuple((t.dtype, t.ndim) for t in self.input_types):
            raise mismatch()
        for mine, theirs in zip(self.input_types, inputs, strict=True):
            for x, y in zip(mine.shape, theirs.shape, strict=True):
                require_equal(x, y, mismatch)
        return self.output_types

    def reference(self, *inputs: Array) -> Any:
        run = _ENGINES.get(self.engine) or _ENGINES.get(self.engine.partition(":")[0])
        if run is None:
            raise UnsupportedOp(
                self.name,
                f"only the engine {self.engine!r} can run this model",
                saw=f"engines {sorted(_ENGINES)}",
                hint="register it with blob_engine, or choose a backend of that name",
            )
        results = as_tuple(run(load_blob(self.digest), inputs))
        made = [(np.dtype(a.dtype), tuple(a.shape)) for a in results]
        if made != [(t.dtype.numpy, t.shape) for t in self.output_types]:
            said = ", ".join(f"{dtype.name}{list(shape)}" for dtype, shape in made)
            wanted = ", ".join(map(str, self.output_types))
            problem = f"the engine {self.engine!r} gave other results than stated"
            raise ShapeError(self.name, problem, saw=f"{said}, stated {wanted}")
        return results if len(results) != 1 else results[0]

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        plane = TensorType(dt.float32, (2, 3))
        op_ = cls("treadle.shift", store_blob(b"\x03"), (plane,), (plane,))
        return (Sample(op_, (Arg((2, 3), dt.float32),), gradient=False),)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        (good,) = cls.samples()
        return (BadSample(lambda: good.op, (Arg((3, 2)),), ShapeError, "takes (float32[2,3])"),)


# The smallest engine, for documentation and tests: its model is one byte, which it adds.
blob_engine("treadle.shift", lambda blob, arrays: arrays[0] + np.float32(blob[0]))
