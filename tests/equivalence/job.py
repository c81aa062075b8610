"""Processes that train many features, one after the other, so that they start only once."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import pickle
import tempfile
import threading
import time
from collections.abc import Sequence

from tests.equivalence.ranks import STRICT, JobError, Limits, Ranks, Start
from tests.equivalence.results import Result, file_name, write

# With so few features left, other processes of the session may still wait for them.
_LAST_FEATURES = 4


class Job:
    """Ranks that train features in turn, for all processes of the test session that ask.

    The process that asks first starts them, and a thread of it watches them; the others read what
    it leaves in the folder. When a rank fails or hangs, all are ended, and started again for the
    features that follow.

    Args:
        ranks: the processes.
        features: the names of the features, in their order.
        folder: the same for all that ask for results of this job.
        limits: when to give up.
    """

    def __init__(
        self,
        ranks: Ranks,
        features: Sequence[str],
        folder: pathlib.Path,
        limits: Limits = STRICT,
    ):
        self._ranks = ranks
        self._features = list(features)
        self._folder = folder
        self._limits = limits
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")

    def result(self, feature: str) -> list[Result]:
        """The results of all ranks; waits for them.

        Raises:
            JobError: when the ranks failed or hung at `feature`, with what they said.
        """
        assert feature in self._features, feature
        while not self._path(feature).exists():
            self._watch_unless_another_does()
            time.sleep(0.05)
        results = pickle.loads(self._path(feature).read_bytes())
        if isinstance(results, JobError):
            raise results
        return results

    def stop(self) -> None:
        """Ends the processes, if this process started them; another one may start them again."""
        if self._thread is not None:
            if len(self._left()) <= _LAST_FEATURES:
                self._thread.join()
            self._stopped.set()
            self._thread.join()
        self._lock.close()

    def _watch_unless_another_does(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._thread = threading.Thread(target=self._watch)
                self._thread.start()

    def _watch(self) -> None:
        failures = 0
        try:
            while self._left() and not self._stopped.is_set():
                if failures < self._limits.failures:
                    failures = self._watch_one_start(failures)
                else:
                    self._give_up(f"not tried after {failures} failures in a row")
        except Exception as error:  # who waits must be told
            self._give_up(f"the ranks cannot be started: {error!r}")
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _watch_one_start(self, failures: int) -> int:
        """Starts the ranks, until they fail; returns the number of failures in a row."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="start-", dir=self._folder))
        left = self._left()
        with contextlib.closing(Start(self._ranks, left, folder, self._limits)) as start:
            while left and not self._stopped.is_set():
                feature = left[0]
                error = None if start.has_finished(feature) else start.failure(feature)
                if start.has_finished(feature):
                    self._settle(feature, start.results(feature))
                    left.remove(feature)
                    failures = 0
                elif error:
                    self._settle(feature, error)
                    return failures + 1
                time.sleep(0.02)
        return failures

    def _give_up(self, reason: str) -> None:
        for feature in self._left():
            self._settle(feature, JobError(reason))

    def _settle(self, feature: str, results: list[Result] | JobError) -> None:
        write(self._path(feature), pickle.dumps(results))

    def _left(self) -> list[str]:
        return [feature for feature in self._features if not self._path(feature).exists()]

    def _path(self, feature: str) -> pathlib.Path:
        return self._folder / file_name(feature)
