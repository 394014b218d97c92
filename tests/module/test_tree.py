"""Registration by attribute, iteration order, modes, moves, copies."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from treadle.module import BatchNorm2d, Conv2d, Dropout, Linear, Module, Sequential
from treadle.tensor import Parameter, Tensor


class Leaf(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(np.ones(2, np.float32))
        self.count = Tensor(np.zeros(1, np.float32))
        self.bias = Parameter(np.zeros(2, np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.weight + self.bias


class Tree(Module):
    def __init__(self) -> None:
        super().__init__()
        self.z = Leaf()
        self.a = [Leaf(), {"y": (Leaf(),), "x": Parameter(np.zeros(3, np.float32))}]
        self.scale = Parameter(np.ones(1, np.float32))

    def forward(self, x: Any) -> Any:
        return self.z(x) * self.scale


def test_module_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Module()


def test_parameters_come_alphabetically_with_dotted_names() -> None:
    names = [name for name, _ in Tree().named_parameters()]
    assert names == [
        "a.0.bias",
        "a.0.weight",
        "a.1.x",
        "a.1.y.0.bias",
        "a.1.y.0.weight",
        "scale",
        "z.bias",
        "z.weight",
    ]


def test_buffers_are_the_other_tensors() -> None:
    tree = Tree()
    assert [name for name, _ in tree.named_buffers()] == ["a.0.count", "a.1.y.0.count", "z.count"]
    everything = {id(t) for t in tree.tensors()}
    assert everything == {id(t) for t in tree.parameters()} | {id(t) for t in tree.buffers()}


def test_prefix_and_recursive() -> None:
    tree = Tree()
    own = [name for name, _ in tree.named_parameters(prefix="net", recursive=False)]
    assert own == ["net.a.1.x", "net.scale"]


def test_children_and_modules() -> None:
    tree = Tree()
    assert [name for name, _ in tree.named_children()] == ["a.0", "a.1.y.0", "z"]
    assert [name for name, _ in tree.named_modules()] == ["", "a.0", "a.1.y.0", "z"]
    outer = Sequential(tree)
    triples = list(outer.named_modules(prefix="m", with_parent=True))
    assert [name for name, _, _ in triples] == ["m", "m.0", "m.0.a.0", "m.0.a.1.y.0", "m.0.z"]
    assert [parent for _, _, parent in triples] == [None, outer, tree, tree, tree]


def test_shared_objects_appear_once_under_the_first_name() -> None:
    tree = Tree()
    tree.b = tree.z
    tree.z.extra = tree.scale
    names = [name for name, _ in tree.named_parameters()]
    assert [n for n in names if not n.startswith("a.")] == ["b.bias", "b.extra", "b.weight"]
    assert len({id(p) for p in tree.parameters()}) == len(names)
    assert [name for name, _ in tree.named_children()] == ["a.0", "a.1.y.0", "b"]


def test_lists_filled_later_count() -> None:
    tree = Tree()
    tree.layers = []
    for _ in range(2):
        tree.layers.append(Linear(2, 2))
    assert "layers.1.weight" in dict(tree.named_parameters())
    assert "(layers.1): Linear(" in repr(tree)


def test_dict_keys_must_be_strings_only_where_something_is_held() -> None:
    tree = Tree()
    tree.table = {1: "one", 2: [3]}
    assert len(list(tree.parameters())) == 8
    tree.table = {1: Leaf()}
    with pytest.raises(AssertionError, match="keys for Tensor and Module must be str"):
        list(tree.parameters())


def test_assignment_before_init_is_refused() -> None:
    class Hasty(Module):
        def __init__(self) -> None:
            self.leaf = Leaf()
            super().__init__()

        def forward(self) -> None: ...

    with pytest.raises(AttributeError, match=r"before Module\.__init__"):
        Hasty()


def test_deleted_and_replaced_attributes_are_forgotten() -> None:
    tree = Tree()
    del tree.a
    tree.z = None
    assert [name for name, _ in tree.named_parameters()] == ["scale"]
    assert repr(tree) == "Tree()"


def test_train_and_eval_return_none() -> None:
    net = Sequential(Dropout(0.5), Sequential(BatchNorm2d(2)))
    assert net.eval() is None
    assert [m.training for m in net.modules()] == [False] * 4
    assert net.train(recursive=False) is None
    assert [m.training for m in net.modules()] == [True, False, False, False]
    net.train()
    assert all(m.training for m in net.modules())


def test_apply_and_disable_quantize_reach_everything() -> None:
    tree = Tree()
    seen: list[Module] = []
    tree.apply(seen.append)
    assert seen == list(tree.modules())
    tree.disable_quantize()
    assert all(m.quantize_disabled is True for m in tree.modules())


def test_to_moves_tensors_and_keeps_handles() -> None:
    layer = Linear(2, 3)
    before = dict(layer.named_parameters())
    layer.weight.grad = Tensor(np.ones((3, 2), np.float32))
    assert layer.to("cpu1") is layer
    assert dict(layer.named_parameters())["weight"] is before["weight"]
    assert type(layer.weight) is Parameter
    assert layer.weight.device == "cpu1"
    assert layer.weight.grad.device == "cpu1"


def test_replace_param_counts_in_order() -> None:
    net = Sequential(Linear(2, 2), Linear(2, 2))
    new = Parameter(np.full((2, 2), 7, np.float32))
    assert net.replace_param({3: new}, start_pos=2) == 4
    assert net[0].weight is new
    with pytest.raises(ValueError, match="replacement"):
        net.replace_param({0: new}, start_pos=0)


def test_zero_grad_is_deprecated() -> None:
    layer = Linear(2, 2)
    layer.weight.grad = Tensor(1.0)
    with pytest.warns(DeprecationWarning, match="clear_grad"):
        layer.zero_grad()
    assert layer.weight.grad is None


def test_deepcopy_and_pickle_are_independent_copies() -> None:
    net = Sequential(Conv2d(1, 2, 3), BatchNorm2d(2))
    net[0].weight.grad = Tensor(1.0)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(made) == repr(net)
        assert type(made[0].weight) is Parameter
        assert made[0].weight.grad is None
        np.testing.assert_equal(made[0].weight.numpy(), net[0].weight.numpy())
        made[0].weight[...] = 0.0
        assert np.abs(net[0].weight.numpy()).sum() > 0


def test_shared_parameters_stay_shared_in_copies() -> None:
    net = Sequential(Linear(2, 2), Linear(2, 2))
    net[1].weight = net[0].weight
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert made[1].weight is made[0].weight
