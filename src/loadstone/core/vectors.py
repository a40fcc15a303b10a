"""Names the types of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints32 = NDArray[np.int32]
Ints64 = NDArray[np.int64]
