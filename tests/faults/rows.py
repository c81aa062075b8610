"""Rows of a table of faults: one fault each, and what came of it."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.faults import surroundings

# What the result of a fault begins with that did not end as it should.
FAILED = "failed: "


@dataclasses.dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        kind: the engine or the policy.
        name: what happens.
        inject: called with a folder, in which all processes must work: lets it happen, and checks
            what came of it. Returns the cells behind the name.
    """

    kind: str
    name: str
    inject: Callable[[pathlib.Path], Sequence[str]]

    def cells(self, count: int) -> list[str]:
        """Lets it happen; what has failed is said in the first of `count` cells."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            try:
                found = [*self.inject(folder)]
                left = surroundings.left_behind(folder)
                assert not left, f"processes that have not ended: {len(left)}"
            except subprocess.TimeoutExpired:
                found = [f"{FAILED}it has not ended after {time.monotonic() - start:.0f} s"]
            except (AssertionError, OSError, pytest.skip.Exception) as error:
                first = next(iter(str(error).split("\n")))
                found = [f"{FAILED}{first}".replace("|", " ")]
        return [self.kind, self.name, *found, *[""] * (count - len(found))]


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    """The largest difference of a weight."""
    return f"{max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs)):.0e}"
