"""The schedules of all-reduces are right, and cost what the literature says."""

from __future__ import annotations

import collections
import dataclasses
import math

import pytest

from benchmarks.all_reduce import model, plan
from tfdist.plan.algorithms import ALGORITHMS, cost
from tfdist.plan.alpha_beta import Link, seconds
from tfdist.plan.schedule import Schedule, part_lengths

RANKS = range(2, 10)
LINK = Link(alpha=1e-3, beta=1e-8)
SIZE = 5e6
ON_WIRE = SIZE * LINK.beta

everywhere = pytest.mark.parametrize("ranks", RANKS)
every = pytest.mark.parametrize("algorithm", ALGORITHMS)


def carried_out(schedule: Schedule) -> list[list[collections.Counter]]:
    """Of which ranks' vectors each part of each rank is the sum in the end."""
    state = [
        [collections.Counter({rank: 1}) for _ in range(schedule.parts)]
        for rank in range(schedule.ranks)
    ]
    for transfers in schedule.rounds:
        before = [[part.copy() for part in parts] for parts in state]
        replaced = set()
        for transfer in transfers:
            assert transfer.source != transfer.target
            for part in range(transfer.start, transfer.stop):
                sent = before[transfer.source][part]
                if transfer.adds:
                    state[transfer.target][part] += sent
                else:
                    assert (transfer.target, part) not in replaced, "replaced twice in a round"
                    replaced.add((transfer.target, part))
                    state[transfer.target][part] = sent.copy()
    return state


@everywhere
@every
def test_every_rank_has_the_sum_of_each_vector_once(algorithm, ranks):
    whole = dict.fromkeys(range(ranks), 1)
    for parts in carried_out(ALGORITHMS[algorithm](ranks)):
        assert all(part == whole for part in parts)


@everywhere
@every
def test_a_part_is_replaced_or_added_to_but_not_both_in_a_round(algorithm, ranks):
    for transfers in ALGORITHMS[algorithm](ranks).rounds:
        kinds = collections.defaultdict(set)
        for transfer in transfers:
            for part in range(transfer.start, transfer.stop):
                kinds[transfer.target, part].add(transfer.adds)
        assert all(len(kind) == 1 for kind in kinds.values())


def core_and_rest(ranks: int) -> tuple[int, bool]:
    """The largest power of two up to `ranks`, and whether there are more ranks."""
    core = 2 ** math.floor(math.log2(ranks))
    return core, core < ranks


def share(ranks: int) -> float:
    """What a ring sends, in vectors."""
    return 2 * (ranks - 1) / ranks


@everywhere
def test_bytes_and_messages_of_the_busiest_rank(ranks):
    levels, core, rest = math.ceil(math.log2(ranks)), *core_and_rest(ranks)
    expected = {
        "all_to_all": (ranks - 1, ranks - 1),
        "master_worker": (ranks - 1, ranks - 1),
        "tree": (levels, levels),
        "round_robin": (share(ranks), 2 * (ranks - 1)),
        "direct": (share(ranks), 2 * (ranks - 1)),
        "ring": (share(ranks), 2 * (ranks - 1)),
        # The first of the core also gives the sum to one of the rest.
        "butterfly": (math.log2(core) + rest, math.log2(core) + rest),
        "halving": (share(core) + rest, 2 * math.log2(core) + rest),
    }
    assert expected.keys() == ALGORITHMS.keys()
    for name, (vectors, messages) in expected.items():
        schedule = ALGORITHMS[name](ranks)
        assert schedule.carried() == pytest.approx(vectors), name
        assert schedule.messages() == messages, name


@everywhere
def test_seconds_are_those_of_the_literature(ranks):
    levels, core, rest = math.ceil(math.log2(ranks)), *core_and_rest(ranks)
    alpha, around = LINK.alpha, 2 * rest * (LINK.alpha + ON_WIRE)
    expected = {
        "all_to_all": alpha + (ranks - 1) * ON_WIRE,
        "master_worker": 2 * (alpha + (ranks - 1) * ON_WIRE),
        "tree": 2 * levels * (alpha + ON_WIRE),
        "round_robin": 2 * (ranks - 1) * alpha + share(ranks) * ON_WIRE,
        "direct": 2 * alpha + share(ranks) * ON_WIRE,
        "ring": 2 * (ranks - 1) * alpha + share(ranks) * ON_WIRE,
        "butterfly": math.log2(core) * (alpha + ON_WIRE) + around,
        "halving": 2 * math.log2(core) * alpha + share(core) * ON_WIRE + around,
    }
    assert expected.keys() == ALGORITHMS.keys()
    for name, expected_seconds in expected.items():
        found = seconds(ALGORITHMS[name](ranks).cost(), SIZE, LINK)
        assert found == pytest.approx(expected_seconds), name


@everywhere
@every
def test_closed_forms_cost_what_the_messages_do(algorithm, ranks):
    found, counted = cost(algorithm, ranks), ALGORITHMS[algorithm](ranks).cost()
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(counted))


@everywhere
def test_what_follows_the_first_piece_takes_as_long_as_on_the_busiest_link(ranks):
    more = {
        "all_to_all": ranks - 1,
        "master_worker": ranks - 1,  # not twice: one direction carries what the other one did
        "tree": math.ceil(math.log2(ranks)),
        "ring": share(ranks),
    }
    for name, vectors in more.items():
        schedule = ALGORITHMS[name](ranks)
        pieces = seconds(schedule.cost(), SIZE, LINK, SIZE / 5)
        first = seconds(schedule.cost(), SIZE / 5, LINK)
        assert pieces == pytest.approx(first + 4 / 5 * vectors * ON_WIRE), name


@every
def test_a_vector_that_is_no_longer_than_a_piece_travels_whole(algorithm):
    schedule = ALGORITHMS[algorithm](5)
    assert seconds(schedule.cost(), SIZE, LINK, 2 * SIZE) == seconds(schedule.cost(), SIZE, LINK)


def test_a_link_is_found_in_its_own_times():
    times = {size: 2e-3 + 8e-9 * size for size in (model.EMPTY, *model.LONG)}
    link = model.fitted(times)
    assert (link.alpha, link.beta) == pytest.approx((2e-3, 8e-9))


def test_the_first_burst_of_a_limiter_does_not_change_the_rate():
    times = {size: 2e-3 + 8e-8 * max(0, size - 256_000) for size in (model.EMPTY, *model.LONG)}
    assert model.fitted(times).beta == pytest.approx(8e-8)


def test_times_that_do_not_grow_are_refused():
    times = dict.fromkeys((model.EMPTY, *model.LONG), 3e-3)
    with pytest.raises(RuntimeError, match="Received: 1000 bytes in 3 ms, 1000000 bytes in 3 ms"):
        model.fitted(times)


def test_parts_are_as_even_as_possible():
    assert part_lengths(11, 4) == [3, 3, 3, 2]
    assert part_lengths(2, 4) == [1, 1, 0, 0]
    assert sum(part_lengths(1001, 7)) == 1001


class Arguments:
    backend = plan.MULTI_WORKER
    algorithms = ["all_to_all", "direct"]
    rounds, most_seconds, size_seconds = 20, 1.0, 8.0


# 100 Mbit/s: a vector of 100 MB takes 8 s.
SLOW = Link(1e-3, 8e-8)


def test_what_the_model_calls_hopeless_does_not_run():
    peers = [plan.RING, plan.ONE_MESSAGE]
    assert plan.chosen(Arguments(), 8, 100_000_000, SLOW) == [*peers, "direct"]
    assert plan.chosen(Arguments(), 8, 1_000, SLOW) == [*peers, *Arguments.algorithms]


def test_what_takes_very_long_runs_between_some_numbers_of_ranks_and_once():
    chosen = {ranks: plan.chosen(Arguments(), ranks, 100_000_000, SLOW) for ranks in range(2, 9)}
    assert [ranks for ranks, names in chosen.items() if names] == [2, 4, 8]
    assert all(plan.chosen(Arguments(), ranks, 10_000_000, SLOW) for ranks in range(2, 9))
    assert plan.rounds(1.0, plan.SLOW_SECONDS + 1, Arguments()) == 1


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 20), (1.0, 8), (4.0, 3), (0.0, 20)])
def test_as_many_rounds_as_fit_but_not_too_few(seconds, expected):
    assert plan.rounds(seconds, 0.01, Arguments()) == expected


def test_what_is_long_and_far_behind_is_not_repeated_but_peers_are():
    times = {plan.RING: 1.0, plan.ONE_MESSAGE: 9.0, "tree": 1.6, "direct": 1.4}
    assert plan.repeated(times, 1.0, 0.5) == [plan.RING, plan.ONE_MESSAGE, "direct"]
    assert plan.repeated(times, 1.0, 2.0) == list(times)


def test_each_round_has_an_order_of_its_own():
    names = list(plan.SYSTEMS)
    orders = [plan.order(names, number) for number in range(20)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len({order[0] for order in orders}) > 5
    assert orders == [plan.order(names, number) for number in range(20)]


def test_vectors_that_would_fill_the_memory_do_not_run():
    fast = Link(0.0, 1e-15)
    names = plan.chosen(Arguments(), 8, 10**13, fast)
    assert names == [plan.RING, plan.ONE_MESSAGE]
