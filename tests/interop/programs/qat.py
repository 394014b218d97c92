import io
from functools import partial

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.module.qat as QAT
import megengine.module.quantized as QM
import numpy as np
from megengine import jit
from megengine.autodiff import GradManager
from megengine.core.tensor.dtype import get_scale, is_quantize, qint8
from megengine.optimizer import SGD
from megengine.quantization import (
    LSQ,
    MinMaxObserver,
    QConfig,
    calibration_qconfig,
    disable_observer,
    ema_fakequant_qconfig,
    enable_observer,
    quantize,
    quantize_qat,
)
from megengine.utils.comp_graph_tools import GraphInference


class Block(M.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = M.ConvBnRelu2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = M.ConvBn2d(cout, cout, 3, 1, 1, bias=False)
        self.down = (
            M.ConvBn2d(cin, cout, 1, stride, bias=False)
            if stride != 1 or cin != cout
            else M.Identity()
        )
        self.add = M.Elemwise("FUSE_ADD_RELU")

    def forward(self, x):
        return self.add(self.conv2(self.conv1(x)), self.down(x))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.stem = M.ConvBnRelu2d(3, 8, 3, 2, 1)
        self.b1 = Block(8, 8)
        self.b2 = Block(8, 16, 2)
        self.cat = M.Concat()
        self.classifier = M.LinearRelu(16, 16)
        self.fc = M.Linear(16, 5)
        self.fc.disable_quantize()

    def forward(self, x):
        x = self.quant(x)
        x = self.b2(self.b1(self.stem(x)))
        x = F.mean(self.dequant(x), (2, 3))
        return self.fc(x)


np.random.seed(1)
mge.random.seed(1)
net = Net()
X = np.random.rand(16, 3, 16, 16).astype("float32")
Y = (X.mean((1, 2, 3)) * 1000 % 5).astype("int32")
net(mge.tensor(X))
qnet = quantize_qat(net, inplace=False, qconfig=ema_fakequant_qconfig)
assert (
    isinstance(qnet.stem, QAT.ConvBnRelu2d)
    and isinstance(qnet.fc, M.Linear)
    and not isinstance(qnet.fc, QAT.Linear)
)
gm = GradManager().attach(qnet.parameters())
opt = SGD(qnet.parameters(), lr=0.05, momentum=0.9)
qnet.train()
L = []
for _ in range(6):
    with gm:
        loss = F.nn.cross_entropy(qnet(mge.tensor(X)), mge.tensor(Y))
        gm.backward(loss)
    opt.step().clear_grad()
    L.append(loss.item())
assert L[-1] < L[0], L
disable_observer(qnet)
qnet.eval()
want = qnet(mge.tensor(X)).numpy()
infer = quantize(qnet, inplace=False)
infer.eval()
assert isinstance(infer.b1.conv1, QM.ConvBnRelu2d)
got = infer(mge.tensor(X)).numpy()
assert np.abs(got - want).max() < 0.15 * np.abs(want).max(), np.abs(got - want).max()


@jit.trace(symbolic=True, capture_as_const=True)
def pred(data):
    return F.softmax(infer(data), axis=1)


p0 = pred(mge.tensor(X))
buf = io.BytesIO()
r = pred.dump(
    buf, arg_names=["data"], output_names=["prob"], enable_nchw4=False, optimize_for_inference=True
)
buf.seek(0)

(res,) = GraphInference(buf).run(X).values()
np.testing.assert_allclose(res, p0.numpy(), rtol=1e-4, atol=1e-5)
# calibration
cal = quantize_qat(net, inplace=False, qconfig=calibration_qconfig)
cal.eval()
enable_observer(cal)
for i in range(0, 16, 8):
    cal(mge.tensor(X[i : i + 8]))
disable_observer(cal)
c8 = quantize(cal, inplace=False)
c8.eval()
assert np.isfinite(c8(mge.tensor(X)).numpy()).all()
my = QConfig(
    weight_observer=partial(MinMaxObserver, dtype="qint8_narrow"),
    act_observer=partial(MinMaxObserver, dtype="qint8"),
    weight_fake_quant=partial(LSQ, dtype="qint8_narrow"),
    act_fake_quant=partial(LSQ, dtype="qint8"),
)
m2 = quantize_qat(Net(), qconfig=my)
m2.train()
m2(mge.tensor(X))
t = mge.tensor(X[0]).astype(qint8(0.02))
assert is_quantize(t.dtype) and abs(get_scale(t.dtype) - 0.02) < 1e-6


class MyObs(MinMaxObserver):
    pass


sd = qnet.state_dict()
q2 = quantize_qat(Net(), qconfig=ema_fakequant_qconfig)
q2.load_state_dict(sd)
print("qat", round(L[0], 3), round(L[-1], 3))
