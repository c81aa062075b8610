"""The fragments of the weights, and how and when replicas exchange each."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.compression.base import nbytes
from tfdist.local.choices import LocalSteps
from tfdist.local.fragments import plan_fragments
from tfdist.step.averaging import Averaging, residuals_of
from tfdist.step.local_beside import Beside
from tfdist.step.local_meeting import Meeting
from tfdist.step.local_overlap import Overlapped
from tfdist.step.local_pace import Pace
from tfdist.step.local_sent import Sent
from tfdist.step.local_state import LocalState
from tfdist.step.local_turns import AllAtOnce, ByTime, Streamed, Turns
from tfdist.step.update import Update


def fragments_of(local: LocalSteps | None, specs: Sequence[tf.TensorSpec]) -> list[list[int]]:
    """The positions of the variables of each fragment.

    Args:
        local: the user's choice; None if all updates are synchronous.
        specs: the trainable variables' shapes and dtypes.

    Raises:
        ValueError: when there are fewer variables than fragments.
    """
    fragments = 1 if local is None else local.fragments
    if fragments > max(1, len(specs)):
        raise ValueError(
            "Fragments are made of whole variables. Give at most as many `fragments` as an "
            "optimizer has trainable variables. Received: "
            f"fragments={fragments} with {len(specs)} trainable variables"
        )
    return plan_fragments([nbytes(spec) for spec in specs], fragments)


def numbers_of(places: Sequence[Sequence[int]]) -> list[int]:
    """For each variable the number of its fragment, from what `fragments_of` returns."""
    found = {place: number for number, mine in enumerate(places) for place in mine}
    return [found[place] for place in range(len(found))]


def turns_of(
    local: LocalSteps,
    update: Update,
    variables: Sequence[keras.Variable],
    averaging: Averaging,
    state: LocalState,
    bucket_bytes: int,
    places: list[list[int]],
    pace: Pace | None,
) -> tuple[Turns, bool]:
    """When the replicas meet, and whether they send differences then.

    Made in the strategy's scope.

    Args:
        local: the user's choice.
        update: updates the variables.
        variables: the trainable variables.
        averaging: sums differences over the replicas, compressed if asked for.
        state: what the replicas have for themselves.
        bucket_bytes: upper bound of a bucket in bytes.
        places: from `fragments_of`.
        pace: plans rounds that last a time; None for rounds of a number of updates.
    """
    shared = (local, update, variables, averaging, state, bucket_bytes)
    if local.overlap:
        averages = compat.moving_averages(update.optimizer)
        residuals = [residuals_of(averaging, mine) for mine in places]
        state.sent = sent = Sent(variables, averages, residuals)
        overlapped = [Overlapped(*shared, n, mine) for n, mine in enumerate(places)]
        return Beside(local, state, overlapped, sent), True
    meetings = [Meeting(*shared, n, mine) for n, mine in enumerate(places)]
    if local.streams:
        return Streamed(local, state, meetings), True
    if pace is not None:
        return ByTime(local, state, meetings[0], pace), meetings[0].sends_differences
    return AllAtOnce(local, state, meetings[0]), meetings[0].sends_differences
