import os
import tempfile

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
import numpy as np
from megengine.core._imperative_rt.core2 import apply
from megengine.core.ops.builtin import Elemwise
from megengine.traced_module import TracedModule, trace_module, wrap
from megengine.traced_module.expr import CallMethod
from megengine.traced_module.node import ModuleNode
from megengine.utils.module_stats import module_stats


class Block(M.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = M.Conv2d(c, c, 3, 1, 1)
        self.bn = M.BatchNorm2d(c)
        self.se = M.Linear(c, c)

    def forward(self, x):
        y = F.relu(self.bn(self.conv(x)))
        s = F.sigmoid(self.se(y.mean((2, 3))))
        return x + y * F.expand_dims(s, [2, 3])


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Conv2d(3, 8, 3, 2, 1)
        self.blocks = M.Sequential(Block(8), Block(8))
        self.fc = M.Linear(8, 4)

    def forward(self, x, scale=1.0):
        f = self.blocks(self.stem(x)) * scale
        f = F.flatten(F.adaptive_avg_pool2d(f, 1), 1)
        return {"logits": self.fc(f), "feat": f}


net = Net()
net.eval()
x = mge.tensor(np.random.RandomState(0).rand(2, 3, 16, 16), dtype="float32")
t = trace_module(net, x)
assert isinstance(t, TracedModule)
want = net(x)["logits"].numpy()
np.testing.assert_allclose(t(x)["logits"].numpy(), want, rtol=1e-5, atol=1e-6)
graph = t.graph
print(type(graph).__name__, len(graph.exprs(recursive=True).as_list()))
flat = t.flatten()
relus = flat.graph.get_function_by_type(F.relu).as_list()
assert len(relus) == 2
for e in relus:
    out = e.outputs[0]
    with flat.graph.insert_exprs():
        new = F.leaky_relu(e.inputs[0], 0.1)
    flat.graph.replace_node({out: new})
flat.graph.compile()
assert (
    len(flat.graph.get_function_by_type(F.relu).as_list()) == 0
    and np.isfinite(flat(x)["logits"].numpy()).all()
)
convs = t.graph.get_module_by_type(M.Conv2d).as_list()
calls = t.graph.get_method_by_type("__call__").as_list()
feat = t.graph.get_function_by_type(F.flatten).as_unique().outputs[0]
opt = tm.optimize(t, enabled_pass=["FuseConvBn", "BackwardFoldScale"])
np.testing.assert_allclose(opt(x)["logits"].numpy(), want, rtol=1e-3, atol=1e-4)
path = os.path.join(tempfile.mkdtemp(), "net.tm")
mge.save(opt, path)
again = mge.load(path)
np.testing.assert_allclose(
    again(x)["logits"].numpy(), opt(x)["logits"].numpy(), rtol=1e-5, atol=1e-6
)
for n in t.graph.nodes(recursive=False):
    n.name, n._id
for e in t.graph._exprs:
    if isinstance(e, CallMethod) and isinstance(e.inputs[0], ModuleNode):
        e.inputs[0].module_type, e.method


@wrap
def my_op(x):
    return x * 2


(y,) = apply(Elemwise(mode="EXP"), x)
np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()), rtol=1e-5)
# checkpoint surgery
sd = net.state_dict()
sd2 = {k.replace("blocks.0", "stage"): v for k, v in sd.items()}
try:
    net.load_state_dict(sd2)
except KeyError:
    print("renamed keys are refused")
else:
    raise SystemExit("no KeyError")
net.load_state_dict({k: v for k, v in sd.items() if "fc" not in k}, strict=False)
net.fc = M.Linear(8, 7)
for m in net.modules():
    if isinstance(m, M.BatchNorm2d):
        m.freeze = True
frozen = [p for n, p in net.named_parameters() if not n.startswith("fc")]
h = net.blocks.register_forward_hook(lambda m, i, o: print("hook", o.shape))
net(x)
h.remove()

total, stats = module_stats(net, input_shapes=[(1, 3, 16, 16)], logging_to_stdout=False)
print("surgery", total.flops)
