"""What each replica has for itself while replicas train apart, and where a round is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.local.choices import LocalSteps
from tfdist.step.local_sent import Sent
from tfdist.step.local_variables import count_of_each, counter, like
from tfdist.step.replica_rows import PER_REPLICA, SUM, Entry
from tfdist.step.replica_state import ReplicaState


class LocalState(ReplicaState):
    """The optimizer state of each replica, and the momentum of the outer optimizer.

    A saved model has every replica's optimizer state, so that training goes on as if it had not
    been interrupted. If the model is read with another number of replicas, all replicas take the
    mean of the saved states, and the counters of the first one. If a file has no such states, all
    replicas take the state in the layout of Keras. (A `tf.train.Checkpoint` has the first replica's
    state only, and so has a file of an elastic job.)

    Made in the strategy's scope.

    Args:
        own: the variables of the optimizer that become different on each replica.
        variables: the trainable variables.
        local: the user's choice.

    Attributes:
        rounds: how many rounds have ended, by fragment; the same on all replicas.
        updates: the number of updates since the weights were whole; the same on all replicas.
        steps: the number of steps since then, with or without an update; the same on all replicas.
        trained: 1 for each of the variables that the optimizer trains, as far as steps have run;
            the same on all replicas.
        touched: 1 for each of the variables that an update of its round trains; the same on all
            replicas.
        round_begun: after how many of these updates the round of each fragment began; the same on
            all replicas.
        begun: 1 once replicas have trained apart; the same on all replicas.
        unsettled: how many steps may have set something besides the weights that is not equal yet;
            the same on all replicas.
        samples: how many samples each replica has used in the round of each fragment.
        present: how many samples each replica had in the steps of these rounds, used or not.
        seen: how many samples each replica had in the `unsettled` steps.
        last: how many samples each replica had in the last step.
        made: how many updates each replica has made in a round that lasts a time.
        micro_batches: how many micro-batches wait for each replica's next update.
        waiting: how many samples these micro-batches have.
        anchor: what the replicas began the round with.
        drifts: the sum of the drifts that were measured since they were last read.
        drifts_measured: how many drifts are in this sum.
        momentum: of the outer optimizer; empty without.
        sent: what replicas have sent and not merged yet; None where that is merged at once.
    """

    def __init__(
        self,
        own: Sequence[keras.Variable],
        variables: Sequence[keras.Variable],
        local: LocalSteps,
    ):
        super().__init__(name="local")
        fragments, with_momentum = local.fragments, local.outer_decay > 0
        self._own = [variable.value for variable in own]
        self.rounds = counter("rounds", [fragments])
        self.updates = counter("updates")
        self.steps = counter("steps")
        self.trained = counter("trained", [len(variables)])
        self.touched = counter("touched", [len(variables)])
        self.round_begun = counter("round_begun", [fragments])
        self.begun = counter("begun")
        self.unsettled = counter("unsettled")
        self.samples = count_of_each("samples", tf.float32, [fragments])
        self.present = count_of_each("present", tf.float32, [fragments])
        self.seen = count_of_each("seen", tf.float32)
        self.last = count_of_each("last", tf.float32)
        self.made = count_of_each("made", tf.float32)
        self.waiting = count_of_each("waiting", tf.float32)
        self.micro_batches = count_of_each("micro_batches", tf.int64)
        self.anchor = [like(v, "anchor") for v in variables]
        self.drifts, self.drifts_measured = (
            tf.Variable(0.0, trainable=False, name=name) for name in ("drifts", "drifts_measured")
        )
        self.momentum = [like(v, "outer_momentum") for v in variables] if with_momentum else []
        self.sent: Sent | None = None
        self._is_of_file = True

    def count_samples(self, samples: tf.Tensor) -> None:
        """Counts the samples that a replica had in a step; in replica context."""
        self.present.assign_add(tf.fill(self.present.shape, samples))
        self.seen.assign_add(samples)
        self.last.assign(samples)

    def count_used(self, samples: tf.Tensor) -> None:
        """Counts the samples that a replica has used for an update; in replica context."""
        self.samples.assign_add(tf.fill(self.samples.shape, samples))
        self.made.assign_add(tf.cast(samples > 0, tf.float32))

    def begin_without_samples(self) -> None:
        """Drops what this process has counted in the round: a rank that joins has no part in it."""
        for variable in (self.samples, self.present, self.seen, self.last, self.made):
            for local in self._local(variable):
                local.assign(tf.zeros_like(local))

    def samples_present(self) -> int:
        """How many samples the replicas of this process had in the round."""
        return int(sum(local.numpy()[0] for local in self._local(self.present)))

    def take_drift(self) -> float:
        """The mean drift of the rounds since the last call; NaN if there were none.

        The drift of a round is the root of the mean square of the replicas' distances to the mean
        weights that all take, for the norm of the difference between these and the weights before
        the round. With compression these weights are what the coded differences come to.
        """
        number = float(self.drifts_measured.numpy())
        drift = float(self.drifts.numpy()) / number if number else float("nan")
        for variable in (self.drifts, self.drifts_measured):
            variable.assign(0.0)
        return drift

    def note_file(self, has_optimizer: bool) -> None:
        """Called before `load_own_variables`: whether the file has the optimizer's own state."""
        self._is_of_file = has_optimizer

    @property
    def counters(self) -> list[tf.Variable]:
        """What all replicas count together."""
        return [self.rounds, self.updates, self.steps, self.begun, self.unsettled]

    @property
    def owned(self) -> list[tf.Variable]:
        """The variables of the optimizer that need not be equal on all replicas."""
        return list(self._own)

    def entries(self) -> list[Entry]:
        """The optimizer's variables, what accumulation has counted, and the outer momentum."""
        own = [*self._own, self.micro_batches, self.waiting]
        return [
            *(Entry(v, [(f"own_{i}", ..., tuple(v.shape))]) for i, v in enumerate(own)),
            *(
                Entry(v, [(f"momentum_{i}", ..., tuple(v.shape))], shared=True)
                for i, v in enumerate(self.momentum)
            ),
        ]

    def has_rows(self) -> bool:
        """Whether replicas have trained apart; the same in all processes."""
        return int(self.begun.numpy()) > 0

    def saved_as(self) -> str:
        """Each replica's own."""
        return PER_REPLICA

    def position(self) -> tuple[int, int]:
        """How many rounds have ended, and the number of updates since the weights were whole."""
        return int(self.rounds.numpy().sum()), int(self.updates.numpy())

    def start_anew(self) -> None:
        """Nothing is left of earlier rounds, except in the optimizer's own state."""
        self.rounds.assign(tf.zeros_like(self.rounds))
        self.begun.assign(0)
        self._begin_round()
        for variable in [self.micro_batches, self.waiting, *self.momentum]:
            for local in self._local(variable):
                local.assign(tf.zeros_like(local))

    def save_own_variables(self, store: dict) -> None:
        """Writes the state where Keras' saving asks for it.

        Raises:
            RuntimeError: in the middle of a round, when the weights of the replicas differ.
        """
        _, updates = self.position()
        if updates:
            raise RuntimeError(
                "The replicas train apart, so there is no one model to save yet. Save with "
                "`model.save` or `model.save_weights` in all ranks, or at the end of an epoch; in "
                "a loop of your own call `optimizer.finish_round()` in all ranks before. "
                f"Received: a save after {updates} updates of a round"
            )
        if self.has_rows():
            rounds = self.rounds.numpy()
            store["rounds"] = rounds if len(rounds) > 1 else rounds[0]
            super().save_own_variables(store)

    def load_own_variables(self, store: dict) -> None:
        """Reads the state. A file of weights alone changes nothing, as with Keras' optimizers.

        Raises:
            ValueError: when the state was saved for other variables.
        """
        names = set(store.keys())
        if not names and not self._is_of_file:
            return
        self._set_rounds(store["rounds"][()] if "rounds" in names else 0)
        self.begun.assign(int(bool(names)))
        self._begin_round()
        if not names:
            self.adopt(SUM, self._first_of())
            return
        shared = {key for entry in self.entries() if entry.shared for key, _, _ in entry.places}
        wanted = {key: shape for entry in self.entries() for key, _, shape in entry.places}
        parts = {key: [n for n in names if n == key or n.startswith(f"{key}.")] for key in wanted}
        _check_shapes(store, wanted, parts, shared)
        replicas = max(len(found) for found in parts.values())

        def row(key: str, replica: int) -> np.ndarray:
            if key in shared:
                return store[key][0] if parts[key] else np.zeros(wanted[key], np.float32)
            return np.asarray(store[f"{key}.{replica}"][()])

        def of_all(key: str, _: int) -> np.ndarray:
            first = row(key, 0)
            if key in shared or not np.issubdtype(first.dtype, np.floating):
                return first
            return np.mean([row(key, r) for r in range(replicas)], axis=0, dtype=first.dtype)

        if replicas == self._strategy.num_replicas_in_sync and not self._processes.may_change:
            self.adopt(PER_REPLICA, row)
            return
        if replicas > 1:
            tf.get_logger().warning(
                "tfdist: the model was saved by %s replicas, each with an optimizer state of its "
                "own; %s replicas begin with the mean of these.",
                replicas,
                self._strategy.num_replicas_in_sync,
            )
        self.adopt(SUM, of_all)

    def _first_of(self) -> Callable[[str, int], np.ndarray]:
        """Reads what the first replica has, and zeros for what the optimizer does not have."""
        found = {}
        for number, variable in enumerate(self._own):
            found[f"own_{number}"] = self._local(variable)[0].numpy()
        empty = {key: np.zeros(shape) for e in self.entries() for key, _, shape in e.places}
        return lambda key, _: found.get(key, empty[key])

    @property
    def can_be_saved_alone(self) -> bool:
        """As in `ReplicaState`."""
        return self._processes.may_change or super().can_be_saved_alone

    def _rows_to_save(self) -> tuple[str, Iterator[np.ndarray]]:
        if not self._processes.may_change:
            return super()._rows_to_save()
        return PER_REPLICA, (self._local(entry.variable)[0].numpy() for entry in self.entries())

    def _order(self, kind: str) -> list[tuple[Entry, int]]:
        """The order of the rows. Where ranks may be lost, only the first one's are saved."""
        only_first = kind == PER_REPLICA and self._processes.may_change
        return [(e, n) for e, n in super()._order(kind) if n == 0 or not only_first]

    def _give(self, entry: Entry, kind: str, replica: int, row: np.ndarray) -> None:
        """Sets an entry; here all replicas take the whole of what is not one replica's."""
        if kind != SUM:
            super()._give(entry, kind, replica, row)
            return
        for variable in self._local(entry.variable):
            variable.assign(row)

    def _set_rounds(self, saved: int | np.ndarray) -> None:
        """Takes over how many rounds have ended, which is what compressors draw numbers by."""
        rounds = np.ravel(saved)
        if len(rounds) != self.rounds.shape[0]:  # saved with another number of fragments
            rounds = np.full(self.rounds.shape, rounds.max())
        self.rounds.assign(rounds)

    def _begin_round(self) -> None:
        for count in (self.updates, self.steps, self.unsettled, self.touched, self.round_begun):
            count.assign(tf.zeros_like(count))
        for variable in (self.samples, self.present, self.seen, self.made):
            for local in self._local(variable):
                local.assign(tf.zeros_like(local))
        if self.sent is not None:
            with self._strategy.scope():
                self.sent.start_anew()


def _check_shapes(store: dict, wanted: dict, parts: dict[str, list[str]], shared: set[str]) -> None:
    """Raises ValueError unless a file has the state of the same optimizer and variables."""
    for key, shape in wanted.items():
        shapes = {tuple(store[name].shape) for name in parts[key]}
        expected = (1, *shape) if key in shared else shape
        if shapes != {expected} and not (key in shared and not shapes):
            raise ValueError(
                "The saved state of local steps belongs to another optimizer or another model. "
                f"Received: {key} of shapes {sorted(shapes)}, where {expected} is wanted"
            )
