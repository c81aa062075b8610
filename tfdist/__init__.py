"""tfdist: write `model.fit` once, run it on one device, N devices, N machines."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tfdist import _versions

if TYPE_CHECKING:
    from tfdist import (
        callbacks,
        cluster,
        compression,
        memory,
        pipeline,
        staleness,
        tensor_parallel,
        testing,
    )
    from tfdist.local.choices import DiLoCo, LocalSGD
    from tfdist.optimizer.distributed import DistributedOptimizer
    from tfdist.options import Options
    from tfdist.processes.sidecar_evaluator import SidecarEvaluator
    from tfdist.step.local_step import local_step
    from tfdist.step.scaling import scale_loss
    from tfdist.strategies.factory import Strategy
    from tfdist.strategies.horovod.strategy import HorovodStrategy
    from tfdist.strategies.mirrored.strategy import MirroredStrategy
    from tfdist.strategies.multi_worker.strategy import MultiWorkerMirroredStrategy
    from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy

__version__ = "0.1.0"
__all__ = [
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodStrategy",
    "LocalSGD",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "Options",
    "ParameterServerStrategy",
    "SidecarEvaluator",
    "Strategy",
    "callbacks",
    "cluster",
    "compression",
    "local_step",
    "memory",
    "pipeline",
    "scale_loss",
    "staleness",
    "tensor_parallel",
    "testing",
]

# TensorFlow and Keras are imported when the first of these names is used, not before. The command
# line needs neither, and `tfdist doctor` must run where they are broken, to say what is wrong.
_MODULES = {
    "DiLoCo": "tfdist.local.choices",
    "DistributedOptimizer": "tfdist.optimizer.distributed",
    "HorovodStrategy": "tfdist.strategies.horovod.strategy",
    "LocalSGD": "tfdist.local.choices",
    "MirroredStrategy": "tfdist.strategies.mirrored.strategy",
    "MultiWorkerMirroredStrategy": "tfdist.strategies.multi_worker.strategy",
    "Options": "tfdist.options",
    "ParameterServerStrategy": "tfdist.strategies.parameter_server.strategy",
    "SidecarEvaluator": "tfdist.processes.sidecar_evaluator",
    "Strategy": "tfdist.strategies.factory",
    "local_step": "tfdist.step.local_step",
    "scale_loss": "tfdist.step.scaling",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
    _versions.check_installed()
    module = importlib.import_module(_MODULES.get(name, f"tfdist.{name}"))
    value = getattr(module, name) if name in _MODULES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "keras" in sys.modules:
    _versions.check_installed()
