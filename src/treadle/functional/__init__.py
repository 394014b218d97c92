"""Stateless functions of tensors, under MegEngine's names: `import treadle.functional as F`.

Elementwise, math, tensor and network functions are flat; losses are `F.loss.*` and `F.nn.*`.
"""

from treadle.functional import elemwise, loss, math, metric, nn, tensor
from treadle.functional.elemwise import *
from treadle.functional.math import *
from treadle.functional.metric import topk_accuracy
from treadle.functional.nn import *
from treadle.functional.tensor import *
