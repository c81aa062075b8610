"""The table of backends by name.

`tfdist.Strategy`, `tfdist run`, `tfdist doctor`, docs and tests read it. Needs no TensorFlow.
"""

from __future__ import annotations

from tfdist.strategies.backend import Backend
from tfdist.strategies.horovod.backend import HOROVOD
from tfdist.strategies.mirrored.backend import MIRRORED
from tfdist.strategies.multi_worker.backend import MULTI_WORKER
from tfdist.strategies.parameter_server.backend import PARAMETER_SERVER

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (MIRRORED, MULTI_WORKER, HOROVOD, PARAMETER_SERVER)
}
LAUNCHED = {name: backend.launch for name, backend in BACKENDS.items() if backend.launch}
"""The backends that `tfdist run` starts, the default first."""
