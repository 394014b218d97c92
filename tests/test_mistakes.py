"""What people do wrong in their first hours, PyTorch's habits above all, and what they are told.

Rows are programs and words of what they must say: what is wrong, and what to do. Who changes a
message keeps its advice.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O
from treadle import Trainer
from treadle.autodiff import GradManager
from treadle.data import DataLoader, RandomSampler
from treadle.data.dataset import ArrayDataset

WRONG_SHAPES = r"""
M.Linear(7, 3)(x)                         | linear: .* differ | in_features
M.Linear(100, 10)(F.flatten(img, 1))      | linear: | flatten or reshape x
M.Conv2d(1, 4, 3)(img)                    | x has 3 channels, expected 1
M.Conv2d(3, 4, 3)(img[0])                 | both need as many | F\.expand_dims\(x, 0\)
M.Conv2d(3, 4, 3)(F.ones((2, 8, 8, 3)))   | x has 8 channels | F\.transpose\(x, \(0, 3, 1, 2\)\)
M.Conv1d(3, 4, 3)(F.ones((2, 8, 3)))      | x has 8 channels | F\.transpose\(x, \(0, 2, 1\)\)
M.Conv2d(3, 4, 3, padding="same")         | 'same' | half of an odd kernel size
M.LayerNorm(7)(x)                         | layer_norm: | normalized_shape
M.Sequential(M.ReLU(), M.Linear(7, 3))(x) | differ | in:   1, of class Linear
x + F.ones((4, 7))                        | axis -1: 8 against 7 | reshape one operand
x @ x                                     | inner extents 8 and 4 | transpose one
x.reshape(5, -1)                          | \[4,8\] to \[5,-1\] | would not be whole
x[9]                                      | index 9 .* size 4 | use -4 to 3
img.transpose(1, 2)                       | not a permutation | F\.swapaxes
F.transpose(img, 1, 2)                    | one pattern | F\.swapaxes
F.pad(img, (1, 1, 1, 1))                  | \[\(0, 0\), \(0, 0\), \(1, 1\), \(1, 1\)\]
F.concat(x, x)                            | one list: F\.concat\(\[x, y\], axis\)
F.stack(x, x)                             | one list: F\.stack\(\[x, y\], axis\)
mge.random.normal((2, 3))                 | pass the size
mge.tensor([[1, 2], [3]])                 | differ in length | pad them
F.where(x, x, x)                          | mask must be bool, got float32 | x > 0
bool(x > 0)                               | only a tensor of one element | F\.any, F\.all
x.item()                                  | only a tensor of one element | x\.tolist\(\)
M.Embedding(10, 4)(mge.tensor([1., 2.]))  | float32 indices | astype\("int32"\)
net(Foreign())                            | cannot make numbers | pass numbers | of class Linear
net(None)                                 | operand is None | without `return`
net(x, x)                                 | takes 2 positional | forward\(inp\)
net()                                     | missing 1 required | forward\(inp\)
x.to("cuda")                              | no device name|not a device name | did you mean 'gpux'
mge.tensor([1.], device="cuda:0")         | did you mean 'gpu0'
x.to("cpu")                               | did you mean 'cpux'
net.to("cuda")                            | did you mean 'gpux'
mge.tensor([1.], device="cpu0") + mge.tensor([1.], device="cpu1") | different devices | x\.to\('cpu0
"""

LOSSES_AND_TRAINING = r"""
F.loss.cross_entropy(net(x), F.one_hot(lab, 3))        | expected one less | F\.argmax\(label
F.loss.cross_entropy(net(x), lab.reshape(4, 1))        | expected one less | F\.squeeze
F.loss.cross_entropy(net(x), lab + 2)                  | none of 3 classes | use 0 to 2
F.loss.cross_entropy(lab, net(x))                      | pred comes first
mge.jit.compile(F.loss.cross_entropy)(net(x), lab + 2) | out of range | use 0 to 2
GradManager(net.parameters())                          | \.attach\(net\.parameters\(\)\)
GradManager().attach(net)                              | gm\.attach\(net\.parameters\(\)\)
GradManager().attach(net.state_dict())                 | got str | attach the values
GradManager().attach([0.5])                            | got float | treadle\.tensor
GradManager().attach(net.parameters()).backward(net(x).sum()) | inside of `with gm:`
backward_twice()                                       | once; for several losses pass a list
backward_of_float()                                    | pass the loss itself, not loss\.item
net(x).sum().backward()                                | GradManager
mge.tensor([1.], requires_grad=True)                   | GradManager\(\)\.attach | frozen
setattr(x, "requires_grad", True)                      | GradManager\(\)\.attach | frozen
net.requires_grad_(False)                              | leave its parameters out
O.SGD(net, lr=0.1)                                     | pass net\.parameters\(\)
O.SGD(net.parameters, lr=0.1)                          | call it: net\.parameters\(\)
O.SGD([x], lr=0.1)                                     | make it a treadle\.Parameter
O.SGD(net.parameters())                                | 'lr' | SGD\(params, lr, \.\.\.\)
O.OneCycleLR(O.SGD(net.parameters(), lr=0.1), max_lr=1.) | OneCycleLR\(optimizer, max_lr, total
O.Adam(net.parameters(), lr=0.1, fused=True)           | 'fused' | jit\.compile
M.Conv2d(3, 4)                                         | Conv2d\(in_channels, out_channels, ker
M.Linear(3, 4, device="cpux")                          | 'device' | \.to\(device\)
M.Sequential([M.ReLU()])                               | got list | Sequential\(\*layers\)
M.Sequential(M.ReLU)                                   | the class ReLU; construct it
ForgotSuper()                                          | super\(\)\.__init__\(\)
NoForward()                                            | define forward in class NoForward
net.load_state_dict("net.pkl")                         | treadle\.load\(path\)
net.load_state_dict({"foo": np.zeros(3)})              | unused=\['foo'\] | strict=False
DataLoader(data, batch_size=2, shuffle=True)           | RandomSampler\(dataset, batch_size=2\)
DataLoader(data, 2)                                    | RandomSampler\(dataset, batch_size=32\)
DataLoader(np.zeros((4, 2)))                           | got ndarray | ArrayDataset\(array\)
next(iter(DataLoader(ArrayDataset(x, lab))))           | NumPy arrays | tensor\.numpy\(\)
ArrayDataset(np.zeros((4, 2)), np.zeros(5))            | inconsistent: \[4, 5\]
RandomSampler(data, batch_size=0)                      | batch_size=0
Trainer(net, "adam", F.loss.cross_entropy)             | should be an Optimizer, got str | Adam\(
Trainer(net, None, "mse")                              | should be a function, got str
Trainer(net, metrics=["accuracy"])                     | metrics=\{'accuracy': F\.topk_accuracy\}
Trainer(net, progress=False).fit(data, 1)              | DataLoader\(dataset, RandomSampler
fit(np.zeros((40, 8)))                                 | inputs and the target | Trainer\.fields
fit(np.full((40, 8), np.nan), np.zeros(40, "int32"))   | loss of step 1 is nan | learning rate
"""

INSIDE_OF_COMPILE = r"""
compiled(lambda a: a if a.sum() > 0 else -a)           | F\.where or jit\.cond
compiled(lambda a: a * a.sum().item())                 | return the tensor and read it outside
compiled(lambda a: a + mge.tensor(np.sin(a.numpy())))  | known only when the program runs
compiled(lambda a: print(a))                           | jit\.print
compiled(lambda a: f"{a.mean():.3f}")                  | jit\.print
compiled(lambda a: mge.jit.while_loop(lambda s: s.sum()>9, lambda s: (s[s>.5],), (a,))) | of axes
compiled(lambda a: [a for _ in range(len(a[a > .5]))]) | data decide it: return the tensor
compiled(lambda a: [a for _ in range(a.sum().astype("int32"))]) | jit\.while_loop
mge.jit.compile(net, mode="max-autotune")              | 'mode' | level=0, 1 or 2
mge.jit.compile(3)                                     | a function or a module, got int
"""

NAMES = r"""
mge.compile(net)           | treadle\.jit\.compile
mge.no_grad()              | treadle\.autodiff\.no_grad
mge.inference_mode()       | treadle\.autodiff\.no_grad
mge.zeros(2, 3)            | treadle\.functional\.zeros
mge.randn(2, 3)            | treadle\.random\.normal\(size=shape\)
mge.nn.Linear(2, 3)        | treadle\.module
mge.float32                | dtypes are given by name
F.cat([x, x])              | F\.concat
F.mse_loss(x, x)           | F\.nn\.square_loss
F.cross_entropy(x, lab)    | F\.nn\.cross_entropy
F.nll_loss(x, lab)         | F\.nn\.cross_entropy
F.interpolate(img)         | F\.vision\.interpolate
F.fill_(x, 1)              | x\[\.\.\.\] = value
F.relu6x(x)                | did you mean F\.relu6\?
M.ModuleList([])           | list of modules as an attribute
M.Liner(2, 2)              | treadle\.module\.Linear
x.view(2, 16)              | x\.reshape\(shape\)
x.permute(0, 1)            | F\.transpose
x.size(0)                  | x\.shape\[axis\]
x.cuda()                   | x\.to\("gpux"\)
x.cpu()                    | x\.to\("cpux"\)
x.long()                   | x\.astype\("int64"\)
x.add_(1)                  | x \+= y
x.clamp_(0, 1)             | F\.clip
x.masked_fill(x > 0, 0.)   | F\.where\(mask, value, x\)
x.all()                    | F\.all\(x\)
x.data                     | x\.detach\(\)
x.reshpe(2, 2)             | x\.reshape
x.repeat(2)                | F\.tile
net.cuda()                 | net\.to\("gpux"\)
net.freeze()               | leave its parameters out
"""

TAKEN = r"""
x.sum(dim=1)                                    | (4,)
F.sum(x, dim=1)                                 | (4,)
F.softmax(x, dim=1)                             | (4, 8)
x.mean(axis=1, keepdim=True)                    | (4, 1)
F.concat([x, x], dim=1)                         | (4, 16)
F.argmax(x, dim=1)                              | (4,)
F.zeros(2, 3)                                   | (2, 3)
M.Flatten()(img)                                | (2, 192)
M.Dropout(p=0.1)(x)                             | (4, 8)
M.CrossEntropyLoss()(net(x), lab)               | ()
M.MSELoss()(x, x)                               | ()
M.Linear(8, 3)(np.zeros((2, 8)))                | (2, 3)
M.Linear(2, 2)([[1., 2.]])                      | (1, 2)
M.Conv2d(3, 4, kernel_size=3, padding_mode="zeros")(img) | (2, 4, 6, 6)
F.vision.interpolate(img, scale_factor=2., mode="bilinear", align_corners=False) | (2, 3, 16, 16)
compiled(np.exp)                                | (4, 8)
"""

SAID = r"""
step(gm=GradManager())            | no tensor is attached\. Call gm\.attach\(net\.parameters
step(outside=True)                | depends on none of the 4 attached tensors
step(through_numpy=True)          | \.numpy\(\), \.detach\(\) and no_grad\(\) cut
O.SGD(net.parameters(), lr=0.1).step() | changes nothing: none of its 4 parameters
[step(clear=False) for _ in range(3)]  | earlier step again.*opt\.step\(\)\.clear_grad\(\)
several(step(compiled=True, clear=False), 3) | earlier step again.*opt\.step\(\)\.clear_grad\(\)
compiled(lambda a: a * __import__("random").random())  | drawn from random .*treadle\.random
compiled(lambda a: a * np.random.rand())               | drawn from numpy\.random
[fixed(F.ones(n)) for n in range(1, 12)]               | another shape.*dynamic=
[turning(F.ones(n)) for n in range(1, 12)]             | arg0_0 at .*test_mistakes.*x\.shape
[changing(x, n / 7) for n in range(1, 12)]             | another Python number.*pass a tensor
"""

SILENT = r"""
several(step(compiled=True), 3)
several(step(compiled=True, clear="before"), 3)
several(step(compiled=True, backwards=2), 3)
[step(backwards=2) for _ in range(3)]
compiled(lambda a: a * mge.random.uniform())
compiled(lambda a: a * np.random.default_rng(3).random())
"""


class Foreign:
    """Something that is no array."""


class ForgotSuper(M.Module):
    def __init__(self) -> None:
        self.a = M.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.a(x)


class NoForward(M.Module):
    pass


def known() -> dict[str, Any]:
    """What programs may name; everything that they change is their own."""
    x = mge.tensor(np.linspace(0.1, 1, 32, dtype="float32").reshape(4, 8))
    net = M.Sequential(M.Linear(8, 16), M.ReLU(), M.Linear(16, 3))
    labels = mge.tensor(np.array([0, 1, 2, 1], "int32"))
    params = list(net.parameters())
    manager, opt = GradManager().attach(params), O.SGD(params, lr=0.1)

    def loss() -> Any:
        return F.loss.cross_entropy(net(x), labels)

    def backward_twice() -> None:
        with manager:
            found = loss()
            manager.backward(found)
            manager.backward(found)

    def backward_of_float() -> None:
        with manager:
            manager.backward(loss().item())

    def step(
        gm: GradManager = manager,
        outside: bool = False,
        through_numpy: bool = False,
        clear: Any = True,
        compiled: bool = False,
        backwards: int = 1,
    ) -> Any:
        def run(given: Any) -> Any:
            if clear == "before":
                opt.clear_grad()
            found = loss() if outside else None
            for _ in range(backwards):
                with gm:
                    found = loss() if found is None or backwards > 1 else found
                    gm.backward(mge.tensor(found.numpy()) if through_numpy else found)
            opt.step()
            if clear is True:
                opt.clear_grad()
            return found

        return mge.jit.compile(run) if compiled else run(x)

    def fit(*fields: Any) -> None:
        data = ArrayDataset(*[f.astype("f") if f.dtype == "float64" else f for f in fields])
        trainer = Trainer(net, opt, F.loss.cross_entropy, progress=False, compile=False)
        trainer.fit(DataLoader(data, RandomSampler(data, 4)), epochs=1)

    return {
        **globals(),
        "x": x,
        "lab": labels,
        "net": net,
        "img": mge.tensor(np.ones((2, 3, 8, 8), "float32")),
        "data": ArrayDataset(np.zeros((4, 2)), np.zeros(4)),
        "step": step,
        "fit": fit,
        "backward_twice": backward_twice,
        "backward_of_float": backward_of_float,
        "compiled": lambda f: mge.jit.compile(f)(x),
        "changing": mge.jit.compile(lambda *given: given[0] * given[-1]),
        "fixed": mge.jit.compile(dynamic=False)(lambda given: given * 2),
        "turning": mge.jit.compile(lambda given: given * len(range(given.shape[0]))),
        "several": lambda f, times: [f(x) for _ in range(times)],
    }


def rows(table: str) -> list[list[str]]:
    """A program, and what follows it, of each line."""
    return [re.split(r"\s+\|\s+", line) for line in table.strip().splitlines()]


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """What Treadle says meanwhile."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("treadle")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    "table", [WRONG_SHAPES, LOSSES_AND_TRAINING, INSIDE_OF_COMPILE, NAMES],
    ids=["shapes", "training", "compile", "names"],
)  # fmt: skip
def test_errors_say_what_to_do(table: str) -> None:
    bad = []
    for program, *words in rows(table):
        try:
            eval(program, known())
            bad.append(f"{program}: raises nothing")
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
            bad += [f"{program}: no {w!r} in\n{text}" for w in words if not re.search(w, text)]
    assert not bad, "\n".join(bad)


def test_names_of_one_meaning_are_taken() -> None:
    for program, shape in rows(TAKEN):
        assert str(tuple(eval(program, known()).shape)) == shape, program


@pytest.mark.parametrize("program", [p for p, *_ in rows(SAID)])
def test_programs_that_do_nothing_say_so(program: str) -> None:
    (words,) = [w for p, w in rows(SAID) if p == program]
    with logged() as lines:
        eval(program, known())
    assert re.search(words, "\n".join(lines), re.DOTALL), lines


def test_programs_that_are_right_say_nothing() -> None:
    for program, *_ in rows(SILENT):
        with logged() as lines:
            eval(program, known())
        assert not lines, (program, lines)


def test_asking_whether_an_attribute_exists_looks_for_no_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> list[str]:
        raise RuntimeError("advice was looked for")

    monkeypatch.setattr("difflib.get_close_matches", fail)
    for thing in (M.Linear(2, 2), mge.tensor([1.0])):
        assert not hasattr(thing, "wieght")
        assert getattr(thing, "wieght", 3) == 3


def test_an_error_of_a_missing_attribute_can_be_pickled() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = M.Linear(2, 2).state_dic
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AttributeError
    assert str(again) == str(caught.value)
    assert "did you mean" in str(again)
