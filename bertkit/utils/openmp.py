"""How long the waiting threads of OpenMP spin: short enough for other processes on the same cores."""

import os
import sys
from collections.abc import MutableMapping

# PyTorch computes with several threads, and OpenMP's threads wait for each other at the end of each operator.
# They spin (loop without work) before they sleep: in GNU's runtime (libgomp, in PyTorch's wheels for Linux)
# 300,000 iterations, about 5 to 10 ms, and in Intel's and LLVM's (macOS, Windows, conda) 200 ms. A spinning
# thread takes a core from another process. Without spinning, each operator would wake up sleeping threads.
SPIN_LIMITS = {
    "GOMP_SPINCOUNT": "1000",  # iterations, about 20 to 30 microseconds
    "KMP_BLOCKTIME": "0",  # milliseconds; LLVM 14 refuses smaller units, and 1 ms is too long
}
# Variables with which users set the same: the limits then keep the defaults of the runtime.
USER_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit the spinning of OpenMP's waiting threads, unless the user has set it.

    A runtime reads the variables when it is loaded. After the import of torch, they have no effect on this
    process, so they are not set.
    """
    if "torch" in sys.modules or any(name in environment for name in USER_VARIABLES):
        return
    environment.update(SPIN_LIMITS)
