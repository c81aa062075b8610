"""When a snapshot is taken, and how training goes back to it."""

from __future__ import annotations

import collections
import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.chief import errors
from tfdist.parameter_server.contracts import ChiefStrategy, Guard
from tfdist.parameter_server.snapshots.files import SnapshotFiles, size_of
from tfdist.parameter_server.snapshots.folder import Folder, remove
from tfdist.parameter_server.snapshots.reading import Reader, at_rest
from tfdist.parameter_server.snapshots.saved import Saved
from tfdist.parameter_server.snapshots.servers import Servers
from tfdist.parameter_server.snapshots.variables import MadeVariables
from tfdist.step.model_optimizers import learning_rates

# Seconds between two snapshots, and how much longer than a snapshot that must be.
_SECONDS, _TIMES = 60.0, 20
# Training that goes back this often, with no new snapshot in between, has another problem.
_MOST = 5


class Snapshots:
    """Takes snapshots during `fit`, and lets training go back to the last one.

    Args:
        strategy: the strategy.
        variables: the variables on the parameter servers.
        every: after how many updates a snapshot is taken; 0 for no snapshots, None for about one a
            minute.
        folder: a folder that the chief and all servers share, in which the servers write; None for
            a temporary folder in which the chief writes.

    Attributes:
        restores: how often training went back. What was traced before must be traced anew.
    """

    def __init__(
        self,
        strategy: ChiefStrategy,
        variables: MadeVariables,
        every: int | None,
        folder: str | None,
    ):
        self.restores = 0
        self._strategy = strategy
        self._variables = variables
        self._every = every
        self._given = folder
        self._is_asked_for = every is not None or folder is not None
        self._files = SnapshotFiles(on_servers=folder is not None)
        self._servers = Servers(strategy.addresses, strategy.ps_devices, strategy.coordinator)
        self._folder: Folder | None = None
        self._last: Saved | None = None
        self._reader = Reader()
        self._epoch = self._in_vain = 0
        self._due = self._not_before = 0.0
        self._models: list[keras.Model] = []
        self._rates: list[tuple[keras.Variable, float]] = []

    @property
    def can_restore(self) -> bool:
        """Whether there is a snapshot to go back to."""
        return self._last is not None

    @contextlib.contextmanager
    def fit(self, model: keras.Model) -> Iterator[None]:
        """Surrounds a `fit` of `model`. Outside of it, there are no snapshots."""
        if self._every == 0:
            yield
            return
        self._models.append(model)
        try:
            if len(self._models) > 1:  # a callback trains another model, or this one
                yield
            else:
                with self._folder_for_all():
                    yield
        finally:
            self._models.pop()

    @contextlib.contextmanager
    def _folder_for_all(self) -> Iterator[None]:
        self._folder = folder = Folder(self._given)
        self._not_before = 0.0
        try:
            yield
        finally:
            folder.close()
            self._folder = self._last = None
            self._reader.forget()

    def note(self, variables: Sequence[tf.Variable]) -> None:
        """Adds variables on parameter servers that were made outside of the scope."""
        self._variables.note(variables)

    # --- taking ---------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Called when an epoch begins."""
        self._epoch += 1

    def begin_run(
        self, optimizers: Sequence[keras.optimizers.Optimizer], guard: Guard | None
    ) -> None:
        """Called before workers begin: takes the first snapshot.

        Args:
            optimizers: the optimizers, whose learning rates callbacks may have set.
            guard: as for `take_if_due`.
        """
        if self._folder is None:
            return
        self._rates = [(r, float(r.numpy())) for o in optimizers for r in learning_rates(o)]
        self._servers.watch()
        self.take_if_due(guard)

    def take_if_due(self, guard: Guard | None) -> None:
        """Takes a snapshot if it is time for one.

        Args:
            guard: reads values while workers make updates; None where no updates are under way.
        """
        if self._folder is None or not self._is_due():
            return
        start = time.monotonic()
        try:
            self._take(guard, self._folder)
        except (tf.errors.OpError, OSError) as error:
            if self._servers.lost():
                raise
            self._note_failure(error, _pause(start))

    def _note_failure(self, error: Exception, pause: float) -> None:
        """Says that there is no new snapshot, and tries again later.

        Raises:
            OSError: when there is none at all, although the user has asked for snapshots.
        """
        last = self._last
        if last is None and self._is_asked_for:
            raise OSError(
                "The first snapshot could not be written, so `fit` could not go on if a parameter "
                "server died. Make room, give another `snapshot_dir`, or use `snapshot_every=0` "
                f"for training without snapshots. Received: {error}"
            ) from error
        self._not_before = time.monotonic() + pause
        tf.get_logger().warning(
            "tfdist: a snapshot could not be written; training goes on, and the next attempt is in "
            "%.0f s. Until then, %s. (%s)",
            pause,
            "`fit` ends if a parameter server dies"
            if last is None
            else f"the last one is of update {last.version}",
            error,
        )

    def _is_due(self) -> bool:
        last = self._last
        if time.monotonic() < self._not_before:
            return False
        if last is None or last.made != self._variables.number:
            return True
        if self._every is None:
            return time.monotonic() >= self._due
        return self._strategy.version - last.version >= self._every

    def _take(self, guard: Guard | None, parent: Folder) -> None:
        start = time.monotonic()
        made = self._variables.number
        variables = collections.defaultdict(list)
        for variable in self._variables.in_use():
            variables[variable.device].append(variable)
        with at_rest(self._strategy.version, guard) as version:
            values = self._reader.read(variables, made)
        size = sum(size_of(value) for some in values.values() for value in some)
        folder = parent.new(size)
        try:
            places = self._files.write(folder, values)
        except Exception:
            remove(folder)
            raise
        before = self._last
        refs = {device: [*map(weakref.ref, some)] for device, some in variables.items()}
        self._last = Saved(version, self._epoch, made, folder, refs, places)
        if before is not None:
            remove(before.folder)
        seconds = time.monotonic() - start
        self._due = time.monotonic() + _pause(start)
        self._in_vain = 0
        cost = self._strategy.report.snapshots
        cost.count += 1
        cost.seconds += seconds
        cost.bytes += size

    # --- going back -----------------------------------------------------------------------------

    def restore(self, error: Exception, lose: Callable[[int], int] = lambda version: 0) -> None:
        """Waits for the parameter servers that are lost, and goes back to the last snapshot.

        Args:
            error: what was raised.
            lose: called with the number of updates before the snapshot; returns how many updates
                beyond `strategy.version` are lost.

        Raises:
            Exception: `error`, if no parameter server is lost or there is no snapshot.
            ConnectionError: when a server does not come back, or has not all that it needs.
        """
        saved = self._last
        lost = self._servers.lost_by(error) if saved is not None else set()
        if saved is None or not lost:
            raise error
        strategy = self._strategy
        self._in_vain += 1
        if self._in_vain > _MOST:
            why = f"That was so {_MOST} times with no new snapshot in between."
            raise self._given_up(lost, why) from error
        names = self._servers.names(sorted(lost))
        tf.get_logger().warning("tfdist: %s is lost; waiting until it is back.", names)
        self._restore(saved, lost)
        beyond = lose(saved.version)
        died = strategy.version + beyond
        updates = max(0, strategy.version - saved.version) + beyond
        strategy.version = min(strategy.version, saved.version)
        strategy.report.lost_updates += updates
        self.restores += 1
        self._reader.forget()
        tf.get_logger().warning(
            "tfdist: %s was lost after update %d and is back; training goes on from the snapshot "
            "of update %d; %d updates are lost.",
            self._servers.names(sorted(lost)),
            died,
            saved.version,
            updates,
        )

    def _restore(self, saved: Saved, lost: set[int]) -> None:
        """Gives all variables the values of the snapshot; adds servers to `lost` that die too."""
        timeout = self._strategy.timeout
        end = time.monotonic() + timeout
        while True:
            try:
                self._servers.connect(lost, end)
                self._assign(saved, lost)
                self._begin_epoch_again(saved)
                return
            except TimeoutError as error:
                raise self._given_up(lost, f"Within {timeout:g} s, {error}.") from error
            except tf.errors.OpError as error:
                more = set(self._servers.lost())
                if not more:
                    why = f"The snapshot cannot be read: {error.message}."
                    raise self._given_up(lost, why) from error
                lost |= more

    def _assign(self, saved: Saved, lost: set[int]) -> None:
        """Gives all variables their values; those of servers that were lost are made anew."""
        moved = {self._strategy.ps_devices[number] for number in lost}
        known = {id(ref()) for refs in saved.variables.values() for ref in refs}
        for variable in self._variables.in_use():
            if variable.device in moved and id(variable) not in known:
                why = f"The variable {variable.name} was made after the last snapshot."
                raise self._given_up(lost, why)

        def use(device: str, number: int, value: tf.Tensor) -> None:
            variable = saved.variables[device][number]()
            if variable is None:  # not in use any more
                return
            if device in moved:
                compat.move_to(variable, value)
            else:
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

        with tf.init_scope():
            self._files.read(saved.places, use)

    def _begin_epoch_again(self, saved: Saved) -> None:
        """Metrics and learning rates are those of the present epoch, not of the snapshot's."""
        for model in self._models if saved.epoch != self._epoch else ():
            for metric in model.metrics:
                metric.reset_state()
        for variable, rate in self._rates:
            variable.assign(rate)

    def _given_up(self, lost: Iterable[int], why: str) -> ConnectionError:
        return errors.lost_servers(self._servers.names(sorted(lost)), f" {why}")


def _pause(start: float) -> float:
    """Seconds from a snapshot that was begun at `start` to the next one."""
    return max(_SECONDS, _TIMES * (time.monotonic() - start))
