"""Shares that move after every step, as if the replicas' speeds changed all the time."""

import contextlib
import itertools
from unittest import mock

import numpy as np

from tfdist.balance import parts
from tfdist.balance.balancer import Balancer
from tfdist.strategies import balanced

# For the first replicas; what is left is divided equally. One has nothing but what it must have.
_SHARES = (0.7, 0.1, 0.0, 0.45)


def _cycle(balancer):
    """The shares in turn, each with the sum 1."""
    replicas = len(balancer.shares)
    if replicas == 1:
        yield from itertools.repeat(balancer.shares)
    for share in itertools.cycle(_SHARES):
        others = max(replicas - 1, 1)
        yield np.array([share, *[(1 - share) / others] * (replicas - 1)])


@contextlib.contextmanager
def moving(balance):
    """Strategies that are made in this context move their shares, if `balance` is True."""
    turns, cuts = {}, []
    make, begin_anew = Balancer.__init__, Balancer.begin_anew

    def made(balancer, *args):
        make(balancer, *args)
        turns[balancer] = _cycle(balancer)
        balancer.move(next(turns[balancer]))

    def begun_anew(balancer, replicas):
        begin_anew(balancer, replicas)  # in an elastic job
        turns[balancer] = _cycle(balancer)

    def adjust(balancer):
        if balancer.speeds_of_last_steps().any():  # none since the group has changed
            balancer.move(next(turns[balancer]))

    def part_of(*args, **kwargs):
        cuts.append(args)
        return parts.part_of(*args, **kwargs)

    if not balance:
        yield
        return
    with (
        mock.patch.object(Balancer, "__init__", made),
        mock.patch.object(Balancer, "begin_anew", begun_anew),
        mock.patch.object(Balancer, "adjust", adjust),
        mock.patch.object(balanced, "part_of", part_of),
    ):
        yield
    assert cuts, "no step has cut a batch"
