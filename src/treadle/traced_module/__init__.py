"""Modules as graphs that can be read, edited, optimized and saved: `trace_module`.

import treadle.traced_module as tm
traced = tm.trace_module(net, x)
"""

from treadle.traced_module import codec, fake_quant, serialization
from treadle.traced_module._passes import (
    PatternMatcher,
    any_node,
    is_const,
    is_op,
    is_var,
    optimize,
)
from treadle.traced_module.catalog import register_as_builtin, wrap
from treadle.traced_module.checker import disable_default_checker, enable_expr_checker
from treadle.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
    Input,
    SetAttr,
)
from treadle.traced_module.filters import ExprFilter, NodeFilter
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.insert import InsertExprs
from treadle.traced_module.node import ModuleNode, Node, TensorNode
from treadle.traced_module.pytree import register_supported_type
from treadle.traced_module.serialization import (
    register_functional_loader,
    register_module_loader,
    register_opdef_loader,
    register_tensor_method_loader,
)
from treadle.traced_module.trace import trace_module
from treadle.traced_module.traced_module import TracedModule

__all__ = [
    "Apply",
    "CallFunction",
    "CallMethod",
    "Constant",
    "Expr",
    "ExprFilter",
    "GetAttr",
    "Input",
    "InsertExprs",
    "InternalGraph",
    "ModuleNode",
    "Node",
    "NodeFilter",
    "PatternMatcher",
    "SetAttr",
    "TensorNode",
    "TracedModule",
    "any_node",
    "codec",
    "disable_default_checker",
    "enable_expr_checker",
    "fake_quant",
    "is_const",
    "is_op",
    "is_var",
    "optimize",
    "register_as_builtin",
    "register_functional_loader",
    "register_module_loader",
    "register_opdef_loader",
    "register_supported_type",
    "register_tensor_method_loader",
    "serialization",
    "trace_module",
    "wrap",
]
