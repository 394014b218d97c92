"""A complete backend for Treadle in one file: memory, movement, kernels.

The device is an object that keeps bytes to itself. A real one would keep handles of its driver in
place of `Memory` and launch its own kernels in `kernel`.
"""

import numpy as np

from treadle.backends.api import Availability, Backend, Device, DeviceInfo, Kernel, no, yes

MEMORY = 1 << 28
KERNELS = []


class Memory:
    """A piece of device memory; only the device and its kernels look inside."""

    def __init__(self, nbytes):
        self._bytes = np.empty(nbytes, np.uint8)

    def array(self, type_):
        """The memory as an array of a `TensorType`."""
        return self._bytes[: type_.nbytes].view(type_.dtype.numpy).reshape(type_.shape)


class ToyDevice(Device):
    """A device whose calls have finished when they return, so it needs no streams."""

    def __init__(self, index):
        self.info = DeviceInfo(f"toy device {index}", memory=MEMORY)
        self._used = 0

    def alloc(self, nbytes):
        if self._used + nbytes > MEMORY:
            raise MemoryError(f"no room for {nbytes} bytes")
        self._used += nbytes
        return Memory(nbytes)

    def free(self, buffer):
        self._used -= buffer._bytes.nbytes
        buffer._bytes = np.empty(0, np.uint8)

    def copy_in(self, dst, src, stream):
        dst._bytes[: src.nbytes] = src

    def copy_out(self, dst, src, stream):
        dst[:] = src._bytes[: dst.nbytes].data

    def fill(self, buffer, value, nbytes, stream):
        buffer._bytes[:nbytes] = value

    def memory(self):
        return MEMORY, MEMORY - self._used


class ToyBackend(Backend):
    """Two toy devices, toy0 and toy1."""

    name = "toy"
    protocol = (1, 0)
    device_kinds = ("toy",)

    def probe(self):
        return Availability(True, "always here", count=2)

    def open(self, index):
        return ToyDevice(index)

    def kernels(self):
        return KERNELS


backend = ToyBackend()


def kernel(op, supports, compute):
    """A kernel from a function of arrays and attributes that returns the result."""

    def run(device, outs, ins, attributes, stream):
        with np.errstate(all="ignore"):
            result = compute(*[i.buffer.array(i.type) for i in ins], **attributes)
        outs[0].buffer.array(outs[0].type)[...] = result

    return Kernel(op, run, supports)


def numbers(op, types):
    """Real numbers that NumPy computes with itself."""
    for type_ in types:
        if type_.dtype.name not in ("float32", "float64", "int32", "int64"):
            return no("dtype", f"float32, float64, int32 or int64, not {type_.dtype.name}")
    return yes()


def reals(op, types):
    """float32 and float64."""
    wrong = [t.dtype.name for t in types if t.dtype.name not in ("float32", "float64")]
    return no("dtype", f"float32 or float64, not {wrong[0]}") if wrong else yes()


KERNELS += [
    kernel("add", numbers, np.add),
    kernel("sub", numbers, np.subtract),
    kernel("mul", numbers, np.multiply),
    kernel("neg", numbers, np.negative),
    kernel("div", reals, np.divide),
    kernel("exp", reals, np.exp),
    kernel("relu", numbers, lambda x: np.maximum(x, x.dtype.type(0))),
]


def matrices(op, types):
    """Matrices, transposed or not; batches are left to the host."""
    if any(t.ndim != 2 for t in types):
        return no("rank", "matrices only")
    return reals(op, types)


def matmul(x, y, transpose_x, transpose_y):
    """x @ y, either of them transposed."""
    return (x.T if transpose_x else x) @ (y.T if transpose_y else y)


def total(x, axes, keepdims):
    """A sum in the type of its elements."""
    return x.sum(axes, x.dtype, keepdims=keepdims)


def anything(op, types):
    """Elements are only moved, whatever their type."""
    return yes()


KERNELS += [
    kernel("matmul", matrices, matmul),
    kernel("sum", numbers, total),
    kernel("broadcast", anything, lambda x, shape: np.broadcast_to(x, shape)),
    kernel("reshape", anything, lambda x, shape: x.reshape(shape)),
    kernel("transpose", anything, lambda x, permutation: x.transpose(permutation)),
]
