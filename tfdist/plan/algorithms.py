"""The algorithms, each for any number of ranks from 2 on.

Sources: the ring is by Patarasuk and Yuan ("Bandwidth optimal all-reduce algorithms for clusters of
workstations", Journal of Parallel and Distributed Computing 69(2), 2009); the tree, the butterfly
and halving are in Thakur, Rabenseifner and Gropp ("Optimization of collective communication
operations in MPICH", International Journal of High Performance Computing Applications 19(1), 2005);
round robin is in Zhao and Canny ("Sparse Allreduce: Efficient Scalable Communication for Power-Law
Data", arXiv 1312.3020, 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tfdist.plan.alpha_beta import Cost
from tfdist.plan.schedule import Schedule, Transfer, schedule

Rounds = list[list[Transfer]]


def all_to_all(ranks: int) -> Schedule:
    """Each rank sends its vector to all others, and adds up what it gets."""
    pairs = ((source, target) for source in range(ranks) for target in range(ranks))
    return schedule(ranks, 1, [[_whole(*pair, True) for pair in pairs if pair[0] != pair[1]]])


def master_worker(ranks: int) -> Schedule:
    """Rank 0 adds up all vectors, and sends the sum to all others."""
    others = range(1, ranks)
    to_master = [_whole(other, 0, True) for other in others]
    return schedule(ranks, 1, [to_master, [_whole(0, other, False) for other in others]])


def tree(ranks: int) -> Schedule:
    """Sums move up a binomial tree to rank 0, and the whole sum moves down again."""
    up: Rounds = []
    distance = 1
    while distance < ranks:
        sources = range(distance, ranks, 2 * distance)
        up.append([_whole(source, source - distance, True) for source in sources])
        distance *= 2
    return schedule(ranks, 1, [*up, *([_back(t) for t in round_] for round_ in reversed(up))])


def direct(ranks: int) -> Schedule:
    """Each rank adds up one part, which all others send to it at once, and sends it to all."""
    return schedule(ranks, ranks, map(_merged, _scattered_and_gathered(ranks)))


def round_robin(ranks: int) -> Schedule:
    """As `direct`, but in each round a rank sends to one rank, and receives from one."""
    scattering, gathering = _scattered_and_gathered(ranks)
    return schedule(ranks, ranks, [*scattering, *gathering])


def ring(ranks: int) -> Schedule:
    """Each rank only sends to the next one: sums of parts go around, and then the whole sums."""
    rounds = []
    for number in range(2 * (ranks - 1)):
        rounds.append(
            [
                _part(rank, (rank + 1) % ranks, (rank - number) % ranks, number < ranks - 1)
                for rank in range(ranks)
            ]
        )
    return schedule(ranks, ranks, rounds)


def butterfly(ranks: int) -> Schedule:
    """Pairs exchange their vectors, of ranks 1, 2, 4, ... apart: recursive doubling."""
    core = _core(ranks)
    rounds = [
        [_whole(rank, rank ^ distance, True) for rank in range(core)]
        for distance in _distances(core)
    ]
    return schedule(ranks, 1, _with_the_rest(ranks, core, 1, rounds))


def halving(ranks: int) -> Schedule:
    """Pairs exchange halves, quarters, ... of sums, then put the whole sums together again.

    Recursive halving and doubling, which is Rabenseifner's algorithm.
    """
    core = _core(ranks)
    rounds: Rounds = []
    for distance in reversed(_distances(core)):
        # A rank keeps the part of its own number, so it sends the half in which its partner's is.
        firsts = [(rank, (rank ^ distance) // distance * distance) for rank in range(core)]
        rounds.append(
            [
                Transfer(rank, rank ^ distance, first, first + distance, True)
                for rank, first in firsts
            ]
        )
    rounds += [[_back(transfer) for transfer in round_] for round_ in reversed(rounds)]
    return schedule(ranks, core, _with_the_rest(ranks, core, core, rounds))


ALGORITHMS: dict[str, Callable[[int], Schedule]] = {
    made.__name__: made
    for made in (
        all_to_all,
        master_worker,
        tree,
        round_robin,
        direct,
        butterfly,
        halving,
        ring,
    )
}


def cost(name: str, ranks: int) -> Cost:
    """What `ALGORITHMS[name](ranks).cost()` gives, for many ranks too, without the messages.

    Args:
        name: a key of `ALGORITHMS`.
        ranks: the number of ranks, at least 1; one rank sends nothing.

    Example:

    >>> from tfdist.plan.algorithms import cost
    >>> cost("ring", 10_000).rounds
    19998
    """
    if ranks == 1:
        return Cost(0, 0.0, 0.0)
    others, levels = ranks - 1, (ranks - 1).bit_length()
    core = _core(ranks)
    rest, doublings = int(ranks > core), core.bit_length() - 1
    share, core_share = 2 * others / ranks, 2 * (core - 1) / core
    return {
        "all_to_all": Cost(1, others, others),
        "master_worker": Cost(2, 2 * others, others),
        "tree": Cost(2 * levels, 2 * levels, levels),
        "round_robin": Cost(2 * others, share, share),
        "direct": Cost(2, share, share),
        "butterfly": Cost(doublings + 2 * rest, doublings + 2 * rest, doublings + rest),
        "halving": Cost(2 * (doublings + rest), core_share + 2 * rest, core_share + rest),
        "ring": Cost(2 * others, share, share),
    }[name]


def _scattered_and_gathered(ranks: int) -> tuple[Rounds, Rounds]:
    """Rounds in which each rank gets its part from one other, and in which it gives out the sum."""
    scattering, gathering = [], []
    for distance in range(1, ranks):
        pairs = [(rank, (rank + distance) % ranks) for rank in range(ranks)]
        scattering.append([_part(source, target, target, True) for source, target in pairs])
        gathering.append([_part(source, target, source, False) for source, target in pairs])
    return scattering, gathering


def _with_the_rest(ranks: int, core: int, parts: int, rounds: Rounds) -> Rounds:
    """Lets ranks beyond a power of two send to one of the others first, and get the sum at last."""
    before = [Transfer(rank, rank - core, 0, parts, True) for rank in range(core, ranks)]
    return [before, *rounds, [_back(transfer) for transfer in before]] if before else rounds


def _core(ranks: int) -> int:
    """The largest power of two up to `ranks`."""
    return 1 << (ranks.bit_length() - 1)


def _distances(core: int) -> list[int]:
    """1, 2, 4, ... below `core`."""
    return [1 << bit for bit in range(core.bit_length() - 1)]


def _whole(source: int, target: int, adds: bool) -> Transfer:
    """A message with the whole vector, where it is not cut."""
    return _part(source, target, 0, adds)


def _part(source: int, target: int, part: int, adds: bool) -> Transfer:
    return Transfer(source, target, part, part + 1, adds)


def _back(transfer: Transfer) -> Transfer:
    """The message with which the sum of the same parts goes back."""
    return Transfer(transfer.target, transfer.source, transfer.start, transfer.stop, False)


def _merged(rounds: Iterable[list[Transfer]]) -> list[Transfer]:
    """One round with the messages of all of these."""
    return [transfer for round_ in rounds for transfer in round_]
