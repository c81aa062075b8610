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
    for share in itertools.cycle(_SHARES):
        yield np.array([share, *[(1 - share) / (replicas - 1)] * (replicas - 1)])


@contextlib.contextmanager
def moving(balance):
    """Strategies that are made in this context move their shares, if `balance` is True."""
    turns, cuts = {}, []
    make = Balancer.__init__

    def made(balancer, *args):
        make(balancer, *args)
        turns[balancer] = _cycle(balancer)
        balancer.adjust()

    def adjust(balancer):
        balancer.move(next(turns[balancer]))

    def part_of(*args):
        cuts.append(args)
        return parts.part_of(*args)

    if not balance:
        yield
        return
    with (
        mock.patch.object(Balancer, "__init__", made),
        mock.patch.object(Balancer, "adjust", adjust),
        mock.patch.object(balanced, "part_of", part_of),
    ):
        yield
    assert cuts, "no step has cut a batch"
