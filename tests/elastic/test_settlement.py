"""Ranks bring each other to the same place, whichever of the sums that this takes fails."""

import collections
import threading

import numpy as np
import pytest
import tensorflow as tf

from tfdist.elastic.formation import Formation
from tfdist.elastic.functions import TrainFunction
from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step, Sum

SECONDS = 20
MOST_SUMS = 12  # that a settlement takes here


class LostError(Exception):
    """A sum has failed."""


class Network:
    """Adds up the values of ranks, by the number of the group and of the sum in it.

    Args:
        failing: the sums that fail, in all ranks.
    """

    def __init__(self, failing):
        self._failing = failing
        self._changed = threading.Condition()
        self._values = collections.defaultdict(dict)

    def sum(self, place, size, rank, value):
        with self._changed:
            self._values[place][rank] = np.asarray(value)
            self._changed.notify_all()
            if place in self._failing:
                raise LostError
            arrived = self._changed.wait_for(lambda: len(self._values[place]) == size, SECONDS)
            assert arrived, f"rank {rank} waits in sum {place} for the others"
            values = [value for _, value in sorted(self._values[place].items())]
            same = {value.shape for value in values}
            assert len(same) == 1, f"the ranks do different things in {place}"
            return tf.constant(sum(values[1:], values[0]))


class Connection:
    """A rank's connection to the others.

    Args:
        network: adds up.
        rank: the rank.
        unheard: the sums of which this rank does not learn the result.
    """

    address = ""

    def __init__(self, network, rank, unheard=()):
        self._network, self._rank, self._unheard = network, rank, unheard
        self._place, self._size = (0, 0), 1

    def form(self, formation, own):
        self._place, self._size = (formation.generation, 0), len(formation.members)

    def leave(self):
        pass

    def interrupt(self):
        pass

    def is_loss(self, error):
        return isinstance(error, LostError)

    def sum(self, value):
        place = self._place
        self._place = place[0], place[1] + 1
        total = self._network.sum(place, self._size, self._rank, value)
        if place in self._unheard:
            raise LostError
        return total


class Launcher:
    """Forms a group of all ranks that are there, as often as they are ready.

    Args:
        count: the number of ranks.
        generation: the number of the group before the first one.
        joins: whether rank 1 joins in the next group.
        leaver: the rank that leaves from the second group on; None for none.
    """

    def __init__(self, count=2, generation=0, joins=False, leaver=None):
        self.count = count
        self.joins = joins
        self._generation = generation
        self._leaver = leaver
        self._there, self._ready = set(range(count)), set()
        self._formation = None
        self._is_broken = False
        self._changed = threading.Condition()

    def formation(self, rank):
        with self._changed:
            before = self._formation
            self._ready.add(rank)
            self._form()
            self._changed.wait_for(
                lambda: self._is_broken or self._formation is not before, SECONDS
            )
            assert self._formation is not before, f"rank {rank} waits for a group"
            return self._formation

    def leave(self, rank):
        with self._changed:
            self._there.remove(rank)
            self._form()

    def abort(self):
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()

    def _form(self):
        if self._ready != self._there:
            return
        members, self._ready = sorted(self._there), set()
        self._generation += 1
        leaving = [self._leaver] if self._generation > 1 and self._leaver in members else []
        joining = [1] if self.joins else []
        addresses = [""] * len(members)
        self._formation = Formation(self._generation, members, addresses, leaving, joining)
        self._changed.notify_all()


class Link:
    """A rank's connection to the launcher."""

    takes_in = has_left = False

    def __init__(self, launcher, rank):
        self._launcher, self._rank = launcher, rank

    def listen(self, act):
        pass

    def say(self, kind, **details):
        if kind == "joined":
            self._launcher.joins = False
        elif kind == "left":
            self.has_left = True
            self._launcher.leave(self._rank)

    def formation(self, save=None):
        return self._launcher.formation(self._rank)

    def waits_for(self, kind, generation):
        return True


class Followed:
    """A rank that has come to where the other one waits."""

    count = 1

    def next(self, operation):
        return None


def together(act, launcher):
    """What `act` returns in each rank."""
    found = {}

    def run(rank):
        try:
            found[rank] = act(rank)
        except BaseException:
            launcher.abort()
            raise

    ranks = range(launcher.count)
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
    return [found.get(rank) for rank in ranks]


def step_of(group, connection, variable, value):
    def train(batch):
        total = connection.sum(tf.constant([value]))
        variable.assign_add(total)
        return total.numpy().tolist()

    options = {"makes_variables": False, "read": list, "takes_in": True}
    return Step(train, lambda batch: None, None, group.made, "train step", **options)


@pytest.mark.parametrize("failing", range(MOST_SUMS))
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "step"])
def test_one_that_is_behind(kind, behind, failing):
    launcher = Launcher()
    network = Network({(2, failing)})

    def act(rank):
        # One does not learn what the first operation has come to. The other begins the next one.
        connection = Connection(network, rank, [(1, 0)] if rank == behind else ())
        group = Group(Link(launcher, rank), rank, connection)
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
    launcher = Launcher(generation=1, joins=True)
    network = Network({(2, failing)})

    def act(rank):
        connection = Connection(network, rank)
        group = Group(Link(launcher, rank), rank, connection)
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


# --- gradients that wait ------------------------------------------------------------------------

ACCUMULATED = 3
BATCHES = [10.0**number for number in range(8)]  # two updates, and two that wait for the third


class Model:
    """Accumulates the numbers of batches, of which each rank has an equal part."""

    run_eagerly = False

    def __init__(self, group, connection):
        self._group, self._connection = group, connection
        variables = [tf.Variable(0.0, dtype="float64") for _ in range(3)]
        for variable in variables:
            group.made.note(variable)
        self.weight, self.waiting, self._count = variables

    def own(self):
        return [self.waiting]

    def is_waiting(self):
        return self._count.numpy() % ACCUMULATED > 0

    def step(self, batch):
        part = batch / self._group.size
        logs = self._connection.sum(part)
        self.waiting.assign_add(part)
        self._count.assign_add(1.0)
        if not self.is_waiting():
            self.weight.assign_add(self._connection.sum(self.waiting.value()))
            self.waiting.assign(0.0)
        return logs


class Function(TrainFunction):
    """Numbers its functions when they are traced, as engines number what functions exchange.

    Attributes:
        used: the generation and the number of the function of each step.
    """

    def __init__(self, *given):
        super().__init__(*given)
        self.used = []
        self._made = collections.Counter()

    def _new_function(self):
        traced = []

        def run(batch):
            generation = self._group.generation
            if not traced:
                traced.append((generation, self._made[generation]))
                self._made[generation] += 1
            self.used += traced
            return self._step(batch)

        return run


def accumulated(step, behind, leaver, failing=None):
    """What three ranks come to, and "left" of the one that leaves.

    Args:
        step: the first one that some ranks complete and others do not.
        behind: the ranks that do not.
        leaver: the rank that leaves then.
        failing: a sum that fails.
    """
    launcher = Launcher(3, leaver=leaver)
    last = step + (step + 1) // ACCUMULATED  # its last sum: an update takes one more
    network = Network({(1, last + 1), failing})
    functions = {}

    def act(rank):
        connection = Connection(network, rank, [(1, last)] if rank in behind else ())
        group = Group(Link(launcher, rank), rank, connection)
        model = Model(group, connection)
        function = Function(group, model, model.step, model, list)
        functions[rank] = function
        group._form()
        try:
            for number, batch in enumerate(BATCHES):
                function.of_batch(tf.constant(batch, tf.float64))
                if number == step:  # as where a callback measures no longer
                    function.forget_trace()
        except SystemExit:
            with pytest.raises(SystemExit):  # in a `finally`, or where a save has failed
                group.execute(Sum(lambda: connection.sum(tf.ones([1]))))
            return "left"
        return model.weight.numpy(), model.waiting.numpy()

    found = together(act, launcher)
    left = [function.used for rank, function in functions.items() if rank != leaver]
    newest = max(generation for generation, _ in left[0])
    first, second = ([one for one in used if one[0] == newest] for used in left)
    assert first == second  # else they would wait for each other for ever
    return found


def check_accumulated(found, leaver):
    assert found.pop(leaver) == "left"
    weights, waiting = zip(*found)
    assert weights == pytest.approx([sum(BATCHES[:6])] * 2)
    assert sum(waiting) == pytest.approx(sum(BATCHES[6:]))


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("behind", [(0,), (1,), (0, 1), (1, 2)])
@pytest.mark.parametrize("step", [0, 1, 2, 3])  # the third one makes an update
def test_gradients_that_wait_when_a_rank_leaves(step, behind, leaver):
    check_accumulated(accumulated(step, behind, leaver), leaver)


@pytest.mark.parametrize("failing", range(2 * MOST_SUMS))
@pytest.mark.parametrize("group", [2, 3])
def test_gradients_that_wait_when_a_rank_leaves_and_a_sum_fails(group, failing):
    check_accumulated(accumulated(1, (0, 1), 2, (group, failing)), 2)
