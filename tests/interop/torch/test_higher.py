"""Functions of functions under `torch.compile`: attention with changed scores, transforms, rows."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.nn.attention.flex_attention as flex  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from treadle.interop.torch import left_to_torch  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def left(function: Callable[..., Any], *inputs: Any) -> set[str]:
    """Operators that stayed with PyTorch; results and gradients are the function's own."""
    before = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    found = []
    for run in (torch.compile(function, backend="treadle"), function):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        made = pytree.tree_leaves(run(*given))
        ends = [y for y in made if y.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.cos(y.detach()) for y in ends])
        found.append([*made, *(x.grad for x in given if x.requires_grad)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    after = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    return {k[0] for k, nodes in after.items() if before.get(k) != nodes}


def leaf(*shape: int) -> Any:
    return torch.randn(shape).requires_grad_()


# -- attention ---------------------------------------------------------------------------------


def distant(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q - k) * 0.1


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


MASK = flex.create_block_mask(causal, 1, 2, 32, 32, device="cpu", BLOCK_SIZE=16)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    def changed(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + bias[h, i - j + 31]

    return flex.flex_attention(q, k, v, score_mod=changed, block_mask=MASK)


ATTENTION: dict[str, Callable[..., Any]] = {
    "scores": lambda q, k, v, _: flex.flex_attention(q, k, v, score_mod=distant),
    "mask": lambda q, k, v, _: flex.flex_attention(q, k, v, block_mask=MASK),
    "sums": lambda q, k, v, _: flex.flex_attention(q, k, v, distant, MASK, return_lse=True),
    "scale": lambda q, k, v, _: flex.flex_attention(q, k, v, scale=0.5),
    "a bias": biased,
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_with_changed_scores(
    name: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trains:  # PyTorch itself refuses gradients on the CPU, as Inductor has no kernel for them.
        monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    given = [*(torch.randn(2, 2, 32, 8) for _ in "qkv"), torch.randn(2, 63)]
    given = [x.requires_grad_(trains and (i < 3 or name == "a bias")) for i, x in enumerate(given)]
    assert left(ATTENTION[name], *given) == set()


def test_heads_that_share_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)

    def shared(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(q, k, v, score_mod=distant, enable_gqa=True)

    assert left(shared, leaf(1, 4, 32, 8), leaf(1, 2, 32, 8), leaf(1, 2, 32, 8)) == set()


# -- transforms --------------------------------------------------------------------------------

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: torch.func.vmap(lambda r: (r * 2).softmax(0) * r.sum())(x),
    "grad": lambda x: torch.func.grad(lambda y: (y.sin() ** 2).sum())(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(lambda y: (y @ y).sin()))(x),
    "jvp": lambda x: torch.func.jvp(lambda y: y.sin() * y, (x,), (x.cos(),)),
    "vjp": lambda x: torch.func.vjp(lambda y: y.sin() * y, x)[1](x.cos()),
    "jacrev": lambda x: torch.func.jacrev(lambda y: y.sin() * y.sum())(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(lambda y: y.sin() * y.sum())(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda y: (y.sin() ** 2).sum())(x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name: str) -> None:
    assert left(TRANSFORMS[name], torch.randn(3, 4)) == set()


WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4)


def keeps_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    is_product = operator is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("selects", [False, True])
def test_checkpoints(selects: bool) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    options = {"context_fn": contexts} if selects else {}

    def kept(x: Any) -> Any:
        body = lambda y: torch.sin(y @ WEIGHT).exp()  # noqa: E731
        return checkpoint(body, x, use_reentrant=False, **options).sum(0)

    assert left(kept, leaf(3, 4)) == set()


# -- operators of users ------------------------------------------------------------------------


def test_operators_of_users_stay_with_pytorch_inside_of_graphs() -> None:
    @torch.library.custom_op("treadle_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    scaled.register_autograd(
        lambda context, grad: (grad * context.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )

    @torch.library.custom_op("treadle_tests::increase", mutates_args={"x"})
    def increase(x: torch.Tensor) -> None:
        x.add_(1)

    def writes(x: Any) -> Any:
        y = x * 2
        increase(y)
        return y.sin()

    assert left(lambda x: scaled(x.sin(), 2.0).cos(), leaf(3, 4)) == {
        "treadle_tests.scaled.default"
    }
    assert left(writes, torch.randn(3, 4)) == {"auto_functionalized_v2"}


def test_functions_that_are_mapped_over_rows() -> None:
    def rows(x: Any) -> Any:
        return torch._higher_order_ops.map(lambda row: row.sin() * 2, x)

    assert "sin.default" not in left(rows, leaf(3, 4))


# -- tensors that are more than one ------------------------------------------------------------


def nested(*rows: int) -> Any:
    parts = [torch.randn(n, 4) for n in rows]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def test_nested_tensors() -> None:
    layer = torch.nn.Linear(4, 4)

    def function(x: Any) -> Any:
        return (layer(x).relu() * 2).values()

    run = torch.compile(function, backend="treadle")
    for x in (nested(3, 2, 5), nested(4, 1, 6), nested(3, 7)):
        torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-5)
    x = nested(3, 2).requires_grad_()
    (ours,) = torch.autograd.grad(run(x).sum(), x)
    (theirs,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(ours.values(), theirs.values())


def test_subclasses_that_hold_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    made = torch.compile(lambda x: (x @ x.T).relu(), backend="treadle")(x)
    assert isinstance(made, TwoTensor)
    torch.testing.assert_close(made.a, (x.a @ x.a.T).relu())
    torch.testing.assert_close(made.b, (x.b @ x.b.T).relu())


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_of_another_backend_are_refused(mode: str) -> None:
    with pytest.raises(Exception, match=f"no mode '{mode}'"):
        torch.compile(torch.sin, backend="treadle", mode=mode)(torch.ones(2))
