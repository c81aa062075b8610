"""Repeats the training that a record tells of, and checks that the results are the same."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.parameter_server.contracts import ChiefStrategy, Schedule, Training
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Compute, WorkItem
from tfdist.replay.events import Run, Weights
from tfdist.replay.log import FitLog, RunLog, read
from tfdist.replay.recorder import description, header_of, used, variables_of
from tfdist.replay.replayed_schedule import RecordedBatches, ReplayedSchedule
from tfdist.replay.sums import difference, weights_of

TOLERANCE = 1e-6
"""How far numbers may be from the recorded numbers: relative where these are greater than 1."""


_started: list[Replay] = []


def replay(path: str, strategy: ChiefStrategy) -> Replay:
    """Lets `strategy` follow a record; the arguments are those of `Replay`."""
    if _started:
        raise ValueError(
            "A record is of one strategy, so a replay follows it with one: let one strategy of the "
            "script have `record`. Received: a second one with it"
        )
    _started.append(Replay(path, strategy))
    return _started[0]


def started() -> Replay | None:
    """The replay that runs in this process; None for none."""
    return _started[0] if _started else None


class Replay:
    """Follows a record; see `Journal`.

    Args:
        path: the path of the record's file.
        strategy: the strategy. Its options must be those of the recorded run.

    Attributes:
        updates: the number of updates that were made.
        dropped: the number of gradients that were dropped.
        fits: the number of `fit`s that were followed to their end.
        farthest: the largest difference from samples of the recorded weights, when an epoch began
            or a `fit` ended.
        differs_since: when the weights were first seen to differ from the recorded weights in any
            bit; None for never.

    Raises:
        ValueError: when the file is no record, or damaged, or of a strategy with other options.
        OSError: when the file cannot be read.
    """

    reads_batches = True
    follows_record = True

    def __init__(self, path: str, strategy: ChiefStrategy):
        self._path = path
        self._log = read(path)
        self._check(
            "the options of the strategy", self._log.header.options, header_of(strategy).options
        )
        self.updates = self.dropped = self.fits = 0
        self.farthest = 0.0
        self.differs_since: str | None = None
        self._broken_off: str | None = None
        self._fit: FitLog | None = None
        self._runs: collections.deque[RunLog] = collections.deque()
        self._schedule: ReplayedSchedule | None = None
        self._batches: tuple[Source, RecordedBatches] | None = None

    @contextlib.contextmanager
    def fit(self, training: Training) -> Iterator[None]:
        """Checks that the `fit` ends as recorded, and compares the weights."""
        self._fit = self._schedule = None  # a `fit` that failed has left them
        try:
            yield
        except BaseException as error:
            if self._ended_with(error):
                self._end_fit()
            raise
        if self._fit is None:
            return
        self._end_run()
        if self._runs:
            raise self._other(f"a fit that ends before epoch {self._runs[0].run.epoch + 1}")
        self._end_fit()
        end = self._fit.end
        if end is not None and end.weights is not None:
            now = weights_of(variables_of(training))
            self._compare(end.weights, now, f"the end of fit {self.fits}")

    def schedule(
        self,
        training: Training,
        source: Source,
        compute: Compute,
        make: Callable[[Compute], Schedule],
    ) -> Schedule:
        """The recorded work items, to be done one after the other."""
        del make
        self._end_run()
        variables = variables_of(training)
        if self._fit is None:
            self._begin_fit(variables)
        version = training.strategy.version
        log = self._next_run(Run(training.epoch, version, weights_of(variables)))
        if self._batches is None or self._batches[0] is not source:
            self._batches = source, RecordedBatches(source)
        self._schedule = ReplayedSchedule(
            log, self._batches[1], compute, lambda: self._end_of_record(log, training.model)
        )
        return self._schedule

    def note(
        self, action: str, items: Sequence[WorkItem], version: int, factor: float | None
    ) -> None:
        """Checks that the same was done as in the recorded run."""
        schedule = self._schedule
        assert schedule is not None
        now = used(action, items, version, factor)
        place = f"step {schedule.done + 1} of epoch {schedule.log.run.epoch + 1}"
        self._check(place, schedule.expected._asdict(), now._asdict())
        schedule.done += 1
        self.updates += action == "update"
        self.dropped += action == "dropped"

    def exhausted(self) -> None:
        """Nothing happens: the schedule ends where the record says."""

    def problem(self) -> str | None:
        """Where the replay failed to follow the record; None if it followed the record."""
        whole = len(self._log.fits)
        if self.fits < whole:
            return f"the script ended after {self.fits} of {whole} recorded fits"
        if self.farthest > TOLERANCE:
            return f"the weights are others since {self.differs_since}"
        return None

    def summary(self) -> str:
        """What was done, and how close the weights came to the recorded ones."""
        dropped = f" and {self.dropped} dropped gradients" if self.dropped else ""
        text = f"{self.updates} updates{dropped} replayed"
        if self._broken_off:
            text += f" to the place {self._broken_off}; up to its last epoch"
        if self.differs_since is None:
            text += "; max |Δw| is 0: the weights are the recorded ones, bit for bit"
        else:
            text += (
                f"; max |Δw| is {self.farthest:.2g} in samples of the weights, which are not the "
                f"recorded ones bit for bit since {self.differs_since}"
            )
        problem = self.problem()
        return text if problem is None else f"{text}; {problem}"

    def _begin_fit(self, variables: Sequence[keras.Variable]) -> None:
        if self.fits == len(self._log.fits):
            raise self._other(f"a script that goes on with fit {self.fits + 1}")
        self._fit = self._log.fits[self.fits]
        self._runs = collections.deque(self._fit.runs)
        then, now = (
            {path: f"{dtype} of shape {shape}" for path, shape, dtype in all_of_them}
            for all_of_them in (self._fit.fit.variables, description(variables))
        )
        self._check("the variables", then, now)

    def _next_run(self, now: Run) -> RunLog:
        assert self._fit is not None
        if not self._runs:
            if self._fit.is_whole:
                raise self._other(f"a fit that goes on with epoch {now.epoch + 1}")
            return RunLog(now)
        log = self._runs.popleft()
        then = log.run._replace(weights=now.weights)
        self._check("the beginning of an epoch", then._asdict(), now._asdict())
        apart = difference(log.run.weights, now.weights)
        if apart > TOLERANCE and self.updates == 0:
            raise ValueError(
                "A replay begins with the weights that the recorded run began with: let "
                "keras.utils.set_random_seed decide about them in the script, and load what it "
                f"loaded. Received: weights that differ by {apart:.2g} from those of {self._path}"
            )
        self._compare(log.run.weights, now.weights, f"epoch {now.epoch + 1}")
        return log

    def _ended_with(self, error: BaseException) -> bool:
        """Whether the recorded `fit` ended with the same error, after the same work items."""
        fit, schedule = self._fit, self._schedule
        if fit is None or fit.end is None or self._runs or schedule is None:
            return False
        return fit.end.error == type(error).__name__ and schedule.done == len(schedule.log.used)

    def _end_fit(self) -> None:
        """Counts a `fit` that was followed to its end, or to the end of the record."""
        assert self._fit is not None
        self.fits += 1
        end, self._broken_off = self._fit.end, None
        if end is None:
            self._broken_off = "where the record is cut off"
        elif end.error is not None:
            self._broken_off = f"where the recorded run ended with {end.error}"

    def _end_run(self) -> None:
        schedule, self._schedule = self._schedule, None
        if schedule is not None and schedule.done < len(schedule.log.used):
            raise self._other(
                f"an epoch {schedule.log.run.epoch + 1} that ends after {schedule.done} of "
                f"{len(schedule.log.used)} steps"
            )

    def _end_of_record(self, log: RunLog, model: keras.Model) -> None:
        """Ends training where the record ends; raises if the record goes on, but differently."""
        assert self._fit is not None
        if self._fit.is_whole or self._runs:
            raise self._other(
                f"an epoch {log.run.epoch + 1} that goes on after {len(log.used)} steps"
            )
        tf.get_logger().warning("tfdist: training is stopped, since the record ends here.")
        model.stop_training = True

    def _compare(self, then: Weights, now: Weights, when: str) -> None:
        self.farthest = max(self.farthest, difference(then, now))
        if then.checksum != now.checksum and self.differs_since is None:
            self.differs_since = when

    def _check(self, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if names:
            found = "; ".join(f"{n} is {now.get(n)}, then {then.get(n)}" for n in names[:5])
            raise self._other(f"{what} with {found}")

    def _other(self, what: str) -> ValueError:
        return ValueError(
            "A replay needs the script, the data and the options of the recorded run. "
            f"Received: {what}, which is not as in {self._path}"
        )
