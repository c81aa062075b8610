"""Lines that TensorFlow prints in every process and that tell users nothing."""

from __future__ import annotations

import re

# A line of TensorFlow's C++ code: level, time, file, text.
_LOGGED = re.compile(
    rb"(?:([IWEF])\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: ([IWEF]) )"
    rb"[\w./-]+\.(?:cc|h):\d+\] (.*)"
)
# Its warnings and errors that mean no problem: there is no GPU, a generator cannot be optimized, a
# data set has ended, a step was cancelled.
_HARMLESS = re.compile(
    rb"failed call to cuInit|Unable to register cu\w+ factory|computation placer already registered"
    rb"|Could not load dynamic library|will not be optimized because|SIGTERM caught at "
    rb"|rendezvous is aborting with status: (?:OUT_OF_RANGE|CANCELLED|ABORTED: Cleanup)"
)
_OTHERS = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    rb"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler"
    rb"|WARNING:tensorflow:Collective ops is not configured at program startup\."
    rb"|/job:\w+/replica:\d+/task:\d+$"  # a task that is waited for
)
# Servers print their options in several lines, up to an empty one.
_OPTIONS = re.compile(rb"SessionOptions: ")
_OPTION = re.compile(rb"\s*(?:\w+ \{|\}|\w+: (?:\S+|\".*\"))$")


class Banners:
    """Recognizes banners, lines that tell users nothing, in one stream of one process.

    Example:

    >>> from tfdist.launcher.banners import Banners
    >>> banners = Banners()
    >>> banners.match(b"I0000 00:00:1795474732.2   256 cpu_feature_guard.cc:227] This binary is")
    True
    >>> banners.match(b"E0000 00:00:1795474732.2   256 ring_alg.cc:291] Aborting RingReduce")
    False
    """

    def __init__(self) -> None:
        self._in_options = False

    def match(self, line: bytes) -> bool:
        """Whether `line`, the next one, is a banner."""
        logged = _LOGGED.match(line)
        if logged is None:
            if self._in_options:
                self._in_options = _OPTION.match(line) is not None
                return self._in_options or not line.strip()
            return _OTHERS.match(line) is not None
        level, text = logged[1] or logged[2], logged[3]
        self._in_options = _OPTIONS.match(text) is not None
        return level == b"I" or (level in b"WE" and _HARMLESS.search(text) is not None)
