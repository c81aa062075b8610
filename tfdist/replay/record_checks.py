"""Checks that what a line of a record says can be true: a damaged record must not be believed.

Each function raises ValueError if the line cannot be true.
"""

from __future__ import annotations

import math
import re

from tfdist.limits import INT32_MAX, INT64_MAX, MOST_DEVICES
from tfdist.replay.events import End, Fit, Header, Run, Used, Weights

SAMPLE = 32
"""At most so many numbers of a variable are kept."""

_CHECKSUM = re.compile(r"[0-9a-f]{8}")


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _is_integer(value: object, minimum: int = 0, maximum: int = INT64_MAX) -> bool:
    return type(value) is int and minimum <= value <= maximum


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def check_header(header: Header) -> None:
    """Checks the first line."""
    _require(_is_integer(header.workers, 1, INT32_MAX) and _is_integer(header.ps, 1, MOST_DEVICES))
    _require(header.threads is None or _is_text(header.threads))
    for texts in (header.options, header.versions):
        _require(isinstance(texts, dict) and all(map(_is_text, texts.values())))


def check_fit(fit: Fit) -> None:
    """Checks the beginning of a `fit`."""
    _require(isinstance(fit.variables, list))
    for path, shape, dtype in fit.variables:
        _require(_is_text(path) and _is_text(dtype) and isinstance(shape, list))
        _require(all(map(_is_integer, shape)))


def check_run(run: Run, fit: Fit) -> None:
    """Checks the beginning of a run of `fit`."""
    _require(_is_integer(run.epoch) and _is_integer(run.version))
    _check_weights(run.weights, fit)


def check_end(end: End, fit: Fit) -> None:
    """Checks the end of `fit`."""
    _require(end.error is None or (_is_text(end.error) and end.weights is None))
    if end.weights is not None:
        _check_weights(end.weights, fit)


def _check_weights(weights: Weights, fit: Fit) -> None:
    _require(isinstance(weights, Weights))
    _require(_is_integer(weights.checksum, maximum=2**32 - 1))
    _require(isinstance(weights.sample, list) and len(weights.sample) == len(fit.variables))
    for numbers, (_, shape, _) in zip(weights.sample, fit.variables):
        _require(isinstance(numbers, list) and len(numbers) == min(math.prod(shape), SAMPLE))
        _require(all(type(number) is float for number in numbers))


def check_used(used: Used, header: Header, run: Run, version: int) -> None:
    """Checks that a gradient could have been used like this.

    Args:
        used: what the record says about the gradient.
        header: the header of the record.
        run: the run of the gradient.
        version: the number of updates before the use.
    """
    updates = used.action == "update"
    _require(_is_integer(used.worker, maximum=header.workers - 1))
    _require(_is_integer(used.read, run.version, version))
    _require(_is_integer(used.version) and used.version == version + updates)
    _require(_is_integer(used.staleness) and used.staleness == version - used.read)
    _require((type(used.factor) is float) if updates else (used.factor is None))
    _require(_is_integer(used.number))
    _require(isinstance(used.batches, list) and len(used.batches) > 0)
    for shard, position, index, checksum in used.batches:
        _require(_is_integer(shard, maximum=header.workers - 1) and _is_integer(position))
        _require(_is_integer(index) and _is_text(checksum))
        _require(_CHECKSUM.fullmatch(checksum) is not None)
    if used.anew is not None:
        _require(isinstance(used.anew, list) and len(used.anew) > 0)
        _require(all(_is_integer(place, maximum=len(used.batches) - 1) for place in used.anew))
