"""A training of an elastic job with local steps, in which ranks die, leave and join.

python -m tfdist run -n 3 --min 1 -m tests.elastic.local_job FOLDER CASE [RANK:SIGNAL:MOMENT]...

A plan is as for `tests.elastic.job`, with the moments "strategy", "trace", "step N", "micro N",
"evaluate", "epoch N", "form N" and "end", and with "meet N" and "met N": before and after its part
of the N-th try of a meeting. "meet joined" and "met joined" are before and after its part of the
first try with a rank that has joined. "RANK:MISS:N" is no signal: the N-th try fails in this rank
alone, when the others may have completed it.

Each rank notes each step that it makes, in a file of its own: in which round, and with which
samples. One that joins notes whose state it has got. At the end the others note who has met.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import pickle
import sys

from tests.elastic import job
from tfdist.elastic.forming import GroupIsNoMoreError

STEPS = 3  # of a round


def cases():
    """The cases by name; imports TensorFlow."""
    from tests.local_steps import by_hand

    outer = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
    mean = by_hand.Case(
        by_hand.sgd(momentum=0.9, nesterov=True),
        by_hand.normalized,
        ("LocalSGD", {"steps": STEPS}),
        rows=48 * 7 + 17,
        batch=48,
    )
    ema = by_hand.of("Adam", use_ema=True, ema_momentum=0.8)
    local = ("DiLoCo", {"steps": STEPS, **outer})
    return {
        "mean": mean,
        "outer": dataclasses.replace(mean, optimizer=ema, local=local),
        "looks": mean,
        "reports": mean,
    }


@dataclasses.dataclass(frozen=True)
class Note:
    """A step that a rank makes, unless it dies in it.

    Attributes:
        round: how many meetings there had been before.
        epoch: in which epoch.
        first: the first sample.
        stop: the sample after the last one.
    """

    round: int
    epoch: int
    first: int
    stop: int


def notes(path):
    """The notes in a file, as far as they are whole."""
    found = []
    with path.open("rb") as file:
        while True:
            try:
                found.append(Note(*pickle.load(file)))
            except (EOFError, pickle.UnpicklingError):
                return found


def note_copied(group, path) -> None:
    """Notes from which rank this one gets its state, when it joins."""
    take_in = group._take_in

    def noted(settlement):
        take_in(settlement)
        if settlement.is_new:
            path.write_text(str(group.members[settlement._root]))

    group._take_in = noted


def watch_meetings(group, rounds, missed, first) -> None:
    """Counts how often this rank tries to meet the others, and breaks the connection in some.

    Args:
        group: the group.
        rounds: lets the ranks meet.
        missed: the numbers of the tries that fail in this rank alone, after its part.
        first: how many ranks there were at first; others join.
    """
    meet, numbers = rounds._meet, itertools.count(1)

    def counted(batch):
        number, one_joins = next(numbers), max(group.members) >= first
        for moment in (number, *(["joined"] if one_joins else [])):
            job.reached(f"meet {moment}")
        found = meet(batch)
        for moment in (number, *(["joined"] if one_joins else [])):
            job.reached(f"met {moment}")
        if number in missed:
            group._interrupt(group.generation)
            raise GroupIsNoMoreError
        return found

    rounds._meet = counted


def main() -> None:
    """Trains, and writes what came of it."""
    folder, name, *plans = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    number = int(os.environ["TFDIST_ELASTIC"].partition(":")[2])
    missed = []
    for plan in plans:
        if ":MISS:" in plan:
            rank, _, meeting = plan.split(":")
            missed += [int(meeting)] if int(rank) == number else []
        else:
            job.note_plan(plan, number)

    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tests.local_steps import by_hand

    class Model(keras.Sequential):
        def train_step(self, data):
            job.reached("trace")
            logs = super().train_step(data)
            if name != "reports":
                return logs
            return {**logs, "own": tf.reduce_mean(data[0])}  # no metric

    case = cases()[name]
    kind, arguments = case.local
    strategy = tfdist.Strategy("auto", local=getattr(tfdist, kind)(**arguments))
    job.reached("strategy")
    job.watch_forming(strategy.group._connection)
    note_copied(strategy.group, folder / f"copied-{number}")
    watch_meetings(strategy.group, strategy.group_rounds, missed, int(os.environ["RANKS"]))
    batches = -(-case.rows // case.batch)
    meetings = []
    written = (folder / f"steps-{number}").open("ab", buffering=0)

    def count_meetings():
        last = strategy.group_rounds.last
        if last is not None and (not meetings or meetings[-1] is not last):
            meetings.append(last)
        return len(meetings)

    class Moments(keras.callbacks.Callback):
        decides_in_batches = False
        changes_variables = False

        def on_epoch_begin(self, epoch, logs=None):
            count_meetings()
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            group = strategy.group
            size = min(case.batch, case.rows - batch * case.batch)
            ends = np.round(np.arange(group.size + 1) / group.size * size).astype(int)
            rank = min(group.rank, group.size - 1)  # it has none while it follows the others
            first, stop = (batch * case.batch + ends[rank : rank + 2]).tolist()
            note = Note(count_meetings(), self.epoch, first, stop)
            if not group.is_apart:  # before the step, at whose end the ranks may meet
                written.write(pickle.dumps(dataclasses.astuple(note)))

        def on_train_batch_end(self, batch, logs=None):
            count_meetings()
            assert all(isinstance(value, float) for value in logs.values()), logs
            done = self.epoch * batches + batch + 1
            job.reached(f"step {done}", soon=True)
            job.reached(f"micro {done}")

        def on_test_batch_begin(self, batch, logs=None):
            if self.epoch:
                job.reached("evaluate", soon=True)

        def on_epoch_end(self, epoch, logs=None):
            count_meetings()
            job.reached(f"epoch {epoch + 1}")

    class Looks(keras.callbacks.Callback):
        """Looks into batches, so the ranks agree after each."""

        changes_variables = False

        def __init__(self):
            super().__init__()
            self.losses = []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(float(logs["loss"]))

    looks = Looks()
    with strategy.scope():
        model = Model([keras.Input((by_hand.FEATURES,)), *case.model().layers])
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    x, y = case.data()
    callbacks = [
        *strategy.callbacks(),
        Moments(),
        *([looks] if name == "looks" else []),
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras")),
        keras.callbacks.EarlyStopping("loss", patience=100),
    ]
    options = {"batch_size": case.batch, "shuffle": False, "verbose": 2, "callbacks": callbacks}
    history = model.fit(x, y, epochs=case.epochs, validation_data=(x[:60], y[:60]), **options)
    count_meetings()

    def own_of(model):
        owned = model.optimizer.local_state.owned
        return [strategy.experimental_local_results(v)[0].numpy() for v in owned]

    model.save(folder / "model.keras")
    strategy.processes.all_gather([0])  # the file is there
    with strategy.scope():
        loaded = keras.models.load_model(folder / "model.keras", custom_objects={"Model": Model})
    found = {
        "weights": model.get_weights(),
        "own": own_of(model),
        "loaded": {"weights": loaded.get_weights(), "own": own_of(loaded)},
        "looks": looks.losses,
        "history": history.history,
        "members": strategy.group.members,
        "meetings": [tuple(met) for met in meetings],
        "evaluated": model.evaluate(x, y, batch_size=case.batch, verbose=0),
    }
    (folder / f"rank-{number}.pickle").write_bytes(pickle.dumps(found))
    job.reached("end")


if __name__ == "__main__":
    main()
