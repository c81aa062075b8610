"""Builds a strategy from options that JSON can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tfdist


def strategy(
    backend: str, compression: Mapping[str, Any] | None, local: Mapping[str, Any] | None
) -> tfdist.Strategy:
    """A strategy.

    Args:
        backend: as `tfdist.Strategy` takes it.
        compression: as `tfdist.compression.get` takes it.
        local: the name of a class of tfdist, and its arguments.
    """
    rounds = None
    if local is not None:
        arguments = dict(local)
        rounds = getattr(tfdist, arguments.pop("name"))(**arguments)
    return tfdist.Strategy(
        backend, compression=compression and tfdist.compression.get(compression), local=rounds
    )
