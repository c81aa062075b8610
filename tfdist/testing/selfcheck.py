"""Trains eight small models on two virtual devices and on one, and compares the weights.

    python -m tfdist.testing.selfcheck

needs nothing but the installed package. It ends with status 1 if anything differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

import tfdist
from tfdist.checkup import equality
from tfdist.checkup.features import ALL
from tfdist.testing import virtual_devices

_REPLICAS = 2


def main() -> int:
    """Prints a line for each feature. Returns the exit status."""
    devices = virtual_devices(_REPLICAS)
    print(
        f"tfdist {tfdist.__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}: "
        f"{_REPLICAS} devices against one"
    )
    status = 0
    for text, is_equal in _compared(devices):
        print(text, flush=True)
        status = status if is_equal else 1
    print("NOT ALL ARE EQUAL: do not train like this." if status else "All equal.")
    return status


def _compared(devices: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A line for each feature, and whether the weights were equal."""
    for feature in ALL:
        strategy = tfdist.MirroredStrategy(devices, **feature.options)
        found = equality.train(feature, len(devices), strategy)
        off = equality.difference(found, equality.train(feature, len(devices)))
        is_equal = off <= feature.tolerance
        verdict = "equal" if is_equal else "NOT EQUAL"
        yield f"  {feature.name:40} {verdict:10} {off:.1e} of {feature.tolerance:.0e}", is_equal


if __name__ == "__main__":
    sys.exit(main())
