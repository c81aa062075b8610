"""The backend `horovod`, described without importing TensorFlow."""

from __future__ import annotations

import importlib.util

from tfdist.strategies.backend import Backend, Launch
from tfdist.strategies.horovod.launch import across, environments, of_group

HOROVOD = Backend(
    name="horovod",
    strategy="tfdist.strategies.horovod.strategy:HorovodStrategy",
    engine="Horovod",
    obstacle=lambda found: found.tensorflow or found.horovod,
    launch=Launch(environments, "Horovod trains", across=across, elastic=of_group),
    mesh="tfdist.strategies.horovod.mesh:engines",
)


def is_installed() -> bool:
    """Whether Horovod can be found; does not import Horovod."""
    return importlib.util.find_spec("horovod") is not None
