"""Local, deformable and region-restricted convolutions against sums written out."""

import numpy as np
import pytest

import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError, UnsupportedOp
from treadle.tensor import Tensor


def _array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize(("groups", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_local_convolution(groups: int, dilation: int) -> None:
    layer = M.LocalConv2d(2, 4, 5, 6, 3, stride=(1, 2), padding=1, dilation=dilation, groups=groups)
    rows, columns = (5, 3) if dilation == 1 else (3, 2)
    assert layer.weight.shape == (groups, rows, columns, 2 // groups, 3, 3, 4 // groups)
    assert layer.bias is None
    x = _array(1, 2, 5, 6)
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    weight = layer.weight.numpy()
    out = layer(Tensor(x)).numpy()
    assert out.shape == (1, 4, rows, columns)
    span = 2 * dilation + 1
    for i in range(rows):
        for j in range(columns):
            patch = wide[0, :, i : i + span : dilation, 2 * j : 2 * j + span : dilation]
            parts = patch.reshape(groups, 2 // groups, 3, 3)
            wanted = np.einsum("gcuv,gcuvo->go", parts, weight[:, i, j]).reshape(-1)
            np.testing.assert_allclose(out[0, :, i, j], wanted, rtol=1e-4, atol=1e-5)


def test_local_convolution_needs_room() -> None:
    with pytest.raises(ShapeError, match="larger than the padded image"):
        M.LocalConv2d(1, 1, 2, 2, 5)


def test_deformable_convolution_without_shifts_is_a_convolution() -> None:
    layer, plain = M.DeformableConv2d(2, 3, 3, padding=1), M.Conv2d(2, 3, 3, padding=1)
    plain.load_state_dict(layer.state_dict())
    x = Tensor(_array(1, 2, 4, 4))
    out = layer(x, F.zeros((1, 18, 4, 4)), F.ones((1, 9, 4, 4)))
    np.testing.assert_allclose(out.numpy(), plain(x).numpy(), rtol=1e-4, atol=1e-5)


def test_regions_see_their_own_cells_only() -> None:
    layer = M.RegionRestrictedConv(2, 2, 3, groups=1, padding=1)
    assert layer.weight.shape == (1, 2, 2, 3, 3)
    x = _array(1, 2, 4, 4)
    regions = np.zeros((1, 4, 4), np.int32)
    regions[:, :, 2:] = 1
    out = layer(Tensor(x), Tensor(regions), Tensor(regions)).numpy()
    plain = M.Conv2d(2, 2, 3, padding=1)
    plain.weight[...] = layer.weight.reshape(2, 2, 3, 3)
    for region, columns in ((0, slice(0, 2)), (1, slice(2, 4))):
        seen = plain(Tensor(x * (regions == region)[:, None])).numpy()
        np.testing.assert_allclose(out[..., columns], seen[..., columns], rtol=1e-4, atol=1e-5)


def test_regions_reach_into_padding_that_repeats_them() -> None:
    layer = M.RegionRestrictedConv(1, 1, 3, padding=1, padding_mode="replicate", bias=False)
    layer.weight[...] = F.ones(layer.weight.shape)
    regions = Tensor(np.ones((1, 2, 2), np.int32))
    assert layer(F.ones((1, 1, 2, 2)), regions, regions).tolist() == [[[[9.0, 9.0], [9.0, 9.0]]]]
    with pytest.raises(ValueError, match="padding_mode must be one of"):
        M.RegionRestrictedConv(1, 1, 3, padding_mode="circular")


def test_position_sensitive_pooling_is_the_function() -> None:
    settings = (True, 2, 2, 2, 2, 1.0)
    x, rois = Tensor(_array(1, 8, 6, 6)), Tensor(np.array([[0, 0, 0, 5, 5]], np.float32))
    shift = F.zeros((1, 2, 2, 2))
    ours = M.DeformablePSROIPooling(*settings)(x, rois, shift)
    wanted = F.deformable_psroi_pooling(x, rois, shift, *settings)
    assert str(ours) == str(wanted)


def test_models_of_other_engines_say_what_is_missing() -> None:
    external = M.external
    x = Tensor(_array(1, 2))
    layers = [
        external.TensorrtRuntimeSubgraph(b"plan"),
        external.CambriconRuntimeSubgraph(b"model", "main", False),
        external.AtlasRuntimeSubgraph(b"model"),
        external.MagicMindRuntimeSubgraph(b"model"),
        external.ExternOprSubgraph([(1, 2)], "loader", b"model"),
    ]
    for layer in layers:
        with pytest.raises(UnsupportedOp):
            layer(x)
    layers[0].data = b"other"
    assert layers[0].data == b"other"
    assert repr(layers[4]) == "ExternOprSubgraph(output_shapes=[(1, 2)], dump_name=loader)"
