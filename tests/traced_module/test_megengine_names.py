"""Programs written for MegEngine import what they need under the names they know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine.traced_module import TracedModule, trace_module
from megengine.traced_module.expr import Apply, CallFunction, CallMethod, Constant, GetAttr, Input
from megengine.traced_module.fake_quant import FakeQuantize
from megengine.traced_module.node import ModuleNode, Node, TensorNode
from megengine.traced_module.pytree import tree_flatten
from megengine.traced_module.serialization import register_functional_loader
from megengine.traced_module.traced_module import InternalGraph
from megengine.utils.bn_fusion import fold_weight_bias
from megengine.utils.module_utils import set_module_mode_safe

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = M.Conv2d(3, 4, 3), M.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))

net = Net()
net.eval()
data = mge.tensor(mge.random.uniform(0, 1, (1, 3, 8, 8)))
traced = trace_module(net, data)
for expr in traced.graph.exprs():
    if isinstance(expr, CallFunction) and expr.func is F.relu:
        out = expr.outputs[0]
        with traced.graph.insert_exprs(expr):
            more = F.sigmoid(out)
        traced.graph.replace_node({out: more})
traced.graph.compile()
traced = tm.optimize(traced, "FuseConvBn")
mge.save(traced, "net.tm")
again = mge.load("net.tm")
assert abs((again(data) - F.sigmoid(net(data))).numpy()).max() < 1e-5
print(len(again.graph._exprs), isinstance(again, TracedModule))
"""


def test_a_program_for_megengine(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "treadle.interop.megengine", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 True\n"
