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
        compression: as `tfdist.compression.get` takes it, or a dict of patterns and such.
        local: the name of a class of tfdist, and its arguments.
    """
    rounds = None
    if local is not None:
        arguments = dict(local)
        rounds = getattr(tfdist, arguments.pop("name"))(**arguments)
    is_one = compression is not None and "name" in compression
    choice = tfdist.compression.get(compression) if is_one else compression
    return tfdist.Strategy(backend, compression=choice, local=rounds)
