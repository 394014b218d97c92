"""Models that were dumped at one size and run at others, as those of MegEngine do."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.engine.package.models import read_models, write_models
from treadle.graph.printer import to_text
from treadle.jit import trace
from treadle.jit.dump import Ends
from treadle.lite import LiteNetwork
from treadle.ops.check import ValuesDiffer
from treadle.ops.constant import Constant
from treadle.tensor import Tensor
from treadle.utils.comp_graph_tools import GraphInference
from treadle.utils.network import Network

Function = Callable[..., Any]
N, H, W, K = "N", "H", "W", "K"
IMAGE, ROWS, TOKENS = (N, 3, H, W), (N, K), (N, K, 4)
AT = {N: 2, H: 12, W: 10, K: 6}
OTHERS = ({N: 3, H: 17, W: 14, K: 9}, {N: 1, H: 9, W: 8, K: 4})
RANDOM = np.random.RandomState(0)


def module(made: M.Module) -> M.Module:
    made.eval()
    return made


def to_eights(x: Tensor) -> Tensor:
    _, _, h, w = x.shape
    return F.pad(x, ((0, 0), (0, 0), (0, -h % 8), (0, -w % 8)))


def windows(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    x = x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
    return x.transpose(0, 2, 4, 1, 3, 5).reshape(-1, c, 2, 2)


def places(x: Tensor) -> Tensor:
    n, _, h, w = x.shape
    down = F.broadcast_to(F.arange(h).reshape(-1, 1), (n, h, w))
    return F.vision.remap(x, F.stack([F.broadcast_to(F.arange(w), (n, h, w)), down], -1))


def grid(x: Tensor) -> Tensor:
    h, w = x.shape[2:]
    return F.stack([F.repeat(F.arange(h), w), F.tile(F.arange(w), h)], 1)


def attention(x: Tensor) -> Tensor:
    scores = F.matmul(x, x.transpose(0, 2, 1)) / x.shape[-1] ** 0.5
    return F.matmul(F.softmax(scores, axis=-1), x)


def boxes(x: Tensor) -> Tensor:
    corners = F.concat([x[0, :, :2], x[0, :, :2] + 1 + F.abs(x[0, :, 2:])], 1)
    kept = F.vision.nms(corners, x[0, :, 0], 0.5)
    return corners[kept] * 2


TAKEN: dict[str, tuple[Function, Sequence[Any]]] = {
    "convolution": (module(M.Conv2d(3, 4, 3, 2, 1)), [IMAGE]),
    "transposed": (module(M.ConvTranspose2d(3, 4, 3, 2, 1)), [IMAGE]),
    "pooling": (lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 2), [IMAGE]),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [IMAGE]),
    "normalizations": (
        module(M.Sequential(M.BatchNorm2d(3), M.GroupNorm(3, 3), M.InstanceNorm(3))),
        [IMAGE],
    ),
    "layer norm": (module(M.LayerNorm(4)), [TOKENS]),
    "flatten": (lambda x: F.flatten(x, 2), [IMAGE]),
    "reshape": (lambda x: x.reshape(x.shape[0], 3, x.shape[2] * x.shape[3]), [IMAGE]),
    "scale": (lambda x: F.vision.interpolate(x, scale_factor=2), [IMAGE]),
    "size": (lambda x: F.vision.interpolate(x, (x.shape[2] * 2, x.shape[3] + 1)), [IMAGE]),
    "size of another": (
        lambda x, y: x + F.vision.interpolate(y, x.shape[2:]),
        [IMAGE, (N, 3, 5, 4)],
    ),
    "padding": (to_eights, [IMAGE]),
    "reflected": (
        lambda x: F.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0)), mode="reflect"),
        [IMAGE],
    ),
    "parts": (lambda x: [x[:, :, : x.shape[2] // 2], x[:, :, 1:-1, ::2]], [IMAGE]),
    "joined": (lambda x: F.concat([x, F.stack([x, x], 1).sum(1)], 1), [IMAGE]),
    "counted": (lambda x: F.arange(x.shape[1]) + F.linspace(0, x.shape[1] - 1, x.shape[1]), [ROWS]),
    "grid": (grid, [IMAGE]),
    "windows": (windows, [IMAGE]),
    "remapped": (places, [IMAGE]),
    "filled": (lambda x: F.ones((x.shape[0], 1, x.shape[3])) + x[:, :1, 0], [IMAGE]),
    "broadcast": (lambda x: F.broadcast_to(F.ones((1, 1)), x.shape) + F.eye(x.shape[1])[0], [ROWS]),
    "statistics": (lambda x: [F.var(x, 1), x.mean(1), F.norm(x, axis=1), x.sum()], [ROWS]),
    "ordered": (lambda x: [F.argsort(x), *F.topk(x, 3), F.argmax(x, 1)], [ROWS]),
    "half of all": (lambda x: F.topk(x, x.shape[1] // 2), [ROWS]),
    "products": (lambda x, y: F.matmul(x, y), [(N, K, H), (N, H, W)]),
    "linear": (module(M.Linear(4, 5)), [TOKENS]),
    "attention": (attention, [TOKENS]),
    "numbers": (lambda x: x / x.shape[1] + x.shape[0], [ROWS]),
    "gathered": (lambda x: x[F.arange(x.shape[0]).astype("int32"), 0], [ROWS]),
    "branch": (lambda x: x + 1 if x.shape[1] > 2 else x - 1, [ROWS]),
    "regions": (
        lambda x: F.vision.roi_align(x, F.concat([F.zeros((1, 1)), F.ones((1, 4)) * 3], 1), 2),
        [IMAGE],
    ),
    "mask": (lambda x: x[x > 0] + 1, [ROWS]),
    "places of some": (lambda x: [F.non_zero(x > 0), *F.cond_take(x > 0, x)], [ROWS]),
    "boxes": (boxes, [TOKENS]),
}


def arrays(shapes: Sequence[Any], extents: dict[str, int]) -> list[Any]:
    wanted = [tuple(extents.get(d, d) for d in shape) for shape in shapes]
    return [(RANDOM.rand(*shape) - 0.5).astype("float32") for shape in wanted]


def dumped(function: Function, given: Sequence[Any], **options: Any) -> io.BytesIO:
    """The bytes of a model that was traced with these arrays."""
    traced = trace(
        lambda *inputs: function(*inputs), symbolic=True, capture_as_const=True, **options
    )
    traced(*map(mge.tensor, given))
    file = io.BytesIO()
    traced.dump(file, arg_names=[f"x{i}" for i in range(len(given))])
    file.seek(0)
    return file


def flat(results: Any) -> list[Any]:
    return [r.numpy() for r in (results if isinstance(results, list | tuple) else [results])]


def check(infer: GraphInference, function: Function, given: Sequence[Any]) -> None:
    found = list(infer.run(*given).values())
    for got, want in zip(found, flat(function(*map(mge.tensor, given))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TAKEN)
def test_models_take_other_sizes(name: str) -> None:
    function, shapes = TAKEN[name]
    infer = GraphInference(dumped(function, arrays(shapes, AT)))
    for extents in (AT, *OTHERS):
        check(infer, function, arrays(shapes, extents))


@pytest.mark.parametrize("first", [1, 4])
def test_the_batch_of_a_dump_is_no_part_of_it(first: int) -> None:
    net = module(M.Sequential(M.Conv2d(3, 4, 3), M.AdaptiveAvgPool2d(1), M.Linear(1, 2)))
    infer = GraphInference(dumped(net, [np.ones((first, 3, 8, 8), "float32")]))
    for rows in (1, 2, 4):
        check(infer, net, arrays([IMAGE], {N: rows, H: 8, W: 9}))


REFUSED: dict[str, tuple[Function, str]] = {
    "a number of a loop": (lambda x: sum([x[:, i] for i in range(x.shape[1])]), "is a number in"),
    "a root": (lambda x: x * x.shape[1] ** 0.5, "is a number in"),
    "a tensor of extents": (lambda x: x.reshape(mge.tensor([-1, x.shape[1], 1])), "is a number in"),
    "a value": (lambda x: x * float(x.sum().numpy() > 0) + x.shape[1], "is a number in"),
}


@pytest.mark.parametrize(
    ("shapes", "others"),
    [
        ([(3, 2, 4, 1)], [(6, 2, 4, 1)]),
        ([(4, 1), (4, 2)], [(8, 1), (8, 2)]),
        ([(1,), (2,)], [(1,), (7,)]),
        ([(1, 1), (2, 2)], [(1, 1), (5, 3)]),
        ([(1, 2), (2, 2)], [(1, 4), (6, 4)]),
    ],
)
def test_an_axis_of_one_element_broadcasts_over_two(
    shapes: list[tuple[int, ...]], others: list[tuple[int, ...]]
) -> None:
    # Where an extent of 1 is open the function meets 2 in its place, which these have beside it.
    weight = mge.Parameter(RANDOM.rand(4, 2).astype("float32"))

    def function(x: Tensor, y: Tensor | None = None) -> Tensor:
        return x * (weight if y is None else y) + 1

    given = [RANDOM.rand(*shape).astype("float32") for shape in shapes]
    infer = GraphInference(dumped(function, given))
    check(infer, function, given)
    check(infer, function, [RANDOM.rand(*shape).astype("float32") for shape in others])


BOUNDS = (None, -3, -2, -1, 0, 1, 2, 3)
SLICES = [(first, last, step) for first in BOUNDS for last in BOUNDS for step in (1, -1, 2, -2)]


@pytest.mark.parametrize("traced", [1, 3])
def test_slices_of_one_row_are_right_or_refused(traced: int) -> None:
    """Bounds are brought into an axis of at least 2: `x[-1:1] = 0` was nothing for one row."""
    one = RANDOM.randn(1, 2).astype("float32")
    refused = 0
    for bounds in SLICES[:: 1 if traced == 1 else 3]:

        def both(x: Tensor, part: slice = slice(*bounds)) -> tuple[Tensor, Tensor]:
            y = x * 1
            y[part] = 0
            return y, x[part].sum(0)

        file = dumped(both, [RANDOM.randn(traced, 2).astype("float32")])
        try:
            found = list(GraphInference(file).run(one).values())
        except ShapeError:
            refused += 1
            continue
        expected = [t.numpy() for t in both(mge.tensor(one))]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=str(bounds))
    # What was traced is always taken; of others, most slices mean another thing for one row.
    assert refused == 0 if traced == 1 else refused < len(SLICES) / 3


COURSES: dict[str, Function] = {
    "more than one": lambda x: x * 3 if x.shape[0] > 1 else x * 2,
    "at least two": lambda x: x * 3 if not x.shape[0] < 2 else x * 2,
    "one": lambda x: x * 3 if x.shape[0] == 1 else x * 2,
    "not one": lambda x: x * 3 if x.shape[0] != 1 else x * 2,
    "the larger": lambda x: x * max(x.shape[0], 2),
    "one less, or one": lambda x: ((x - x.mean(0)) ** 2).sum(0) / max(x.shape[0] - 1, 1),
    "no axis of one": lambda x: F.squeeze(x),
    "from one less than all": lambda x: x[1 - x.shape[0] :].sum(0),
}
EMPTY: dict[str, Function] = {
    "some or none": lambda x: x.sum(0) if x.shape[0] > 0 else F.ones((2,)),
    "truth": lambda x: x.sum(0) if x.shape[0] else F.ones((2,)),
    "none": lambda x: F.ones((2,)) if x.shape[0] == 0 else x.sum(0),
}


@pytest.mark.parametrize("traced", [1, 3])
@pytest.mark.parametrize("name", [*COURSES, *EMPTY])
def test_a_course_of_many_rows_is_none_of_one_or_no_row(name: str, traced: int) -> None:
    """Symbols begin at 2: what was answered by that was no guard, and the numbers were wrong."""
    function, rows = (COURSES[name], 1) if name in COURSES else (EMPTY[name], 0)
    given = RANDOM.rand(rows, 2).astype("float32")
    infer = GraphInference(dumped(function, [RANDOM.rand(traced, 2).astype("float32")]))
    if rows == traced:
        check(infer, function, [given])
        return
    with pytest.raises(ShapeError, match=r"its course needs|and another one"):
        infer.run(given)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_what_is_right_for_one_row_too_is_taken(rows: int) -> None:
    """Slices that are empty, as of one row they should be, were refused; a spread was NaN."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        shifted = F.concat([F.zeros((1, 2)), x[:-1]], 0)
        return shifted, x[1:].sum(0), (x[1:] - x[:-1]).sum(0), F.linspace(2, 5, x.shape[0])

    given = [RANDOM.rand(rows, 2).astype("float32")]
    check(GraphInference(dumped(function, [RANDOM.rand(3, 2).astype("float32")])), function, given)


def test_an_axis_that_another_one_fixes_is_a_guard() -> None:
    """Of two axes that must be equal one is a number by another op: the file could not be read."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return F.logaddexp(x, y), F.broadcast_to(y, (3, 2, 3))

    given = [RANDOM.rand(*shape).astype("float32") for shape in ((3,), (2, 3))]
    [model] = read_models(dumped(function, given))
    assert model.opened is not None
    assert [str(g) for g in model.opened.graph.guards] == ["x0_0 - 3 == 0"]
    check(GraphInference(dumped(function, given)), function, given)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_depends_on_is_refused_and_never_wrong(name: str) -> None:
    function, problem = REFUSED[name]
    given = np.ones((AT[N], AT[K]), "float32")
    infer = GraphInference(dumped(function, [given]))
    infer.run(given)
    with pytest.raises((ShapeError, ValuesDiffer), match=problem):
        infer.run(np.ones((2, 9), "float32"))


def test_traces_may_say_that_a_model_is_for_one_size() -> None:
    given = arrays([ROWS], AT)
    [model] = read_models(dumped(F.relu, given, symbolic_shape=False))
    assert model.opened is None  # The same ops run at other sizes, as those of older files do.
    [model] = read_models(dumped(F.relu, given))
    assert model.opened is not None and not model.opened.is_fixed


AS_THEY_STAND: dict[str, tuple[Function, Sequence[Any]]] = {
    "layers": (module(M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU())), [IMAGE]),
    "pooling": (lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1), [IMAGE]),
    "attention": (lambda x: F.softmax(F.matmul(x, x.transpose(0, 2, 1))), [TOKENS]),
    "statistics": (lambda x: [F.var(x, 1), x.mean(0), F.argsort(x), F.argmax(x, 1)], [ROWS]),
    "joined": (lambda x: F.concat([x, x * 2], 1), [ROWS]),
}
NUMBERS: dict[str, tuple[Function, str]] = {
    "half of all": (lambda x: F.topk(x, x.shape[1] // 2), "top_k: k may follow from an extent"),
    "flattened": (lambda x: x.reshape(-1), "reshape: shape may follow"),
    "first half": (lambda x: x[:, : x.shape[1] // 2], "slice: starts and stops may follow"),
    "padded": (lambda x: F.pad(x, ((0, 0), (0, -x.shape[1] % 8))), "pad: widths may follow"),
    "counted": (lambda x: x.sum(1) + F.arange(x.shape[0]), "iota: n may follow"),
    "all of one": (lambda x: F.full((x.shape[0], 1), 3.0) * x, "full: shape may follow"),
}


@pytest.mark.parametrize("name", AS_THEY_STAND)
def test_files_that_say_nothing_of_other_sizes_run_the_same_ops(name: str) -> None:
    function, shapes = AS_THEY_STAND[name]
    infer = GraphInference(dumped(function, arrays(shapes, AT), symbolic_shape=False))
    for extents in (AT, *OTHERS):
        check(infer, function, arrays(shapes, extents))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_may_be_extents_are_refused_in_files_that_do_not_say(
    name: str, rows: int
) -> None:
    """They were taken as they are, but for the first of a reshape: topk of half gave a quarter."""
    function, problem = NUMBERS[name]
    given = RANDOM.rand(rows, 6).astype("float32")
    file = dumped(function, [given], symbolic_shape=False)
    infer = GraphInference(file)
    check(infer, function, [given])
    with pytest.raises(ShapeError, match=problem):
        infer.run(RANDOM.rand(4, 12).astype("float32"))
    file.seek(0)
    net = Network.load(file)
    with pytest.raises(ShapeError, match=problem):
        net.reset_batch_size(4)


def test_networks_are_not_taken_beyond_what_their_file_is_for() -> None:
    halves = dumped(lambda x: x * 2 if x.shape[0] % 2 == 0 else x, [np.ones((4, 3), "float32")])
    net = Network.load(halves)
    with pytest.raises(ShapeError, match="its course needs"):
        net.reset_batch_size(5)


def test_axes_that_a_layer_fixes_are_numbers() -> None:
    [model] = read_models(dumped(module(M.Conv2d(3, 4, 3)), arrays([IMAGE], AT)))
    assert model.opened is not None
    assert str(model.opened.graph.inputs[0].type) == "float32[x0_0,3,x0_2,x0_3]"
    assert [v.type.shape for v in model.graph.inputs] == [(2, 3, 12, 10)]
    with pytest.raises(ShapeError, match="an extent is a number in what was traced"):
        model.at([(2, 4, 12, 10)])
    with pytest.raises(ShapeError, match=r"its course needs x0_2 - 3 >= 0"):
        model.at([(2, 3, 2, 2)])


def test_courses_that_a_function_chose_are_guards() -> None:
    def halves(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x * 3

    file = dumped(halves, [np.ones((4, 3), "float32")])
    infer = GraphInference(file)
    assert infer.run(np.ones((6, 3), "float32"))["MUL"].max() == 2
    with pytest.raises(ShapeError, match="its course needs"):
        infer.run(np.ones((5, 3), "float32"))


def test_a_function_is_recorded_again_where_it_is_still_the_same() -> None:
    factor = [2.0]
    traced = trace(lambda x: F.softmax(x, 1) if factor[0] == 2.0 else x, capture_as_const=True)
    traced(mge.tensor(np.ones((2, 3), "float32")))
    factor[0] = 3.0
    file = io.BytesIO()
    traced.dump(file)
    file.seek(0)
    [model] = read_models(file)
    assert model.opened is not None and model.opened.is_fixed
    assert "softmax" in to_text(model.graph)


def test_networks_keep_open_extents_when_they_are_edited() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.avg_pool2d(x, 2)
        return y.reshape(y.shape[0], 3, y.shape[2] * y.shape[3])

    net = Network.load(dumped(function, arrays([IMAGE], AT)))
    [var] = net.output_vars
    net.replace_vars({var: F.exp(var) + 1})
    net.reset_batch_size(5)
    assert net.output_vars[0].shape == (5, 3, 30)
    file = io.BytesIO()
    net.dump(file)
    file.seek(0)
    infer = GraphInference(file)
    for extents in OTHERS:
        check(infer, lambda x: F.exp(function(x)) + 1, arrays([IMAGE], extents))


def test_a_number_that_an_edit_put_in_closes_the_network() -> None:
    net = Network.load(dumped(F.relu, arrays([ROWS], AT)))
    [var] = net.output_vars
    net.replace_vars({var: var.reshape(3, 4)})
    file = io.BytesIO()
    net.dump(file)
    file.seek(0)
    infer = GraphInference(file)
    assert next(iter(infer.run(*arrays([ROWS], AT)).values())).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"its course needs x0_0\*x0_1 - 12 == 0"):
        infer.run(*arrays([ROWS], OTHERS[0]))


def test_detectors_run_in_lite_at_sizes_that_data_decide() -> None:
    layer = module(M.Conv2d(3, 5, 3, 4, 1))

    def detect(x: Tensor) -> Any:
        y = layer(x)
        flat_ = y[0].transpose(1, 2, 0).reshape(-1, 5)
        corners = F.concat([flat_[:, :2], flat_[:, :2] + 0.5 + F.abs(flat_[:, 2:4])], 1)
        scores = F.sigmoid(flat_[:, 4])
        kept = F.vision.nms(corners, scores, 0.3)
        return corners[kept][scores[kept] > 0.5]

    network = LiteNetwork()
    network.load(dumped(detect, arrays([IMAGE], {N: 1, H: 32, W: 24})))
    counts = set()
    for extents in ({N: 1, H: 32, W: 24}, {N: 1, H: 64, W: 48}, {N: 1, H: 32, W: 24}):
        [x] = arrays([IMAGE], extents)
        network.get_io_tensor("x0").set_data_by_copy(x)
        network.forward()
        network.wait()
        found = network.get_io_tensor(network.get_output_name(0)).to_numpy()
        want = detect(mge.tensor(x)).numpy()
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
        counts.add(len(want))
    assert len(counts) > 1


def test_files_hold_open_extents_beside_the_same_weights() -> None:
    net = module(M.Linear(4, 300))
    file = dumped(net, arrays([TOKENS], AT))
    size = len(file.getvalue())
    assert size < 2 * 4 * 300 * 4  # once
    models = read_models(file)
    again = io.BytesIO()
    write_models(again, models, "test")
    again.seek(0)
    [model] = read_models(again)
    assert model.opened is not None and model.at([(7, 8, 4)]).outputs[0].type.shape == (7, 8, 300)


def test_models_of_one_size_may_have_extents_that_data_decide() -> None:
    """A constant of the whole size leaves the model no other; its file could not be written."""
    added = np.ones((AT[N], AT[K]), "float32")

    def f(x: Tensor) -> Any:
        return x + mge.tensor(added), x[x > 0] * 2

    [given] = arrays([ROWS], AT)
    infer = GraphInference(dumped(f, [given]))
    for x in (given, -given, np.abs(given), -np.abs(given)):
        for ours, wanted in zip(infer.run(x).values(), (x + added, x[x > 0] * 2), strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_both_graphs_of_a_model_have_one_copy_of_its_weights() -> None:
    layer = M.Linear(8, 8)
    traced = trace(lambda x: layer(x), symbolic=True, capture_as_const=True)
    traced(mge.tensor(np.ones((3, 8), np.float32)))
    model = traced.model(Ends())
    assert model.opened is not None
    assert not model.opened.is_fixed
    held = [
        [node.op.data for node in graph.nodes if isinstance(node.op, Constant)]
        for graph in (model.graph, model.opened.graph)
    ]
    assert len(held[0]) == len(held[1]) == 2
    assert all(a is b for a, b in zip(*held, strict=True))
