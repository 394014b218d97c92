"""The Python array API standard 2024.12: `import treadle.array_api as xp`.

Arrays are `Array` objects over Treadle's tensors. Where the standard and MegEngine differ (types
of Python's numbers, promotion, `**` of integers, `%` of floats, indexing) these functions follow
the standard; `Array.tensor` and `asarray` lead from one to the other.

https://data-apis.org/array-api/2024.12/
"""

import math
from typing import Any

from treadle.array_api import fft, linalg
from treadle.array_api import operators as _operators  # noqa: F401
from treadle.array_api.array import API_VERSION, Array
from treadle.array_api.array import namespace as namespace
from treadle.array_api.creation import *  # noqa: F403
from treadle.array_api.dtypes import *  # noqa: F403
from treadle.array_api.elementwise import *  # noqa: F403
from treadle.array_api.info import __array_namespace_info__
from treadle.array_api.manipulation import *  # noqa: F403
from treadle.array_api.products import *  # noqa: F403
from treadle.array_api.searching import *  # noqa: F403
from treadle.array_api.statistics import *  # noqa: F403

__array_api_version__ = API_VERSION
e, pi, inf, nan = math.e, math.pi, math.inf, math.nan
newaxis: Any = None

__all__ = ["Array", "__array_api_version__", "__array_namespace_info__", "fft", "linalg"]
