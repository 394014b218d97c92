"""Statistics of models: counts by hand, ResNet-50's, tables, extension points."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.tensor import Parameter, Tensor
from treadle.utils import module_stats as stats
from treadle.utils import network_node
from treadle.utils.module_stats import module_stats
from treadle.utils.module_stats_rules import FLOPS, HOOKED
from treadle.utils.network import Network


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    rules, hooked = dict(FLOPS), list(HOOKED)
    yield
    FLOPS.clear()
    FLOPS.update(rules)
    HOOKED[:] = hooked
    stats.disable_receptive_field()


def _small() -> M.Module:
    return M.Sequential(M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU(), M.MaxPool2d(2))


def test_the_reference_case(capsys: pytest.CaptureFixture[str]) -> None:
    totals, rows = module_stats(_small(), input_shapes=(1, 3, 8, 8))
    assert totals == (240 * 4, 240, 18432, 4608, 1152)
    assert totals._fields == ("param_size", "param_dims", "flops", "act_size", "act_dims")
    assert rows._fields == ("params", "flops", "activations")
    assert [r["name"] for r in rows.params] == ["0-w", "0-b", "1-w", "1-b", "total"]
    assert [r.get("flops_num") for r in rows.flops] == [14336, 3584, 512, None]
    assert rows.flops[0]["class_name"] == "Conv2d"
    assert rows.flops[0]["output_shapes"] == [(1, 8, 8, 8)]
    assert rows.flops[-1] == {"name": "total", "flops": "18.432 KOPs", "output_shapes": 24}
    printed = capsys.readouterr().out
    for word in ("parameters", "multiply-adds", "activations", "summary", "18.432 KOPs", "(8, 3,"):
        assert word in printed
    assert "…" not in printed  # Nothing is cut off in a file.


def test_the_summary_is_printed_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    module_stats(_small(), input_shapes=[(2, 3, 8, 8)], logging_to_stdout=False)
    printed = capsys.readouterr().out
    assert "total_flops" in printed
    assert "multiply-adds" not in printed


def test_what_is_not_wanted_is_zero() -> None:
    totals, rows = module_stats(
        _small(),
        input_shapes=(1, 3, 8, 8),
        cal_params=False,
        cal_activations=False,
        logging_to_stdout=False,
    )
    assert totals == (0, 0, 18432, 0, 0)
    assert rows.params == rows.activations == []


CASES: dict[str, tuple[M.Module, tuple[int, ...], int]] = {
    "linear": (M.Linear(3, 4), (2, 5, 3), 2 * 5 * 4 * 3 + 4),
    "linear without bias": (M.Linear(3, 4, bias=False), (2, 3), 2 * 4 * 3),
    "groups": (M.Conv2d(4, 6, 3, groups=2, bias=False), (1, 4, 5, 5), 6 * 9 * (2 * 9)),
    "transposed": (M.ConvTranspose2d(4, 6, 3), (1, 4, 5, 5), 100 * 6 * 9 + 6 * 49),
    "local": (M.LocalConv2d(2, 4, 5, 5, 3), (1, 2, 5, 5), 4 * 9 * 2 * 9),
    "layer norm": (M.LayerNorm(6), (2, 6), 12 * 7),
    "average": (M.AvgPool2d((2, 3)), (1, 2, 4, 6), 2 * 2 * 2 * 6),
    "adaptive": (M.AdaptiveAvgPool2d(1), (1, 2, 7, 7), 2 * 49),
    "batched": (M.BatchMatMulActivation(2, 3, 4), (2, 3, 5), 2 * 4 * 5 * 4),
    "lstm": (M.LSTM(3, 4, bidirectional=True), (5, 2, 3), 10 * 2 * (16 * 7 + 2 * 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(name: str) -> None:
    layer, shape, wanted = CASES[name]
    totals, _ = module_stats(layer, input_shapes=shape, logging_to_stdout=False)
    assert totals.flops == wanted
    assert totals.param_dims == sum(p.size for p in layer.parameters())


class Block(M.Module):
    """A bottleneck of ResNet (He et al., 2016)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.path = M.Sequential(
            *(M.Conv2d(inputs, width, 1, bias=False), M.BatchNorm2d(width), M.ReLU()),
            *(M.Conv2d(width, width, 3, stride, 1, bias=False), M.BatchNorm2d(width), M.ReLU()),
            *(M.Conv2d(width, out, 1, bias=False), M.BatchNorm2d(out)),
        )
        self.shortcut: M.Module = M.Identity()
        if inputs != out:
            self.shortcut = M.Sequential(
                M.Conv2d(inputs, out, 1, stride, bias=False), M.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def _resnet50() -> M.Module:
    layers: list[M.Module] = [
        *(M.Conv2d(3, 64, 7, 2, 3, bias=False), M.BatchNorm2d(64), M.ReLU()),
        M.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Block(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return M.Sequential(*layers, M.AdaptiveAvgPool2d(1), Flat(), M.Linear(2048, 1000))


class Flat(M.Module):
    """Features of each sample in one row."""

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, 1)


def test_resnet50() -> None:
    stats.enable_receptive_field()
    totals, rows = module_stats(_resnet50(), input_shapes=(1, 3, 224, 224), logging_to_stdout=False)
    assert totals.param_dims == 25_557_032
    contractions = [r for r in rows.flops[:-1] if r["class_name"] in ("Conv2d", "Linear")]
    assert sum(int(r["flops_num"]) for r in contractions) == pytest.approx(4.09e9, rel=1e-3)
    assert totals.flops == pytest.approx(4.17e9, rel=1e-3)
    last = next(r for r in rows.flops[-4::-1] if r["class_name"] == "BatchNorm2d")
    assert last["receptive_field"] == (427, 427)  # Strides in the 3x3 layers.
    assert last["stride"] == (32, 32)


def test_shared_parameters_count_once_and_modes_come_back() -> None:
    class Twice(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = M.Linear(3, 3), M.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight
            self.drop = M.Dropout(0.5)
            self.one.train(False)
            self.modes: list[bool] = []

        def forward(self, x: Tensor) -> Tensor:
            self.modes.append(self.drop.training)
            return self.drop(self.two(self.one(x)))

    model = Twice()
    totals, _ = module_stats(model, input_shapes=(1, 3), logging_to_stdout=False)
    assert totals.param_dims == 12
    assert model.modes == [False]
    assert (model.training, model.one.training, model.two.training) == (True, False, True)
    assert not model.one._forward_hooks


def test_inputs_in_structures() -> None:
    class Sum(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = M.Linear(2, 2)

        def forward(self, x: Tensor, more: dict[str, Any]) -> Tensor:
            return self.layer(x + more["y"][0])

    x = np.ones((3, 2), np.float32)
    totals, rows = module_stats(Sum(), inputs=(x, {"y": [x]}), logging_to_stdout=False)
    assert totals.act_dims == 6
    assert {"mean", "std"} <= set(rows.activations[0])
    with pytest.raises(ValueError, match="needs inputs or input_shapes"):
        module_stats(Sum())


def test_rules_and_classes_can_be_added() -> None:
    class Scale(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter([2.0])

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    assert module_stats(Scale(), input_shapes=(3,), logging_to_stdout=False)[0] == (0, 0, 0, 0, 0)
    stats.register_hook_module([Scale])

    @stats.register_flops(Scale)
    def _flops(module: Scale, inputs: Any, outputs: Any) -> int:
        return int(outputs[0].size)

    @stats.register_receptive_field(Scale)
    def _field(module: Scale, inputs: Any, outputs: Any) -> Any:
        return (5, 5), (2, 2)

    stats.enable_receptive_field()
    totals, rows = module_stats(Scale(), input_shapes=(3,), logging_to_stdout=False)
    assert totals == (4, 1, 3, 12, 3)
    assert rows.flops[0]["receptive_field"] == (5, 5)
    with pytest.raises(TypeError, match="takes classes of modules"):
        stats.register_hook_module(3)


def test_building_blocks() -> None:
    assert stats.sizeof_fmt(1023) == "1023.000 B"
    assert stats.sizeof_fmt(1024) == "1.000 KiB"
    assert stats.sizeof_fmt(999, suffix="OPs") == "999.000 OPs"
    assert stats.sizeof_fmt(1e6, suffix="") == "1.000 M"
    assert stats.sizeof_fmt(1024**9) == "1024.000 YiB"
    assert stats.dict2table([{"a": 1}, {"b": 2}], ["a", "b"]) == [["a", "b"], [1, ""], ["", 2]]
    row = stats.get_param_stats(Tensor(np.array([1.0, 3.0], np.float16)))
    assert (row["mean"], row["std"], row["param_dim"], row["nbits"], row["size"]) == (
        *("2", "1"),
        *(2, 16, 4),
    )
    assert "mean" not in stats.get_activation_stats(Tensor([1.0]))
    assert stats.get_op_stats(M.ReLU(), (Tensor([1.0]),), Tensor([1.0])) is None
    assert stats.sum_param_stats([]) == (
        0,
        0,
        [{"name": "total", "param_dim": 0, "size": "0.000 B"}],
    )


def test_sums_and_tables_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    flops = [
        {"name": "a", "flops_num": 300, "output_shapes": [(1, 4)]},
        {"name": "b", "flops_num": 100, "output_shapes": [(1, 2), (3,)]},
    ]
    total, rows = stats.sum_op_stats(flops, bar_length_max=6)
    assert total == 400
    assert [r.get("percentage") for r in rows] == ["75.00%", "25.00%", None]
    assert [r.get("bar") for r in rows] == ["######", "##", None]
    assert [r.get("flops_cum") for r in rows] == ["300.000 OPs", "400.000 OPs", None]
    assert rows[-1] == {"name": "total", "flops": "400.000 OPs", "output_shapes": 6}
    one = stats.get_activation_stats(Tensor([1.0, 3.0]), has_input=True)
    assert (one["mean"], one["std"]) == ("2", "1")
    assert stats.sum_activations_stats([one])[:2] == (2, 8)
    stats.print_op_stats(rows)
    stats.print_activations_stats([one], has_input=True)
    stats.print_param_stats([stats.get_param_stats(Tensor([1.0]))])
    stats.print_summary(answer=42)
    printed = capsys.readouterr().out
    for word in ("400.000 OPs", "size_bar", "param_dim", "answer", "42"):
        assert word in printed


def test_weights_that_are_used_without_their_layer() -> None:
    class Borrowed(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = M.Linear(2, 10), M.Linear(10, 10)

        def forward(self, x: Tensor) -> Tensor:
            return F.matmul(self.first(x), self.second.weight) + self.second.bias

    totals, rows = module_stats(Borrowed(), input_shapes=(1, 2), logging_to_stdout=False)
    assert totals.param_dims == 30 + 110
    names = [row["name"] for row in rows.params]
    assert names == ["first-w", "first-b", "second-w", "second-b", "total"]


def _network_of(function: Any, *inputs: mge.Tensor) -> Network:
    traced = mge.jit.trace(function, capture_as_const=True)
    traced(*inputs)
    file = io.BytesIO()
    traced.dump(file, optimize_for_inference=False)
    file.seek(0)
    return Network.load(file)


def test_operators_of_networks_have_rules() -> None:
    stats.enable_receptive_field()
    first, second = M.Conv2d(3, 4, 3, stride=2, bias=False), M.Conv2d(4, 8, 5, groups=2, bias=False)

    def function(x: mge.Tensor, y: mge.Tensor) -> Any:
        return second(F.relu(first(x))), F.matmul(y, y, transpose_a=True)

    net = _network_of(function, F.ones((2, 3, 16, 16)), F.ones((7, 6, 5)))
    rows = {}
    for opr in net.all_oprs:
        row = stats.get_op_stats(opr, opr.inputs, opr.outputs)
        if row is not None:
            rows.setdefault(type(opr).__name__, []).append(row)
    one, two = rows["ConvolutionForward"]
    assert one["flops_num"] == 2 * 4 * 7 * 7 * 3 * 9
    assert two["flops_num"] == 2 * 8 * 3 * 3 * 2 * 25
    assert (one["receptive_field"], one["stride"]) == ((3, 3), (2, 2))
    assert (two["receptive_field"], two["stride"]) == ((11, 11), (2, 2))
    assert rows["Elemwise"][0]["flops_num"] == 2 * 4 * 7 * 7
    assert rows["Elemwise"][0]["receptive_field"] == (3, 3)
    assert rows["BatchedMatrixMul"][0]["flops_num"] == 7 * 5 * 5 * 6


def test_rules_of_operators_are_added() -> None:
    net = _network_of(lambda x: F.avg_pool2d(x, 2), F.ones((1, 2, 4, 4)))
    pool = net.get_opr_by_type(network_node.PoolingForward)
    assert stats.get_op_stats(pool, pool.inputs, pool.outputs) is None

    @stats.register_flops(network_node.PoolingForward)
    def count(opr: Any, given: Any, made: Any) -> int:
        return 4 * int(made[0].size)

    row = stats.get_op_stats(pool, pool.inputs, pool.outputs)
    assert row == {
        "input_shapes": [(1, 2, 4, 4)],
        "output_shapes": [(1, 2, 2, 2)],
        "flops_num": 32,
    }


def test_rules_of_layers_go_by_megengines_names() -> None:
    mine = M.Linear(3, 4, bias=False)
    x, y = F.ones((2, 3)), F.ones((2, 4))
    assert stats.flops_linear(mine, (x,), (y,)) == 24
    assert stats.flops_norm(mine, (x,), (x,)) == 42
    assert stats.flops_convNd(M.Conv2d(3, 4, 3), (x,), (F.ones((1, 4, 2, 2)),)) == 16 * 28
    assert stats.flops_pool(M.MaxPool2d(3), (x,), (y,)) == 72
    assert stats.preprocess_receptive_field(mine, (x,), (y,)) == ((1, 1), (1, 1))
