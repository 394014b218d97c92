"""Forward hooks: order, replacement, removal."""

from typing import Any

from treadle.module import Identity, Module


class Twice(Module):
    def forward(self, x: Any, offset: int = 0) -> Any:
        return 2 * x + offset


def test_pre_hook_sees_and_replaces_the_inputs() -> None:
    module = Twice()
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda m, inputs: seen.append((m, inputs)))
    assert module(3) == 6
    assert seen == [(module, (3,))]
    module.register_forward_pre_hook(lambda m, inputs: (inputs[0] + 1,))
    assert module(3) == 8
    module.register_forward_pre_hook(lambda m, inputs: inputs[0] * 10)
    assert module(3, offset=1) == 81


def test_hook_sees_and_replaces_the_outputs() -> None:
    module = Twice()
    seen: list[Any] = []
    module.register_forward_hook(lambda m, inputs, outputs: seen.append((inputs, outputs)))
    module.register_forward_hook(lambda m, inputs, outputs: outputs + inputs[0])
    assert module(3) == 9
    assert seen == [((3,), 6)]


def test_removed_hooks_are_silent_and_removal_is_idempotent() -> None:
    module = Identity()
    calls: list[int] = []
    first = module.register_forward_hook(lambda *_: calls.append(1))
    second = module.register_forward_pre_hook(lambda *_: calls.append(2))
    module(0)
    first.remove()
    first.remove()
    module(0)
    second.remove()
    module(0)
    assert calls == [2, 1, 2]


def test_hooks_may_remove_themselves() -> None:
    module = Identity()
    calls: list[int] = []
    handler = module.register_forward_hook(lambda *_: (calls.append(1), handler.remove())[1])
    other = module.register_forward_hook(lambda *_: calls.append(2))
    module(0)
    module(0)
    assert calls == [1, 2, 2]
    other.remove()


def test_a_module_as_hook_is_no_sub_module() -> None:
    module = Identity()
    module.register_forward_hook(Twice())
    assert list(module.children()) == []
