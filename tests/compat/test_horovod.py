"""Whether Horovod was mended is told from its library."""

import _ctypes_test
import shutil
import types
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from tfdist.compat.horovod import is_mended
from tfdist.strategies.horovod.backend import is_installed


@pytest.mark.skipif(not is_installed(), reason="make horovod")
def test_the_one_of_make_horovod_is_mended():
    import horovod.tensorflow as hvd

    assert is_mended(hvd), "run `make horovod`: this Horovod was built in another way"


def test_another_one_is_not(tmp_path):
    shutil.copy(_ctypes_test.__file__, tmp_path / f"mpi_lib{EXTENSION_SUFFIXES[0]}")
    module = types.ModuleType("horovod.tensorflow")
    module.__file__ = str(tmp_path / "__init__.py")
    assert not is_mended(module)
