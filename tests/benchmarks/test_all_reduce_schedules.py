"""The schedules of all-reduces are right, and cost what the literature says."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from benchmarks.all_reduce import model, plan
from benchmarks.all_reduce.algorithms import ALGORITHMS
from benchmarks.all_reduce.schedule import Schedule, part_lengths

RANKS = range(2, 10)
LINK = model.Link(alpha=1e-3, beta=1e-8)
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


def share(ranks: int) -> float:
    """What a ring sends, in vectors."""
    return 2 * (ranks - 1) / ranks


@everywhere
def test_bytes_and_messages_of_the_busiest_rank(ranks):
    levels = math.ceil(math.log2(ranks))
    expected = {
        "all_to_all": (ranks - 1, ranks - 1),
        "master_worker": (ranks - 1, ranks - 1),
        "tree": (max(levels, 1), max(levels, 1)),
        "round_robin": (share(ranks), 2 * (ranks - 1)),
        "direct": (share(ranks), 2 * (ranks - 1)),
        "ring": (share(ranks), 2 * (ranks - 1)),
    }
    if ranks == 2**levels:
        expected["butterfly"] = (levels, levels)
        expected["halving"] = (share(ranks), 2 * levels)
    for name, (vectors, messages) in expected.items():
        schedule = ALGORITHMS[name](ranks)
        assert schedule.sent() == pytest.approx(vectors), name
        assert schedule.messages() == messages, name


@everywhere
def test_seconds_are_those_of_the_literature(ranks):
    levels = math.ceil(math.log2(ranks))
    alpha = LINK.alpha
    expected = {
        "all_to_all": alpha + (ranks - 1) * ON_WIRE,
        "master_worker": 2 * (alpha + (ranks - 1) * ON_WIRE),
        "tree": 2 * levels * (alpha + ON_WIRE),
        "round_robin": 2 * (ranks - 1) * alpha + share(ranks) * ON_WIRE,
        "direct": 2 * alpha + share(ranks) * ON_WIRE,
        "ring": 2 * (ranks - 1) * alpha + share(ranks) * ON_WIRE,
    }
    if ranks == 2**levels:
        expected["butterfly"] = levels * (alpha + ON_WIRE)
        expected["halving"] = 2 * levels * alpha + share(ranks) * ON_WIRE
    for name, seconds in expected.items():
        assert model.seconds(ALGORITHMS[name](ranks), SIZE, LINK) == pytest.approx(seconds), name


@pytest.mark.parametrize(("ranks", "core"), [(3, 2), (5, 4), (6, 4), (7, 4), (9, 8)])
def test_ranks_beyond_a_power_of_two_cost_two_more_rounds(ranks, core):
    for name in ("butterfly", "halving"):
        of_core = model.seconds(ALGORITHMS[name](core), SIZE, LINK)
        seconds = model.seconds(ALGORITHMS[name](ranks), SIZE, LINK)
        assert seconds == pytest.approx(of_core + 2 * (LINK.alpha + ON_WIRE))


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
    rounds, most_seconds = 20, 1.0


def test_what_the_model_calls_too_slow_does_not_run_but_peers_do():
    # 100 MB on 100 Mbit/s: 8 s of bytes for each vector.
    names, rounds = plan.runs(Arguments(), 8, 100_000_000, model.Link(1e-3, 8e-8))
    assert names == [plan.RING, plan.ONE_MESSAGE]
    assert rounds == plan.LEAST_ROUNDS
    names, rounds = plan.runs(Arguments(), 8, 1_000, model.Link(1e-3, 8e-8))
    assert names == [plan.RING, plan.ONE_MESSAGE, *Arguments.algorithms]
    assert rounds == 20


def test_vectors_that_would_fill_the_memory_do_not_run():
    fast = model.Link(0.0, 1e-15)
    names, _ = plan.runs(Arguments(), 8, 10**13, fast)
    assert names == [plan.RING, plan.ONE_MESSAGE]


def test_expected_sums_are_exact_in_float32():
    values = np.arange(256, dtype=np.float32) * 36
    assert np.array_equal(values, np.arange(256) * 36)
