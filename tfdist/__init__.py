"""tfdist: write `model.fit` once, run it on one device, N devices, N machines."""

from tfdist import _versions

_versions.check_installed()

from tfdist import callbacks, testing  # noqa: E402
from tfdist.optimizer import DistributedOptimizer  # noqa: E402
from tfdist.options import Options  # noqa: E402
from tfdist.scaling import scale_loss  # noqa: E402
from tfdist.strategies.factory import Strategy  # noqa: E402
from tfdist.strategies.mirrored import MirroredStrategy  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "DistributedOptimizer",
    "MirroredStrategy",
    "Options",
    "Strategy",
    "callbacks",
    "scale_loss",
    "testing",
]
