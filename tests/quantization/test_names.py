"""MegEngine's names and places of everything here, as its programs import them."""

import subprocess
import sys

import numpy as np

import treadle as mge

PROGRAM = """
import numpy as np
import megengine as mge
import megengine.functional as F
import megengine.module as Float
import megengine.module.qat as QAT
import megengine.module.quantized as Q
import megengine.quantization as quantization
from megengine.core.tensor import dtype
from megengine.core.tensor.dtype import QuantDtypeMeta, get_scale, qint8
from megengine.module.qat import QATModule
from megengine.module.qat.module import QATModule as Same
from megengine.module.quantized.module import QuantizedModule
from megengine.quantization.fake_quant import FakeQuantize, LSQ, TQT
from megengine.quantization.observer import HistogramObserver, MinMaxObserver, PassiveObserver
from megengine.quantization.qconfig import QConfig, min_max_fakequant_qconfig
from megengine.quantization.quantize import apply_easy_quant, quantize, quantize_qat
from megengine.quantization.utils import QParams, QuantMode, create_qparams, tqt_forward

assert quantization.quantize is quantize
assert mge.quantization.quantize_qat is quantize_qat
assert Same is QATModule
assert Float.qat is QAT and Float.quantized is Q
assert quantization.QConfig is QConfig
assert quantization.easyquant_qconfig is quantization.passive_qconfig

net = Float.Sequential(Float.QuantStub(), Float.Linear(3, 2), Float.DequantStub())
quantize_qat(net, qconfig=quantization.ema_fakequant_qconfig)
x = mge.tensor(np.random.rand(4, 3), dtype="float32")
net(x)
net.eval()
quantize(net)
assert isinstance(net[1], Q.Linear)
assert net(x).shape == (4, 2)
assert get_scale(net[1].weight.dtype) > 0
print("fine")
"""


def test_programs_find_everything_where_megengine_has_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "treadle.interop.megengine", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr


def test_quantization_is_imported_when_it_is_named():
    code = "import sys, treadle; assert 'treadle.quantization' not in sys.modules; "
    code += "assert treadle.quantization.QuantMode.SYMMERTIC.value == 1"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_dtypes_of_the_core():
    low = mge.core.tensor.dtype.intb1, mge.core.tensor.dtype.intb2, mge.core.tensor.dtype.intb4
    assert all(map(mge.core.tensor.dtype.is_lowbit, low))
    half = mge.tensor([1.5], dtype=mge.core.tensor.dtype.bfloat16)
    assert mge.core.tensor.dtype.is_bfloat16(half.dtype)
    assert np.array([1, -1], low[0]).tolist() == [1, -1]
