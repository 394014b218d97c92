"""Passes over the graphs of traced modules, the patterns they match, and `optimize`."""

from treadle.traced_module._passes.const_pass import AttrToConstant, FixInputShape, FlodConstant
from treadle.traced_module._passes.fold_scale_pass import BackwardFoldScale
from treadle.traced_module._passes.fuse_pass import FuseAddMul, FuseConvBn
from treadle.traced_module._passes.matcher import PatternMatcher
from treadle.traced_module._passes.normalize_pass import NormElemWise
from treadle.traced_module._passes.optimization import optimize
from treadle.traced_module._passes.pass_base import (
    PASSES,
    BackwardPass,
    BasePass,
    ForwardPass,
    Pass,
    PassContext,
    get_default_pass_context,
    get_registered_pass,
    register_pass,
)
from treadle.traced_module._passes.pattern import ExprPattern, any_node, is_const, is_op, is_var

__all__ = [
    "PASSES",
    "AttrToConstant",
    "BackwardFoldScale",
    "BackwardPass",
    "BasePass",
    "ExprPattern",
    "FixInputShape",
    "FlodConstant",
    "ForwardPass",
    "FuseAddMul",
    "FuseConvBn",
    "NormElemWise",
    "Pass",
    "PassContext",
    "PatternMatcher",
    "any_node",
    "get_default_pass_context",
    "get_registered_pass",
    "is_const",
    "is_op",
    "is_var",
    "optimize",
    "register_pass",
]
