"""Ranks bring each other to the same place, whichever of the sums that this takes fails."""

import collections
import threading

import numpy as np
import pytest
import tensorflow as tf

from tfdist.elastic.formation import Formation
from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step, Sum

SECONDS = 20
MOST_SUMS = 12  # that a settlement takes here


class LostError(Exception):
    """A sum has failed."""


class Network:
    """Adds up the values of two ranks, by the number of the group and of the sum in it.

    Args:
        failing: the sums that fail, in both ranks.
    """

    def __init__(self, failing):
        self._failing = failing
        self._changed = threading.Condition()
        self._values = collections.defaultdict(dict)

    def sum(self, place, rank, value):
        with self._changed:
            self._values[place][rank] = np.asarray(value)
            self._changed.notify_all()
            if place in self._failing:
                raise LostError
            arrived = self._changed.wait_for(lambda: len(self._values[place]) == 2, SECONDS)
            assert arrived, f"rank {rank} waits in sum {place} for the other one"
            one, other = self._values[place].values()
            assert one.shape == other.shape, f"the ranks do different things in {place}"
            return tf.constant(one + other)


class Connection:
    """A rank's connection to the other one.

    Args:
        network: adds up.
        rank: the rank.
        unheard: the sums of which this rank does not learn the result.
    """

    address = ""

    def __init__(self, network, rank, unheard=()):
        self._network, self._rank, self._unheard = network, rank, unheard
        self._place = 0, 0

    def form(self, formation, own):
        self._place = formation.generation, 0

    def leave(self):
        pass

    def interrupt(self):
        pass

    def is_loss(self, error):
        return isinstance(error, LostError)

    def sum(self, value):
        place = self._place
        self._place = place[0], place[1] + 1
        total = self._network.sum(place, self._rank, value)
        if place in self._unheard:
            raise LostError
        return total


class Launcher:
    """Forms groups of both ranks, as often as both are ready.

    Args:
        joins: whether rank 1 joins in the second group.
    """

    def __init__(self, joins=False):
        self.barrier = threading.Barrier(2)
        self.joins = joins


class Link:
    """A rank's connection to the launcher."""

    takes_in = False

    def __init__(self, launcher, generation=0):
        self._launcher, self._generation = launcher, generation

    def listen(self, act):
        pass

    def say(self, kind, **details):
        if kind == "joined":
            self._launcher.joins = False

    def formation(self, save=None):
        self._launcher.barrier.wait(SECONDS)
        self._generation += 1
        joining = [1] if self._launcher.joins else []
        self._launcher.barrier.wait(SECONDS)
        return Formation(self._generation, [0, 1], ["", ""], joining=joining)

    def waits_for(self, kind, generation):
        return True


class Followed:
    """A rank that has come to where the other one waits."""

    count = 1

    def next(self, operation):
        return None


def together(act, launcher):
    """What `act` returns in each of two ranks."""
    found = {}

    def run(rank):
        try:
            found[rank] = act(rank)
        except BaseException:
            launcher.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
    return [found.get(0), found.get(1)]


def step_of(group, connection, variable, value):
    def train(batch):
        total = connection.sum(tf.constant([value]))
        variable.assign_add(total)
        return total.numpy().tolist()

    options = {"makes_variables": False, "read": list, "takes_in": True}
    return Step(train, lambda batch: None, None, group.made, "train step", **options)


@pytest.mark.parametrize("failing", range(MOST_SUMS))
@pytest.mark.parametrize("kind", ["sum", "step"])
def test_one_that_is_behind(kind, failing):
    launcher = Launcher()
    network = Network({(2, failing)})

    def act(rank):
        # Rank 1 does not learn what the first operation has come to. Rank 0 begins the next one.
        connection = Connection(network, rank, [(1, 0)] if rank else ())
        group = Group(Link(launcher), rank, connection)
        changes, settled = [], []
        group.on_change(lambda: changes.append(group.generation))
        group.on_settled(lambda: settled.append(group.generation))
        variable = tf.Variable([0.0])
        group.made.note(variable)
        group._form()
        network._failing.add((1, 1))
        results = []
        for value in (1.0, 10.0, 100.0):
            if kind == "sum":
                add = Sum(lambda value=value: connection.sum(tf.constant([value])).numpy().tolist())
                results.append(group.execute(add))
            else:
                results.append(group.execute(step_of(group, connection, variable, value)))
        assert len(set(changes)) == len(changes), "one change of the group is told once"
        return results, variable.numpy().tolist(), group.steps

    steps = kind == "step"
    expected = [[2.0], [20.0], [200.0]], [222.0 if steps else 0.0], 3 if steps else 0
    assert together(act, launcher) == [expected] * 2


@pytest.mark.parametrize("failing", range(2 * MOST_SUMS))
def test_one_that_joins(failing):
    launcher = Launcher(joins=True)
    network = Network({(2, failing)})

    def act(rank):
        connection = Connection(network, rank)
        group = Group(Link(launcher, generation=1), rank, connection)
        variable = tf.Variable([100.0 if rank == 0 else 1.0])
        group.made.note(variable)
        group._completed = 1
        step = step_of(group, connection, variable, 1.0)
        if rank == 0:
            step.begin()
            group._recover(step)
        else:
            group._following = Followed()
        return group.execute(step), variable.numpy().tolist()

    assert together(act, launcher) == [([2.0], [102.0])] * 2
