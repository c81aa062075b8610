"""The equivalence table as Markdown."""

from __future__ import annotations

import collections
import dataclasses
import math
import platform

import keras
import tensorflow as tf

import tfdist
from tests.equivalence.compare import MAX_HISTORY_DIFFERENCE, MAX_WEIGHT_DIFFERENCE
from tests.equivalence.features import FEATURES, THEMES
from tests.equivalence.peers import PEERS

# The heads of tfdist's columns, and the columns whose worst each shows.
HEADS = {
    "mirrored": ("mirrored-1", "mirrored-2", "mirrored-3", "mirrored-4"),
    "multi_worker": ("multi_worker-2",),
    "multi_worker 2×2": ("multi_worker-2x2",),
    "horovod": ("horovod-2",),
    "parameter_server": ("parameter_server-2",),
}
_NOT_MEASURED = "–"


@dataclasses.dataclass(frozen=True)
class Cell:
    """How a feature of tfdist came out in a column.

    Attributes:
        passed: whether its test passed.
        difference: max |Δw| against one device.
        twin: max |Δw| against as many replicas in one process; None for those themselves.
        refused: whether it was refused, with an error before training, as it should be.
    """

    passed: bool
    difference: float
    twin: float | None = None
    refused: bool = False


@dataclasses.dataclass(frozen=True)
class PeerCell:
    """How a feature of Keras alone came out.

    Attributes:
        error: the name of the error that it ended with, "hang", or "".
        weight_difference: max |Δw| against one device, of the worst rank.
        history_difference: the largest relative difference of a reported value.
        ranks_differ: whether the ranks have other weights than each other.
    """

    error: str = ""
    weight_difference: float = 0.0
    history_difference: float = 0.0
    ranks_differ: bool = False

    def __str__(self) -> str:
        if self.error:
            return "✗ hangs" if self.error == "hang" else "✗ crashes"
        if self.ranks_differ:
            return "✗ ranks differ"
        if self.weight_difference > MAX_WEIGHT_DIFFERENCE:
            finite = math.isfinite(self.weight_difference)
            return f"✗ {self.weight_difference:.0e}" if finite else "✗ NaN"
        if self.history_difference > MAX_HISTORY_DIFFERENCE:
            return "✗ reports"
        return f"✓ {self.weight_difference:.0e}"


Ours = dict[str, dict[str, Cell]]
Peers = dict[str, dict[str, PeerCell]]


def _ours(cells: Ours, columns: tuple[str, ...], feature: str) -> str:
    found = [cells[column][feature] for column in columns if feature in cells.get(column, {})]
    if not found:
        return _NOT_MEASURED
    if any(cell.refused for cell in found):
        return "refused" if all(cell.passed for cell in found) else "✗"
    return (
        f"✓ {max(cell.difference for cell in found):.0e}" if all(c.passed for c in found) else "✗"
    )


def _peer(cells: Peers, peer: str, feature: str) -> str:
    return str(cells[peer][feature]) if feature in cells.get(peer, {}) else _NOT_MEASURED


def table(ours: Ours, peers: Peers) -> str:
    """How the cells were made, and a table for each theme.

    Args:
        ours: the cells of tfdist by column and feature.
        peers: the cells of Keras alone; features that were not tried are missing.
    """
    lines = [_what_is_compared(), "", _twins(ours), "", _errors(peers)]
    titles = ["feature", *HEADS, *(peer.title for peer in PEERS)]
    for theme in THEMES:
        title = theme.__doc__.strip().splitlines()[0].rstrip(".")
        lines += ["", f"<details><summary>{title}</summary>", ""]
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for feature in theme.FEATURES:
            row = [feature.name]
            row += [_ours(ours, columns, feature.name) for columns in HEADS.values()]
            row += [_peer(peers, peer.name, feature.name) for peer in PEERS]
            lines.append(f"| {' | '.join(row)} |")
        lines += ["", "</details>"]
    return "\n".join(lines)


def _right(texts: list[str]) -> str:
    tried = [text for text in texts if text != _NOT_MEASURED]
    refused = tried.count("refused")
    counted = f"{sum(text.startswith('✓') for text in tried)} of {len(tried)}"
    return f"{counted} ({refused} refused before training)" if refused else counted


def summary(ours: Ours, peers: Peers) -> str:
    """How many features equal one device, in one paragraph."""
    names = [feature.name for feature in FEATURES]
    parts = [
        f"{head} {_right([_ours(ours, columns, name) for name in names])}"
        for head, columns in HEADS.items()
    ]
    others = [f"{p.title} {_right([_peer(peers, p.name, name) for name in names])}" for p in PEERS]
    return (
        f"**Features that equal one device. tfdist: {', '.join(parts)}. "
        f"Without tfdist: {', '.join(others)}.**"
    )


def _what_is_compared() -> str:
    return (
        "Each cell trains at least two epochs and compares weights (max |Δw| ≤ 1e-6, the figure "
        "shown), loss, metrics and validation (1e-5 relative) with one device. tfdist: weights and "
        "optimizer state are the same to the bit on all replicas of all processes. `mirrored` is "
        "the worst of 1, 2, 3 and 4 virtual CPU devices, `multi_worker` and `horovod` are 2 "
        "processes, `2×2` is 2 processes with 2 devices each, `parameter_server` is 2 workers and "
        "one parameter server with `staleness.Synchronous()`; what its workers cannot do, as they "
        "exchange nothing within a step, is refused before training. Without tfdist: Keras 3 in "
        "the scope of `tf.distribute.MirroredStrategy` (2 devices) and "
        "`MultiWorkerMirroredStrategy` (2 processes), and with "
        "`horovod.tensorflow.keras.DistributedOptimizer` (2 processes), each of which is given its "
        "half of every batch. "
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, Horovod 0.28.1, tfdist {tfdist.__version__}. "
        "Made by `make equivalence`."
    )


def _twins(ours: Ours) -> str:
    parts = []
    for head, columns in HEADS.items():
        twins = [c.twin for column in columns for c in ours.get(column, {}).values()]
        twins = [twin for twin in twins if twin is not None]
        if twins:
            same = sum(twin == 0 for twin in twins)
            parts.append(f"{head}: {same} of {len(twins)} bit by bit, all to {max(twins):.0e}")
    return (
        "The weights also equal those of `mirrored` with as many devices in one process "
        f"({'; '.join(parts)})."
    )


def _errors(peers: Peers) -> str:
    parts = []
    for peer in PEERS:
        cells = peers.get(peer.name, {})
        errors = collections.Counter(cell.error for cell in cells.values() if cell.error)
        named = ", ".join(f"{number} × {error}" for error, number in errors.most_common())
        sampled = "" if peer.complete else f", a sample of {len(cells)} features"
        parts.append(f"{peer.title}{sampled}: {named or 'none'}")
    return (
        f"Crashes without tfdist: {'; '.join(parts)}. “ranks differ”: the processes end with "
        "other weights than each other. “reports”: right weights, wrong loss or metrics. "
        f"“{_NOT_MEASURED}”: not tried."
    )
