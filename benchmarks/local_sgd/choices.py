"""What is compared: how replicas meet, and how they code what they send.

Nothing here imports TensorFlow, because the environments of the peers read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """Options of `tfdist.Strategy`.

    Attributes:
        title: in tables.
        local: the name of the class and its arguments; None for synchronous training.
        compression: as `tfdist.compression.get` takes it; None to send all as it is.
    """

    title: str
    local: Mapping[str, Any] | None = None
    compression: Mapping[str, Any] | None = None


# The rounds of the peers, and of what is compared with them.
STEPS = 32
_POWERSGD = {"name": "powersgd", "rank": 4}
_FOUR_BITS = {"name": "qsgd", "levels": 7, "norm": "max", "error_feedback": True}
_LOCAL_SGD = {"name": "LocalSGD", "steps": STEPS}
_STREAMING = {"name": "DiLoCo", "steps": STEPS, "fragments": 4, "overlap": 6}
_LONGER = {"name": "LocalSGD", "steps": 64}
# An exchange may take nearly as long as the steps until the next one.
_LONGER_STREAMING = {"name": "DiLoCo", "steps": 128, "fragments": 2, "overlap": 63}
_EARLY = {"name": "LocalSGD", "steps": 16, "after": 96}
_HALFWAY = {"name": "LocalSGD", "steps": 8, "after": 160}
# Half as often, and the exchange may take half of the steps until the next one.
_HALF_AS_LONG = {"name": "DiLoCo", "steps": 64, "fragments": 2, "overlap": 31}
# The same without an outer step: the mean, as in local SGD.
_MEAN = {**_HALF_AS_LONG, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
# Outer momentum repeats what a code sends late or too much of, so losses are compared with each.
_CODECS = ("int8", "terngrad", "onebit", "signsgd")
# Which of these are timed: those that lose no more than 4 bits do.
_TIMED_CODECS = ("int8", "terngrad")

_CODED = {
    f"streaming-{codec}": Choice(f"DiLoCo, H = 32, streaming, {codec}", _STREAMING, {"name": codec})
    for codec in _CODECS
}

SYNCHRONOUS, DENSE, DILOCO = "synchronous", "h32", "diloco"
CHOICES = {
    SYNCHRONOUS: Choice("synchronous"),
    "powersgd": Choice("PowerSGD, rank 4", compression=_POWERSGD),
    "post_local": Choice("first 96 synchronous, then H = 16", _EARLY),
    "post_local-half": Choice("first 160 synchronous, then H = 8", _HALFWAY),
    DENSE: Choice("H = 32", _LOCAL_SGD),
    "h32-bits": Choice("H = 32, 4 bits", _LOCAL_SGD, _FOUR_BITS),
    "h32-powersgd": Choice("H = 32, PowerSGD, rank 4", _LOCAL_SGD, _POWERSGD),
    "h64-bits": Choice("H = 64, 4 bits", _LONGER, _FOUR_BITS),
    "h64-powersgd": Choice("H = 64, PowerSGD, rank 4", _LONGER, _POWERSGD),
    DILOCO: Choice("DiLoCo, H = 32", {"name": "DiLoCo", "steps": STEPS}),
    "streaming-bits": Choice("DiLoCo, H = 32, streaming, 4 bits", _STREAMING, _FOUR_BITS),
    "streaming-powersgd": Choice("DiLoCo, H = 32, streaming, PowerSGD", _STREAMING, _POWERSGD),
    **_CODED,
    **{
        f"streaming64-{codec}": Choice(
            f"DiLoCo, H = 64, streaming, {codec}", _HALF_AS_LONG, {"name": codec}
        )
        for codec in _TIMED_CODECS
    },
    **{
        f"mean64-{codec}": Choice(f"H = 64, streaming, {codec}", _MEAN, {"name": codec})
        for codec in _TIMED_CODECS
    },
    "streaming128-bits": Choice(
        "DiLoCo, H = 128, streaming, 4 bits", _LONGER_STREAMING, _FOUR_BITS
    ),
    "streaming128-powersgd": Choice(
        "DiLoCo, H = 128, streaming, PowerSGD", _LONGER_STREAMING, _POWERSGD
    ),
}
POST_LOCAL = [key for key, choice in CHOICES.items() if (choice.local or {}).get("after")]
_UNTIMED = [f"streaming-{codec}" for codec in _CODECS if codec not in _TIMED_CODECS]
# Not where synchronous updates come first: those would be timed.
TIMED = [key for key in CHOICES if key not in POST_LOCAL and key not in _UNTIMED]
