"""How well models learnt with choices that are not exact, where that was measured.

The losses of local steps are those of the table in docs/local_steps.md: on held-out data, after 320
updates of a small character model, divided by the loss of synchronous training. A test compares the
two.
"""

from __future__ import annotations

import dataclasses

from tfdist.compression.quantize import QSGD
from tfdist.local.choices import DiLoCo, LocalSGD, LocalSteps
from tfdist.plan.candidate import Candidate, Compression

_FOUR_BITS = QSGD(levels=7, norm="max", error_feedback=True)
_POWERSGD = "powersgd"  # of rank 4
_STREAMING = DiLoCo(32, fragments=4, overlap=6)
_LONGER = DiLoCo(128, fragments=2, overlap=63)
_SHORTER = DiLoCo(64, fragments=2, overlap=31)
_MEAN = dataclasses.replace(_SHORTER, outer_learning_rate=1.0, outer_momentum=0.0)

LOSSES: dict[tuple[LocalSteps, Compression], float] = {
    (LocalSGD(32), None): 1.019,
    (LocalSGD(32), _FOUR_BITS): 1.019,
    (LocalSGD(32), _POWERSGD): 1.105,
    (LocalSGD(64), _FOUR_BITS): 1.021,
    (LocalSGD(64), _POWERSGD): 1.150,
    (DiLoCo(32), None): 1.050,
    (_STREAMING, _FOUR_BITS): 1.026,
    (_STREAMING, _POWERSGD): 1.204,
    (_STREAMING, "int8"): 1.026,
    (_STREAMING, "terngrad"): 1.027,
    (_STREAMING, "onebit"): 1.039,
    (_STREAMING, "signsgd"): 1.042,
    (_SHORTER, "int8"): 1.040,
    (_SHORTER, "terngrad"): 1.043,
    (_MEAN, "int8"): 1.027,
    (_MEAN, "terngrad"): 1.030,
    (_LONGER, _FOUR_BITS): 1.043,
    (_LONGER, _POWERSGD): 1.280,
}
# Measured after 160 synchronous updates only, with 1.002. By itself it is at most as far from
# synchronous training as rounds that are four times as long.
SHORTEST = LocalSGD(8)
LOCAL_CHOICES: list[tuple[LocalSteps, Compression]] = [(SHORTEST, None), *LOSSES]

# More than this is shown, but not recommended.
MOST_LOSS = 1.03
# With these, models got to their target in each table of docs/compression.md, "What it does to
# training". The others are shown, but not recommended: signs and random elements diverge there.
_CONVERGE = (None, "fp16", "bf16", "int8", "qsgd", "terngrad", "powersgd", "topk")


def loss(candidate: Candidate) -> float | None:
    """The measured loss of local steps; None if there are none, or none was measured.

    Args:
        candidate: a choice.
    """
    if candidate.local is None:
        return None
    local = LocalSGD(32) if candidate.local == SHORTEST else candidate.local
    return LOSSES.get((local, candidate.compression))


def is_good(candidate: Candidate) -> bool:
    """Whether models have learnt about as well with a choice as without it.

    Args:
        candidate: a choice. Compression with asynchronous training was not measured.
    """
    if candidate.local is not None:
        measured = loss(candidate)
        return measured is not None and measured <= MOST_LOSS
    if candidate.has_servers:
        return candidate.compression is None and candidate.pull_compression is None
    return candidate.compression in _CONVERGE
