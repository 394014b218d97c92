"""Programs of `torch.export` as modules: equal results, gradients, names, refusals."""

import copy
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError, LoadError, ShapeError, UnsupportedOp
from treadle.optimizer import SGD

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its exporter
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tests.interop.torch.networks import NETWORKS  # noqa: E402
from torch import nn  # noqa: E402
from torch._export.converter import TS2EPConverter  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from treadle.interop.torch import from_exported, load_exported, program  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def ours(tensor: Any) -> mge.Tensor:
    array = tensor.numpy()
    return mge.Tensor(array, dtype=array.dtype)


def exported(model: Any, *inputs: Any, **options: Any) -> Any:
    return from_exported(torch.export.export(model, inputs, **options))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_gradients_and_buffers_are_those_of_torch(name: str, training: bool) -> None:
    make, inputs = NETWORKS[name]
    model, x = make().train(training), inputs()
    module = exported(copy.deepcopy(model), x)
    manager = GradManager().attach(list(module.parameters()))
    with manager:
        y = module(ours(x))
        manager.backward((y**2).sum())
    expected = model(x)
    (expected**2).sum().backward()
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-3, atol=1e-5)
    for key, parameter in model.named_parameters():
        wanted = parameter.grad.numpy()
        worst = np.abs(attrgetter(key)(module).grad.numpy() - wanted).max()
        assert worst <= 1e-4 * max(1.0, np.abs(wanted).max()), key
    state = module.state_dict()
    for key, buffer in model.named_buffers():
        np.testing.assert_allclose(state[key], buffer.numpy(), rtol=1e-4, atol=1e-6)


def test_a_compiled_training_step_follows_the_curve_of_torch() -> None:
    make, inputs = NETWORKS["unet"]
    theirs, x = make().train(), inputs()
    module = exported(copy.deepcopy(theirs), x)
    manager = GradManager().attach(list(module.parameters()))
    optimizer = SGD(module.parameters(), lr=0.1)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)

    @mge.jit.compile
    def step(given: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = (module(given) ** 2).mean()
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    for _ in range(3):
        loss = (theirs(x) ** 2).mean()
        other.zero_grad()
        loss.backward()
        other.step()
        assert step(ours(x)).item() == pytest.approx(loss.item(), rel=1e-3)


def test_names_are_those_of_torch_and_tied_weights_stay_tied() -> None:
    make, inputs = NETWORKS["gpt"]
    model = make()
    module = exported(model, inputs())
    assert set(module.state_dict()) == set(model.state_dict())
    assert module.head.weight is module.tokens.weight
    module.load_state_dict({k: v.numpy() * 0 for k, v in model.state_dict().items()})
    assert float(module(ours(inputs())).numpy().max()) == 0


def test_copies_have_weights_of_their_own() -> None:
    make, inputs = NETWORKS["mobile"]
    module, x = exported(make().eval(), inputs()), ours(inputs())
    before = module(x).numpy()
    copied = copy.deepcopy(module)
    copied.load_state_dict({k: np.zeros_like(v) for k, v in copied.state_dict().items()})
    assert np.abs(copied(x).numpy()).max() < np.abs(before).max()
    np.testing.assert_array_equal(module(x).numpy(), before)


def test_autocasting_stops_at_the_program() -> None:
    make, inputs = NETWORKS["mobile"]
    module, x = exported(make().eval(), inputs()), ours(inputs())
    with mge.amp.autocast():
        found = module(x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.numpy(), module(x).numpy())


class Dynamic(nn.Module):
    """Results in a dict, an argument that is no tensor, a constant, a buffer nobody saves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("scale", torch.full((2,), 2.0), persistent=False)

    def forward(self, x: Any, *, twice: bool = False) -> Any:
        y = self.linear(x) * self.scale + torch.tensor([1.0, -1.0])
        y = y * 2 if twice else y
        return {"y": y.reshape(x.shape[0] * 2), "half": y.to(torch.float16), "rows": x.shape[0]}


def test_extents_that_vary_and_arguments_that_are_no_tensors() -> None:
    model = Dynamic().eval()
    rows = torch.export.Dim("rows", min=2, max=9)
    shapes = {"x": {0: rows}, "twice": None}
    program = torch.export.export(
        model, (torch.randn(4, 3),), {"twice": True}, dynamic_shapes=shapes
    )
    module = from_exported(program)
    assert module.input_types == {"x": (np.dtype("float32"), ("?", 3))}
    for count in (4, 2, 9):
        x = torch.randn(count, 3)
        found, expected = module(ours(x), twice=True), model(x, twice=True)
        assert found["rows"] == count
        for key in ("y", "half"):
            wanted = expected[key].detach().numpy()
            assert found[key].dtype == wanted.dtype
            np.testing.assert_allclose(found[key].numpy(), wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(ShapeError, match=r"x was exported as \[s\d+, 3\]"):
        module(ours(torch.randn(10, 3)))
    with pytest.raises(ShapeError, match="dynamic_shapes"):
        module(ours(torch.randn(4, 4)))
    with pytest.raises(LoadError, match="twice is True in this program"):
        module(ours(x), twice=False)
    with pytest.raises(LoadError, match="not nested as"):
        module([ours(x)], twice=True)
    with pytest.raises(DTypeError, match="float32"):
        module(mge.Tensor(np.ones((4, 3), np.int32)))


def test_integers_of_other_widths_are_cast() -> None:
    module = exported(nn.Embedding(5, 2), torch.tensor([1, 2]))
    assert module(mge.Tensor([3, 4])).shape == (2, 2)


class Odd(nn.Module):
    def forward(self, x: Any) -> Any:
        y = torch.nextafter(x, x) + torch.nextafter(x + 1, x + 1)
        return y + torch.igamma(x, x)


def test_all_operators_without_counterpart_are_listed_with_the_lines() -> None:
    with pytest.raises(UnsupportedOp) as caught:
        exported(Odd(), torch.randn(4, 4))
    text = str(caught.value)
    assert "nextafter.default of x float32[4,4], 2 nodes: it has no counterpart" in text
    assert "igamma.default of x float32[4,4], 1 node" in text
    assert f"{Path(__file__).name}:" in text and "in forward" in text


def test_dropout_that_is_exported_in_evaluation_is_none() -> None:
    x = torch.randn(3)
    np.testing.assert_array_equal(exported(nn.Dropout(0.5).eval(), x)(ours(x)).numpy(), x.numpy())


class Writes(nn.Module):
    def forward(self, x: Any) -> Any:
        x.add_(1)
        return x * 2


def test_programs_that_write_into_their_inputs_are_refused() -> None:
    with pytest.raises(LoadError, match="USER_INPUT_MUTATION"):
        exported(Writes(), torch.randn(3))


def test_programs_that_disagree_with_themselves_are_refused() -> None:
    """Damaged files are read as such: PyTorch finds out when it runs the program on shapes."""
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),))
    program.state_dict["weight"] = torch.nn.Parameter(torch.ones(4, 5))
    with pytest.raises(LoadError, match="cannot write the program in fewer operators"):
        from_exported(program)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = NETWORKS["vit"]
    model, x = make().eval(), inputs()
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "vit.pt2")
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "load", lambda *given: pytest.fail("PyTorch reads it"))
        with pytest.raises(LoadError, match="it is a program"):
            load_exported(tmp_path / "vit.pt2")
    module = load_exported(tmp_path / "vit.pt2", allow_native=True)
    np.testing.assert_allclose(module(ours(x)).numpy(), model(x).detach().numpy(), atol=1e-5)
    torch.save(model.state_dict(), tmp_path / "other.pt2")
    with pytest.raises(LoadError, match="cannot read it as an exported program"):
        load_exported(tmp_path / "other.pt2", allow_native=True)


def test_it_can_be_traced_and_dumped(tmp_path: Path) -> None:
    from treadle.engine.package.models import Runner, read_models

    make, inputs = NETWORKS["mobile"]
    model, x = make().eval(), inputs()
    module = exported(model, x)
    traced = mge.jit.trace(lambda given: module(given), capture_as_const=True)
    traced(ours(x))
    traced.dump(str(tmp_path / "mobile.tm"))
    (found,) = Runner(read_models(tmp_path / "mobile.tm")[0].graph)([x.numpy()])
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=1e-5)


class Bilinear(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        return nn.functional.interpolate(
            x, scale_factor=self.scale, mode="bilinear", recompute_scale_factor=False
        )


def test_scales_that_are_no_ratio_of_extents_are_refused() -> None:
    x = torch.randn(1, 2, 5, 7)
    with pytest.raises(UnsupportedOp, match="a scale that is not the ratio of the extents"):
        exported(Bilinear(1.7), x)
    twice = Bilinear(2.0)
    np.testing.assert_allclose(exported(twice, x)(ours(x)).numpy(), twice(x).numpy(), atol=1e-5)


class Places(nn.Module):
    def forward(self, x: Any) -> Any:
        return nn.functional.max_pool2d(x, 2, return_indices=True)


def test_places_of_maxima_are_true_where_the_program_reads_them() -> None:
    x = torch.randn(1, 1, 4, 4)
    for found, expected in zip(exported(Places(), x)(ours(x)), Places()(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights, a product in the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 5, dtype=torch.cfloat) * 0.3)

    def forward(self, x: Any) -> Any:
        spectrum = torch.fft.rfft(x)
        kept = torch.einsum("bim,iom->bom", spectrum[..., :5], self.weight)
        return torch.fft.irfft(kept, n=x.shape[-1]), kept


def test_complex_numbers_are_pairs() -> None:
    model, x = Spectral(), torch.randn(2, 3, 130)
    module = exported(model, x)
    assert module.weight.shape == (3, 4, 5, 2)
    for found, expected in zip(module(ours(x)), model(x), strict=True):
        assert str(found.dtype).endswith(str(expected.dtype).rpartition(".")[2])
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), atol=1e-5)
    manager = mge.autodiff.GradManager().attach(list(module.parameters()))
    with manager:
        manager.backward((module(ours(x))[0] ** 2).sum())
    (model(x)[0] ** 2).sum().backward()
    expected = torch.view_as_real(model.weight.grad).numpy()
    np.testing.assert_allclose(module.weight.grad.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_stay_whole_until_they_are_written(kind: Any) -> None:
    """PyTorch would take seconds to write out the turns."""
    model, x = kind(3, 4, num_layers=2, bidirectional=True).eval(), torch.randn(5, 2, 3)
    module = exported(model, x)
    found, expected = module(ours(x)), model(x)
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), atol=1e-6)
    manager = mge.autodiff.GradManager().attach(list(module.parameters()))
    with manager:
        manager.backward((module(ours(x))[0] ** 2).sum())
    (model(x)[0] ** 2).sum().backward()
    grads = {n: p.grad.numpy() for n, p in module.named_parameters()}
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(grads[name], parameter.grad.numpy(), rtol=1e-3, atol=1e-5)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, tokens: Any) -> Any:
        n = tokens.shape[1]
        mask = torch.triu(torch.full((n, n), -torch.inf), 1)
        return self.layer(self.embed(tokens), src_mask=mask).mean(1) / n, n * 2


def test_sizes_that_vary_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count: list[int] = []
    write = program.write_program
    monkeypatch.setattr(program, "write_program", lambda *a: count.append(1) or write(*a))
    model, length = Encoder(), torch.export.Dim("length", min=3, max=64)
    made = from_exported(
        torch.export.export(model, (torch.ones(2, 5).long(),), dynamic_shapes=({1: length},))
    )
    step = mge.jit.compile(lambda tokens: made(tokens)[0], dynamic={0: {1: "n"}})
    for n in (3, 5, 9, 17, 40, 64):
        tokens = torch.randint(0, 30, (2, n))
        given = mge.tensor(tokens.numpy().astype(np.int32))
        found, twice = made(given)
        assert twice == 2 * n
        for one in (found, step(given)):
            np.testing.assert_allclose(one.numpy(), model(tokens)[0].detach(), atol=1e-5)
    assert len(count) == 1
    assert sum(map(len, step._captures.families.values())) <= 2  # captures
    with pytest.raises(ShapeError, match="dynamic_shapes"):
        made(mge.tensor(np.zeros((2, 65), np.int32)))


def test_sizes_that_follow_from_one_another() -> None:
    class Halves(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.reshape(-1, 2).sum(1) + y

    half = torch.export.Dim("half", min=2, max=50)
    given = torch.randn(8), torch.randn(4)
    made = from_exported(
        torch.export.export(Halves(), given, dynamic_shapes=({0: 2 * half}, {0: half}))
    )
    for n in (2, 7, 30):
        x, y = torch.randn(2 * n), torch.randn(n)
        np.testing.assert_allclose(made(ours(x), ours(y)).numpy(), Halves()(x, y), rtol=1e-6)
    for x, y in ((7, 4), (8, 5), (102, 51)):
        with pytest.raises(ShapeError, match="dynamic_shapes"):
            made(ours(torch.randn(x)), ours(torch.randn(y)))


def test_traced_models_come_through_pytorchs_converter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(2, 3, 6, 6)
    converted = TS2EPConverter(torch.jit.trace(model, x), (x,)).convert()
    made = from_exported(converted)
    np.testing.assert_allclose(made(ours(x)).numpy(), model(x).detach(), atol=1e-5)
    assert sorted(made.state_dict()) == ["0.bias", "0.weight"]


@pytest.mark.parametrize(
    "function",
    [lambda x: x[x > 0] * 2, lambda x: x * x.sum().item(), lambda x: x[: x.argmax().item()] + 1],
)
def test_what_data_decide_is_refused_with_what_to_write(function: Any) -> None:
    """It said that a shape was symbolic."""

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    program = torch.export.export(Model(), (torch.arange(1.0, 5),))
    with pytest.raises(UnsupportedOp, match=r"(?s)data decide the number z?u.*torch\.where for x"):
        from_exported(program)
