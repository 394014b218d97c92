"""Errors in Chinese, beside English, where that is the language of the system.

`TABLE` has what people meet first, by the texts in the sources: `{}` stands for what a text is
filled with. Errors that it lacks are told by their class. `tests/base/test_chinese.py` holds that
each text is in the sources, so that who changes an error changes its translation as well.
"""

from __future__ import annotations

import functools
import re

from treadle.base.env import LANGUAGE


def is_chinese() -> bool:
    """Return whether errors are told in Chinese as well: by TREADLE_LANGUAGE, else the locale."""
    return LANGUAGE.get().lower().startswith("zh")


def explanation(code: str, problem: str, hint: str) -> str:
    """Return the lines in Chinese of an error: what is wrong, and what to do if that is known."""
    told, advice = _translated(problem), _translated(hint) if hint else ""
    lines = [f"  中文: {told or CLASSES.get(code) or CLASSES['T00']}"]
    return "\n".join([*lines, f"  建议: {advice}"] if advice else lines)


def _translated(text: str) -> str:
    """Return a text in Chinese, "" if the table lacks it or one of its clauses."""
    if whole := _filled(text):
        return whole
    first, *more = text.split("; ")
    clauses = [_filled(first), *(_filled(clause) or _filled(f"; {clause}") for clause in more)]
    return "；".join(clauses) if all(clauses) else ""


def _filled(text: str) -> str:
    for pattern, translation in _patterns():
        if match := pattern.fullmatch(text):
            return translation.format(*match.groups())
    return ""


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns and translations, those with the most words of their own first."""
    ordered = sorted(TABLE.items(), key=lambda row: -len(row[0].replace("{}", "")))
    return tuple(
        (re.compile("(.*?)".join(map(re.escape, text.split("{}"))), re.DOTALL), translation)
        for text, translation in ordered
    )


CLASSES = {
    "T00": "运算无法完成",
    "T01": "形状、轴或大小不适合该算子",
    "T02": "数据类型不适合该算子，或数值不适合数据类型",
    "T03": "设备名称写错、设备不存在，或混用了不同设备的张量",
    "T04": "索引超出了它所选取的轴",
    "T05": "这些数值没有结果：奇异矩阵、不收敛的迭代",
    "T06": "对没有梯度的算子求梯度",
    "T07": "梯度管理器的使用次序不对，或异常检测模式发现了 NaN",
    "T08": "计算图违反了中间表示的规则",
    "T09": "引擎或会话的用法不被允许",
    "T10": "函数无法捕获，或调用与捕获时不同",
    "T11": "没有引擎能在这些类型上运行该算子",
    "T12": "引擎的某个阶段无法完成",
    "T13": "编译产物或插件不适合本机或本版本",
    "T14": "保存的文件已损坏、含有恶意内容、比本版本新，或属于另一种类",
    "T15": "设备无法提供所要求的内存",
    "T16": "TracedModule 的编辑或用法是它的计算图所不允许的",
    "T17": "数据加载器的工作进程意外结束、用时太长，或无法传递对象",
    "T18": "图像文件已损坏、不完整、太大，或不是图像",
    "T19": "数据集的文件缺失、损坏或属于另一种类",
    "T20": "文件无法下载，或不是所要求的那一个",
    "T21": "仓库缺少入口文件、其中的入口，或它所依赖的软件包",
    "T22": "仓库无法取到本机，或在本机已损坏",
    "T23": "设备在工作中途丢失：被重置、被拔掉，或它的驱动或进程结束了",
    "T24": "某个算子或层在两个设备上的结果不同，或结果不是有限值",
    "T25": "同一组的进程不一致、没有应答，或无法联系",
}
"""Classes of errors by code, as the table of docs/zh/errors.md has them."""

TABLE = {
    # Shapes
    "cannot broadcast axis {}: {} against {}": "轴 {} 无法广播：{} 与 {} 不同",
    "reshape one operand so that this axis is equal or 1": (
        "用 reshape 改变其中一个操作数，使该轴相等或为 1"
    ),
    "the inner extents {} and {} differ": "内侧的两个长度 {} 和 {} 不同",
    "axis {} of x must be as long as axis {} of y; transpose one of them": (
        "x 的轴 {} 必须与 y 的轴 {} 等长；转置其中一个"
    ),
    "the last axes of x and weight, the features, differ": (
        "x 与 weight 的最后一个轴（特征数）不同"
    ),
    "flatten or reshape x, or make the layer for as many in_features": (
        "展平 x 或改变它的形状，或在创建该层时使 in_features 与之相同"
    ),
    "{} has {} channels, expected {}": "{} 有 {} 个通道，应为 {} 个",
    "{} has {} axes and {} {}: both need as many": "{} 有 {} 个轴，{} 有 {} 个：两者必须一样多",
    "F.expand_dims(x, 0) makes a batch of one": "F.expand_dims(x, 0) 得到大小为 1 的批量",
    "of channels that come last F.transpose(x, {}) makes the second axis": (
        "如果通道在最后，用 F.transpose(x, {}) 把它变成第二个轴"
    ),
    "the layouts are x [N,C,*S], weight [O,C/groups,*K], result [N,O,*P]": (
        "布局为：x [N,C,*S]，weight [O,C/groups,*K]，结果 [N,O,*P]"
    ),
    "cannot reshape {} to {}": "无法把形状 {} 变为 {}",
    "both shapes must hold the same number of elements": "两个形状的元素个数必须相同",
    "the extent for -1 would not be whole": "-1 处的长度不是整数",
    "only one extent may be -1": "只能有一个长度为 -1",
    "axis {} is out of range for {} axes": "轴 {} 超出范围：共有 {} 个轴",
    "use an axis from {} to {}": "轴可以是 {} 到 {}",
    "expects {} axes for {}, got {}": "应有 {} 个轴（{}），实际为 {} 个",
    "{} is not a permutation of {} axes": "{} 不是 {} 个轴的排列",
    "name every axis once; F.swapaxes(x, i, j) exchanges two": (
        "每个轴写一次；F.swapaxes(x, i, j) 交换两个轴"
    ),
    "label has {} axes, pred {}: expected one less": "label 有 {} 个轴，pred 有 {} 个：应当少一个",
    "one-hot labels become class numbers by F.argmax(label, axis={})": (
        "用 F.argmax(label, axis={}) 把 one-hot 标签变成类别编号"
    ),
    "pred comes first: cross_entropy(pred, label)": "pred 在前：cross_entropy(pred, label)",
    "cannot write {} to {}": "无法把形状 {} 写入形状 {}",
    "the value must broadcast to the indexed region": "该值必须能够广播到所索引的区域",
    # Element types and indices
    "does not take {}": "不接受 {}",
    "cast with astype() to one of {}": "用 astype() 转换为以下类型之一：{}",
    "operands differ in element type": "操作数的元素类型不同",
    "cast one of them with astype()": "用 astype() 转换其中一个",
    "the value {} does not fit {}": "数值 {} 不适合 {}",
    "the mask is {}, not bool": "掩码是 {}，应为 bool",
    "an index is {}, not int32 or int64": "索引是 {}，应为 int32 或 int64",
    "index {} is out of range for axis {} of size {}": "索引 {} 超出范围：轴 {} 的长度为 {}",
    "index {} is out of range for axis {} with extent {}": "索引 {} 超出范围：轴 {} 的长度为 {}",
    "index {} is out of range for an extent of {}": "索引 {} 超出范围：长度为 {}",
    "the label {} is none of {} classes": "标签 {} 不属于 {} 个类别中的任何一个",
    "use 0 to {}, and mask samples without a label": "使用 0 到 {}，没有标签的样本用掩码排除",
    "use {} to {}": "使用 {} 到 {}",
    "a matrix is singular": "矩阵是奇异的",
    # Devices
    "{} is not a device name": "{} 不是设备名称",
    "; did you mean {}?": "是否想写 {}？",
    "there is no device {}{}: {} of this kind exist": "没有设备 {}{}：这一种类共有 {} 个",
    "use cpux, or install a backend for it; treadle.backends() lists what was found": (
        "使用 cpux，或为它安装后端；treadle.backends() 列出找到了哪些后端"
    ),
    "operands are on different devices: {} and {}": "操作数在不同的设备上：{} 和 {}",
    "move one of them with x.to({})": "用 x.to({}) 移动其中一个",
    "{} cannot run it and falling back is an error here": "{} 不能运行它，而这里不允许回退到主机",
    "device.reset({}) opens it anew; tensors that were only there have to be made or loaded again": (  # noqa: E501
        "device.reset({}) 重新打开它；只存在于该设备上的张量需要重新创建或读取"
    ),
    # Gradients and captured functions
    "no computation history. did you forget record() or call a method that clears it?": (
        "没有计算历史。是否忘了 record()，或调用了清除历史的方法？"
    ),
    "compute the loss and call backward inside of `with gm:`, once; for several losses pass a list": (  # noqa: E501
        "在 `with gm:` 块内计算损失并调用一次 backward；有多个损失时传入列表"
    ),
    "the function reads a value that is known only when the program runs": (
        "函数读取了一个只有程序运行时才知道的值"
    ),
    "choose with F.where or jit.cond, loop with jit.while_loop or jit.scan, show it with jit.print, return the tensor and read it outside, or leave the function uncompiled": (  # noqa: E501
        "选择用 F.where 或 jit.cond，循环用 jit.while_loop 或 jit.scan，显示用 jit.print；"
        "或者返回张量，在外面读取；或者不编译这个函数"
    ),
    "the extents of its result {} are known only at run time": ("结果 {} 的长度只有运行时才知道"),
    "leave this op out of the compiled function, or pad to a fixed size": (
        "不要把这个算子放进编译的函数，或填充到固定的大小"
    ),
    "data decide an extent of what the body returns": "循环体的结果有一个长度由数据决定",
    "return what has a known size, such as a sum or a mask, and select behind it": (
        "返回大小已知的结果，例如总和或掩码，在外面再选取"
    ),
    # Files and memory
    "header is too large": "文件头太大",
    "checksum of tensor {} does not match: its data is damaged": "张量 {} 的校验和不符：数据已损坏",
    "cannot allocate {} bytes": "无法分配 {} 字节",
    "cannot allocate {} bytes for {}{}": "无法为 {1}{2} 分配 {0} 字节",
    "ask for a smaller shape": "请使用较小的形状",
}
"""Texts of errors as they are in the sources, and in Chinese."""
