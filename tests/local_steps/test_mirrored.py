"""The scenarios of several processes, with the devices of one."""

import pathlib

import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import checks
from tests.multi_process.scenarios import local_steps


class Here:
    """Stands for `tests.multi_process.scenarios.common.Here`: replicas in this process."""

    rank = 0

    def __init__(self, folder: pathlib.Path, replicas: int = 2):
        self.folder = folder
        self._devices = [f"CPU:{number}" for number in range(replicas)]

    def make(self, **options):
        return tfdist.MirroredStrategy(self._devices, **options)

    def meet(self):
        """Nobody else is there."""


@pytest.mark.parametrize(
    "name",
    [
        "resumed",
        "loop",
        "drift",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("looked_at", "after", "compressed")),
    ],
)
def test_in_one_process(name, tmp_path):
    found = getattr(local_steps, name)(Here(tmp_path))
    getattr(checks, name)([found])
