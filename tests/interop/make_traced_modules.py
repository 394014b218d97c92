"""Writes `traced_modules.zip` with MegEngine 1.13: `python make_traced_modules.py [CASE ...]`.

Cases that are named are added to the file, else it is written anew. Of each case: the traced module
as `megengine.save` writes it, what it was called with, and what it gave.

It needs Python 3.8 to 3.10 and `pip install megengine==1.13.0`.
"""

import functools
import io
import pickle
import sys
import zipfile
from pathlib import Path

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.module.qat as QAT
import megengine.quantization as Q
import megengine.traced_module as tm
import numpy as np
from megengine.core._imperative_rt.core2 import apply
from megengine.core.ops import builtin
from megengine.traced_module.pytree import tree_flatten

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def floats(*shape):
    return mge.Tensor(np.random.RandomState(sum(shape)).randn(*shape).astype("float32"))


class Block(M.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = M.Conv2d(width, width, 3, padding=1)
        self.bn = M.BatchNorm2d(width)
        self.act = M.ReLU()
        self.scale = mge.Parameter(np.array([0.5], "float32"))

    def forward(self, x, k=2):
        return self.act(self.bn(self.conv(x))) * self.scale + x * k


class Net(M.Module):
    """Lists and dicts of modules, modules in modules, defaults, results in a dict."""

    def __init__(self):
        super().__init__()
        self.stem = M.ConvBn2d(3, 4, 3)
        self.blocks = [Block(4), Block(4)]
        self.heads = {"a": M.Linear(4, 2), "b": M.Linear(4, 3)}
        self.seq = M.Sequential(M.ReLU(), M.Dropout(0.2), M.AvgPool2d(2))

    def forward(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x, k=i + 1)
        x = F.flatten(F.adaptive_avg_pool2d(self.seq(x), 1), 1)
        return {name: head(x) for name, head in self.heads.items()}


@case
def net():
    return Net(), (floats(2, 3, 12, 12),), {}


class Functions(M.Module):
    def __init__(self):
        super().__init__()
        self.c = mge.Tensor(np.arange(4, dtype="float32"))

    def forward(self, x):
        a = (x + 1) * (2 - x) / 3
        e = F.concat([a, F.softmax(a, axis=1), self.c.reshape(1, 4)], axis=0)
        b = e[1:3, ::2]
        made = F.zeros((2, 3)) + F.ones((3,)), F.full((2,), 3.0), F.arange(5.0), F.linspace(0, 1, 5)
        return [
            *made,
            *F.topk(e, 2),
            *F.split(e, 2, axis=1),
            F.matmul(e.transpose(1, 0).astype("float16").astype("float32"), e),
            e.mean(axis=1, keepdims=True),
            F.where(e > 0, e, -e),
            F.pad(b, ((1, 1), (0, 0))),
            F.expand_dims(b, 0),
            x.max(axis=0) + x.sum(),
            x.T,
            x**2,
            F.clip(x, 0, 1),
            F.square(x),
            F.prelu(x, self.c),
            F.conv_transpose2d(x.reshape(1, 1, 3, 4), F.ones((1, 1, 2, 2)), stride=2),
        ]


@case
def functions():
    return Functions(), (floats(3, 4),), {}


class InPlace(M.Module):
    def forward(self, x):
        y = mge.Tensor(x)
        y[0] = 1
        y[1, 1:] *= 2
        z = F.zeros_like(x)
        z += y
        const = mge.Tensor([1.0, 2.0, 3.0, 4.0])
        index = F.argmax(x, axis=1)
        return (
            y,
            z,
            index,
            x[F.arange(3).astype("int32"), index],
            x * const,
            x + np.ones(4, "float32"),
        )


@case
def in_place():
    return InPlace(), (floats(3, 4),), {}


class Shapes(M.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        y = x.reshape(n, c, -1).transpose(0, 2, 1).reshape(n, h, w, c)
        q = F.zeros((n, x.shape[1] * 2)) + x.ndim
        big = F.vision.interpolate(x, size=(h * 2, w * 2))
        return y, F.broadcast_to(y[:, :1], (n, h, w, c)), x[:, : c // 2], big, q


@case
def shapes():
    return Shapes(), (floats(2, 4, 3, 5),), {}


class Nested(M.Module):
    def forward(self, x, boxes, mode):
        return {"s": x + boxes["a"][0] - boxes["b"], "t": (x,)}


@case
def nested():
    return Nested(), (floats(3, 4), {"b": floats(3, 4), "a": [floats(3, 1), floats(4)]}, "mode"), {}


class Inner(M.Module):
    def forward(self, a, b=None, c=None, d=1.5):
        return a * d + b - c[0] / c[1]


class Keywords(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.many = [[M.Linear(4, 4)], {"k": M.Linear(4, 2)}]

    def forward(self, x, *, w, option=(1, 2)):
        y = F.copy(self.inner(x, b=w, c=[w, x])).astype(np.float16).astype("float32")
        made = mge.Tensor(y, dtype="float32")
        return self.many[0][0](y), made, self.many[1]["k"](mge.Parameter(y))


@case
def keywords():
    return Keywords(), (floats(3, 4),), {"w": floats(3, 4)}


class Definitions(M.Module):
    def forward(self, x):
        a = apply(builtin.Elemwise("ADD"), x, x)[0]
        weight = mge.Tensor(np.ones((2, 3, 3, 3), "float32"))
        conv = builtin.Convolution(stride_h=1, stride_w=1, pad_h=1, pad_w=1)
        e = apply(conv, F.ones((1, 3, 5, 5)), weight)[0]
        pool = builtin.Pooling(mode="MAX", window_h=2, window_w=2, stride_h=2, stride_w=2)
        return (
            apply(builtin.Reduce(axis=1, mode="SUM"), a)[0],
            apply(builtin.Dimshuffle([1, 0]), a)[0],
            apply(builtin.TypeCvt(dtype=np.int32), a)[0],
            apply(builtin.GetVarShape(), a)[0],
            apply(pool, e)[0],
            apply(builtin.MatrixMul(transposeA=True), x, x)[0],
        )


@case
def definitions():
    return Definitions(), (floats(3, 4),), {}


class Layers(M.Module):
    def __init__(self):
        super().__init__()
        self.dc = M.ConvTranspose2d(3, 4, 3, stride=2)
        self.first = [M.GroupNorm(2, 4), M.InstanceNorm(4), M.MaxPool2d(2), M.PReLU(4), M.GELU()]
        self.then = [M.SiLU(), M.Sigmoid(), M.Softmax(axis=1), M.LeakyReLU(0.1), M.Identity()]
        self.each = [
            M.AdaptiveAvgPool2d(2),
            M.AdaptiveMaxPool2d(2),
            M.Pad([(0, 0), (0, 0), (1, 1), (1, 1)]),
            M.PixelShuffle(2),
            M.Conv2d(4, 4, 3, groups=2, padding=1, bias=False),
            M.ConvBnRelu2d(4, 4, 1),
            M.ConvRelu2d(4, 4, 1),
            M.LocalResponseNorm(),
            M.SlidingWindow(2),
        ]
        self.rows = [M.Linear(8, 8), M.LayerNorm(8), M.LinearRelu(8, 8), M.BatchNorm1d(8)]
        self.rows += [M.GeneralNorm((8,), 1)]
        self.local = M.LocalConv2d(4, 4, 4, 4, 3)
        self.deform = M.DeformableConv2d(4, 4, 3)
        self.c1 = M.Conv1d(4, 4, 3)
        self.c3 = M.Conv3d(1, 2, 3)
        self.ct3 = M.ConvTranspose3d(1, 2, 2)
        self.cat = M.Concat()
        self.add = M.Elemwise("add")
        self.emb = M.Embedding(10, 4)
        self.rnn = M.RNNCell(4, 5)
        self.lstm = M.LSTMCell(5, 3)

    def forward(self, x):
        y = self.dc(x)
        for layer in self.first:
            y = layer(y)
        for layer in self.then:
            y = layer(y)
        v = F.ones((3, 8))
        for layer in self.rows:
            v = layer(v)
        h, w = 5, 5
        volume = y.reshape(1, 1, 4, h, w)
        offset, mask = F.zeros((1, 18, h - 2, w - 2)), F.ones((1, 9, h - 2, w - 2))
        state, cell = self.lstm(self.rnn(self.emb(F.arange(3).astype("int32"))))
        return (
            *[layer(y) for layer in self.each],
            v,
            self.local(F.vision.interpolate(y, (4, 4))),
            self.deform(y, offset, mask),
            self.c1(y[:, :, 0]),
            self.c3(volume),
            self.ct3(volume),
            self.cat([y, y], 1),
            self.add(y, y),
            state,
            cell,
        )


@case
def layers():
    return Layers(), (floats(1, 3, 5, 5),), {}


class Quantized(M.Module):
    def __init__(self):
        super().__init__()
        self.quant = M.QuantStub()
        self.c = M.ConvBnRelu2d(3, 4, 3)
        self.c2 = M.Conv2d(4, 4, 1)
        self.add = M.Elemwise("add")
        self.dequant = M.DequantStub()

    def forward(self, x):
        x = self.c(self.quant(x))
        return self.dequant(self.add(x, self.c2(x)))


def trained(config):
    x = floats(2, 3, 6, 6)
    made = Q.quantize_qat(Quantized(), qconfig=config)
    for _ in range(3):
        made(x)
    return made, (x,), {}


@case
def qat():
    return trained(Q.ema_fakequant_qconfig)


@case
def qat_calibrated():
    return trained(Q.calibration_qconfig)


@case
def qat_tqt():
    return trained(Q.tqt_qconfig)


@case
def qat_lsq():
    return trained(Q.QConfig(None, None, *[functools.partial(Q.LSQ, dtype="qint8")] * 2))


@case
def quantized():
    made, args, kwargs = trained(Q.ema_fakequant_qconfig)
    return Q.quantize(made), args, kwargs


class OwnLayer(QAT.QATModule):
    def __init__(self):
        super().__init__()
        self.w = mge.Parameter(np.random.RandomState(0).randn(4, 4).astype("float32"))

    def forward(self, x):
        return self.apply_quant_activation(F.matmul(x, self.apply_quant_weight(self.w)))

    @classmethod
    def from_float_module(cls, float_module):
        return cls()


class OwnQuantized(M.Module):
    def __init__(self):
        super().__init__()
        self.layer = OwnLayer()
        self.layer.set_qconfig(Q.ema_fakequant_qconfig)

    def forward(self, x):
        return self.layer(x)


@case
def qat_own():
    made, x = OwnQuantized(), floats(4, 4)
    made(x)
    return made, (x,), {}


@tm.wrap
def scaled(x, k=2):
    return x * k + 1


class Registered(M.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.w = mge.Parameter([1.0, 2.0, 3.0, 4.0])
        self.inner = M.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) * self.w + self.k


tm.register_as_builtin(Registered)


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.layer = Registered(3)

    def forward(self, x):
        return scaled(self.layer(x), k=3)


@case
def registered():
    return Outer(), (floats(3, 4),), {}


class Vision(M.Module):
    def forward(self, x, rois, grid, matrix):
        flat, labels = x.reshape(2, -1), mge.Tensor([0, 1], dtype="int32")
        return (
            F.vision.roi_align(x, rois, (2, 2), spatial_scale=1.0, sample_points=2),
            F.vision.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
            F.vision.remap(x, grid),
            F.vision.warp_perspective(x, matrix, (3, 3)),
            F.vision.nms(F.abs(rois[:, 1:]), F.abs(rois[:, 0]), 0.5),
            F.loss.cross_entropy(flat, labels),
            F.nn.one_hot(labels, 3),
            F.nn.conv2d(x, F.ones((3, 2, 1, 1)), padding=1),
            F.gather(flat, 1, mge.Tensor([[1], [2]], dtype="int32")),
            F.cumsum(x, 1) + F.logsumexp(x, 1, keepdims=True),
            F.cond_take(x > 0, x)[0],
            F.repeat(F.tile(F.stack([x, x]), (1, 2, 1, 1, 1)), 2, 1),
        )


@case
def vision():
    rois = np.array([[0, 0.5, 0.5, 3, 3], [1, 1, 1, 2.5, 4]], "float32")
    grid = (np.random.RandomState(1).rand(2, 3, 3, 2) * 3).astype("float32")
    matrix = np.tile(np.eye(3, dtype="float32") + 0.01, (2, 1, 1))
    return Vision(), (floats(2, 2, 5, 5), *map(mge.Tensor, (rois, grid, matrix))), {}


class Norms(M.Module):
    def forward(self, x, scale, bias, mean, var):
        def norm(mode, *stats):
            options = {"epsilon": 1e-4, "avg_factor": 0.25, "param_dim": "dim_1c11"}
            return apply(builtin.BatchNorm(fwd_mode=mode, **options), x, scale, bias, *stats)

        every = norm("TRAINING", mean, var), norm("TRAINING"), norm("INFERENCE", mean, var)
        return [[*found[:-2], found[-1]] for found in every]  # without what backward keeps


@case
def norms():
    rows = [floats(1, 3, 1, 1), *[F.abs(floats(1, 3, 1, k)[:, :, :, :1]) for k in (2, 3, 4)]]
    return Norms(), (floats(2, 3, 4, 5), *rows), {}


class Recurrent(M.Module):
    def __init__(self):
        super().__init__()
        both = {"bidirectional": True}
        self.layers = [
            M.RNN(3, 4),
            M.RNN(3, 4, 2, nonlinearity="relu", batch_first=True, **both),
            M.RNN(3, 4, 2, bias=False),
            M.LSTM(3, 4),
            M.LSTM(3, 4, 3, dropout=0.5, **both),
            M.LSTM(3, 4, 2, bias=False, batch_first=True, **both),
            M.LSTM(3, 4, 2, proj_size=2, **both),  # which it does not project
        ]
        self.rnn = M.RNN(3, 4, 1, **both)
        self.lstm = M.LSTM(3, 4, 2)

    def forward(self, x, h, c):
        return [layer(x) for layer in self.layers], self.rnn(x, h), self.lstm(x, (h, c))


@case
def recurrent():
    return Recurrent(), (floats(5, 2, 3), floats(2, 2, 4), floats(2, 2, 5)[:, :, :4]), {}


def arrays(values):
    file = io.BytesIO()
    leaves, _ = tree_flatten(values)
    np.savez_compressed(file, *[leaf.numpy() for leaf in leaves if isinstance(leaf, mge.Tensor)])
    return file.getvalue()


def main():
    sys.setrecursionlimit(10_000)
    target = Path(__file__).with_name("traced_modules.zip")
    added = sys.argv[1:]
    with zipfile.ZipFile(target, "a" if added else "w", zipfile.ZIP_DEFLATED) as archive:
        for name, make in ((key, CASES[key]) for key in added or CASES):
            mge.random.seed(3)
            np.random.seed(3)
            module, args, kwargs = make()
            module.eval()
            traced = tm.trace_module(module, *args, **kwargs)
            archive.writestr(f"{name}.in.npz", arrays((args, kwargs)))
            archive.writestr(f"{name}.out.npz", arrays(traced(*args, **kwargs)))
            file = io.BytesIO()
            mge.save(traced, file)
            archive.writestr(f"{name}.tm", file.getvalue())
            if name == "net":
                flat = traced.flatten()
                archive.writestr("flat.tm", pickle.dumps(flat, 2))
                archive.writestr("several.tm", pickle.dumps({"model": traced, "more": [flat, 3]}))


if __name__ == "__main__":
    main()
