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


SMALL_NAMES = """
import numpy as np
import megengine as mge
import megengine.distributed as dist
import megengine.functional as F
import megengine.module as M
import megengine.utils.network_node as N
from megengine.core.tensor.utils import cast_tensors, result_type
from megengine.distributed.helper import AllreduceCallback, make_allreduce_cb, synchronized
from megengine.functional.nn import expand_dhw, expand_hw
from megengine.module.qat.conv import ConvTranspose2d, ConvTransposeRelu2d
from megengine.module.qat.conv_transpose_bn import ConvTransposeBn2d
from megengine.module.quantized.conv_transpose_bn import ConvTransposeBn2d as Whole
from megengine.module.quantized.linear_bn import LinearBn1d
from megengine.traced_module import trace_module
from megengine.traced_module._passes.pass_base import BasePass, ForwardPass, register_pass
from megengine.traced_module._passes.utils import get_const_value, register_obj
from megengine.traced_module.expr import get_suffix_name, is_call_module, is_constant
from megengine.traced_module.traced_module import ExprFilter, NodeFilter, register_as_builtin, wrap
from megengine.utils.module_stats import flops_convNd, preprocess_receptive_field, register_flops
from megengine.utils.network import NodeFilter, NodeFilterName, NodeFilterType

assert expand_hw(3) == expand_hw((3, 3)) == expand_hw(np.int64(3)) == (3, 3)
assert expand_dhw([1, 2, 3]) == (1, 2, 3)
x = mge.tensor([1.0, 2.0])
low, nothing = cast_tensors(x, None)
assert low.dtype == np.float16 and nothing is None
assert cast_tensors(low, promote=True)[0].dtype == np.float32
assert result_type(x, np.int8, "unknown to NumPy") == np.float32
assert AllreduceCallback is make_allreduce_cb and synchronized(abs)(-3) == 3

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.shift = M.Conv2d(3, 4, 3), mge.Parameter([2.0])

    def forward(self, x):
        return self.conv(x) * self.shift + mge.tensor([1.0])

graph = trace_module(Net(), mge.tensor(np.zeros((1, 3, 4, 4), "float32"))).graph
held = [get_const_value(e) for e in graph.exprs(recursive=False)]
assert [v.tolist() for v in held if isinstance(v, mge.Tensor)] == [[2.0], [1.0]]
assert get_const_value(graph.outputs[0], "computed") == "computed"
table = {}
assert register_obj(["a", "b"], table)(len) is len and table == {"a": len, "b": len}
print("all there")
"""


def test_names_that_are_not_public_in_megengine(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SMALL_NAMES, encoding="utf-8")
    command = [sys.executable, "-m", "treadle.interop.megengine", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all there\n"
