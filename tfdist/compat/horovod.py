"""What `scripts/horovod.cmake` has added to Horovod 0.28.1."""

from __future__ import annotations

import ctypes
import pathlib
from types import ModuleType


def is_mended(hvd: ModuleType) -> bool:
    """Whether `scripts/install_horovod.py` has built Horovod, so that it survives lost ranks.

    Horovod tells nothing of how it was built but what it was built for. The library is the one that
    is loaded already, so that nothing happens when it is opened once more.

    Args:
        hvd: the module `horovod.tensorflow`.
    """
    assert hvd.__file__ is not None
    (library,) = pathlib.Path(hvd.__file__).parent.glob("mpi_lib.*")
    return hasattr(ctypes.CDLL(str(library)), "horovod_mended_by_tfdist")
