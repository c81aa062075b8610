"""Trains eight small models on two virtual devices and on one, and compares the weights.

    python -m tfdist.testing.selfcheck

needs nothing but the installed package. It ends with status 1 if anything differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

_REPLICAS = 2


def main() -> int:
    """Prints a line for each feature. Returns the exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    import tfdist
    from tfdist.checkup import features

    devices = tfdist.testing.virtual_devices(_REPLICAS)
    print(
        f"tfdist {tfdist.__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}: "
        f"{_REPLICAS} devices against one"
    )
    status = 0
    for text, is_equal in _compared(features.ALL, devices):
        print(text, flush=True)
        status = status if is_equal else 1
    print(
        "All equal." if status == 0 else "NOT ALL ARE EQUAL: do not train with this installation."
    )
    return status


def _compared(features: Sequence, devices: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A line for each feature, and whether the weights were equal."""
    import tfdist
    from tfdist.checkup import equality

    for feature in features:
        strategy = tfdist.MirroredStrategy(devices, **feature.options)
        found = equality.train(feature, len(devices), strategy)
        off = equality.difference(found, equality.train(feature, len(devices)))
        is_equal = off <= feature.tolerance
        verdict = "equal" if is_equal else "NOT EQUAL"
        yield f"  {feature.name:40} {verdict:10} {off:.1e} of {feature.tolerance:.0e}", is_equal


if __name__ == "__main__":
    sys.exit(main())
