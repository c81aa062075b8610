"""Which measurements are called problems."""

import dataclasses
import itertools
import json

import pytest

from tfdist.checkup import judging, page
from tfdist.checkup.machine import facts_of, hosts_of
from tfdist.checkup.report import Drill, Equality, Link, Report, Sum
from tfdist.engines.clocks import Clock

VERSIONS = {"tfdist": "0.1.0", "NumPy": "2.4.6", "Horovod": None}
FAST, SLOW = (1e-4, 1e-4, 1e9), (1e-4, 1e-4, 1e8)


def report(*places, speeds=None, slow=()):
    """A report of ranks at `places`, of which the pairs in `slow` are slow."""
    own = facts_of("rank", dict(VERSIONS), [], "CPU:0")
    facts = [
        dataclasses.replace(
            own, name=f"rank {rank}", host=place, place=place, versions=dict(VERSIONS)
        )
        for rank, place in enumerate(places)
    ]
    hosts = hosts_of(places)
    links = [
        Link(pair, hosts[pair[0]] != hosts[pair[1]], *(SLOW if pair in slow else FAST))
        for pair in itertools.combinations(range(len(places)), 2)
    ]
    return Report(
        "multi_worker",
        facts,
        hosts,
        clocks=[Clock(0.0, 0.0) for _ in places],
        compute_seconds=speeds or [0.01 for _ in places],
        links=links,
        sums=[Sum(1000, 0.001, 0.002)],
        equalities=[Equality("Adam", 1e-7, 0, 1e-6)],
    )


def test_a_good_cluster_has_no_problems():
    good = report("a", "a", "b", "b")
    assert judging.problems(good) == []
    assert "Problems (after 0 s)\n  none" in page.as_text(good)


def test_another_version_in_one_rank_is_named():
    found = report("a", "b", "c")
    found.ranks[2].versions["NumPy"] = "2.4.5"
    found.ranks[1].versions["Horovod"] = "0.28.1"
    assert judging.problems(found) == [
        "NumPy is 2.4.6 in ranks 0, 1, but 2.4.5 in rank 2: install the same version everywhere",
        "Horovod is missing in ranks 0, 2, but 0.28.1 in rank 1: install the same version "
        "everywhere",
    ]
    assert "2.4.6, 2.4.5   (not equal: see below)" in page.as_text(found)


def test_a_slow_link_between_hosts_is_named():
    (problem,) = judging.problems(report("a", "b", "c", "d", slow=[(1, 3)]))
    assert problem.startswith(
        "The link between host b and host d is slow (100.0 MB/s, 0.10 ms; others have 1,000 MB/s): "
        "look at the switches"
    )


@pytest.mark.parametrize("others", [2, 3, 6])
def test_a_host_with_slow_links_is_named_once(others):
    places = [f"host{number}" for number in range(others + 1)]
    slow = [(rank, others) for rank in range(others)]
    (problem,) = judging.problems(report(*places, slow=slow))
    assert problem.startswith(f"All links of host host{others} are slow (100.0 MB/s, 0.10 ms;")


def test_hosts_with_several_ranks_are_judged_by_their_best_ranks():
    places = ["a", "a", "b", "b", "c", "c"]
    between = [(a, b) for a in (0, 1) for b in (2, 3)]
    for fast in between:
        some = [pair for pair in between if pair != fast]
        assert judging.problems(report(*places, slow=some)) == []
    (problem,) = judging.problems(report(*places, slow=between))
    assert problem.startswith("The link between host a and host b is slow")


def test_ranks_of_one_host_are_compared_with_each_other_only():
    assert judging.problems(report("a", "a", "a", "b", slow=[(0, 3), (1, 3), (2, 3)])) == []
    (problem,) = judging.problems(report("a", "a", "a", "b", slow=[(0, 1)]))
    assert problem.startswith("The link between rank 0 on a and rank 1 on a is slow")


def test_an_all_reduce_that_the_links_do_not_explain_is_named():
    found = report("a", "b", "c")
    found.sums.append(Sum(10_000_000, 0.31, 0.1))
    (problem,) = judging.problems(found)
    said = "An all-reduce of 10 MB takes 3.1x as long as a ring on the slowest link (310 ms instead"
    assert problem.startswith(f"{said} of 100 ms): ")
    found.sums.append(Sum(100_000_000, 1.9, 1.0))  # the larger one is less disturbed
    assert judging.problems(found) == []
    found.sums = [Sum(1000, 9.0, 0.1), Sum(1_000_000, 9.0, 0.1)]
    assert judging.problems(found) == []
    found.sums = []
    assert judging.problems(found) == []


def test_where_ranks_share_cores_a_slow_all_reduce_is_a_note():
    found = report("a", "a", "a", "b")
    found.sums.append(Sum(100_000_000, 4.0, 1.0))
    found.ranks = [dataclasses.replace(fact, cores=2) for fact in found.ranks]
    assert judging.problems(found) == []
    cores, line = judging.notes(found, "")
    assert cores.startswith("3 ranks share 2 core(s) on a: ")
    assert line.startswith("An all-reduce of 100 MB takes 4.0x as long as a ring")


def test_a_late_link_is_slow_if_it_is_much_later():
    found = report("a", "b", "c", "d")
    found.links[0] = dataclasses.replace(found.links[0], latency_seconds=9e-4)
    assert judging.problems(found) == []
    found.links[0] = dataclasses.replace(found.links[0], latency_seconds=2e-3)
    (problem,) = judging.problems(found)
    assert "The link between host a and host b is slow (1,000.0 MB/s, 2.00 ms" in problem


def test_a_late_link_on_a_busy_machine_is_not_slow():
    found = report("a", "b", "c", "d")
    busy = [dataclasses.replace(link, usual_latency_seconds=2e-2) for link in found.links]
    busy[0] = dataclasses.replace(busy[0], latency_seconds=1e-2)
    found.links = busy
    assert judging.problems(found) == []


def test_where_all_links_of_all_hosts_are_slow_not_all_hosts_are_blamed():
    found = report("a", "b", "c", slow=[(0, 2), (1, 2)])
    late = {"latency_seconds": 1.0, "usual_latency_seconds": 1.0}
    found.links[0] = dataclasses.replace(found.links[0], **late)
    host, link = judging.problems(found)
    assert host.startswith("All links of host ") and link.startswith("The link between host ")


def test_two_ranks_are_not_called_slow_but_a_slow_rank_of_two_is():
    assert judging.problems(report("a", "b", slow=[(0, 1)])) == []
    (problem,) = judging.problems(report("a", "b", speeds=[0.01, 0.03]))
    assert problem.startswith("rank 1 on b computes 3.0x as long as the others")


def test_hosts_of_one_name_have_numbers():
    found = report("a", "b")
    found.ranks = [dataclasses.replace(fact, host="node") for fact in found.ranks]
    assert [judging.host_name(found, rank) for rank in (0, 1)] == [
        "node (host 0)",
        "node (host 1)",
    ]


def test_a_clock_counts_as_wrong_only_beyond_its_error():
    found = report("a", "b", "c")
    found.clocks = [Clock(0.0, 0.0), Clock(1.5, 0.7), None]
    assert judging.problems(found) == []
    found.clocks[1] = Clock(-1.8, 0.7)
    (problem,) = judging.problems(found)
    assert problem.startswith("The clock of rank 1 on b is -1.8 s from that of rank 0")


def test_a_rank_without_a_gpu_is_named():
    found = report("a", "b")
    found.ranks[0] = dataclasses.replace(found.ranks[0], gpus=["GPU:0"])
    (problem,) = judging.problems(found)
    assert problem.startswith("rank 1 see(s) no GPU, while others do")


def test_too_little_memory_is_named():
    found = report("a", "b")
    found.ranks[1] = dataclasses.replace(found.ranks[1], memory_bytes=10**10, available_bytes=10**8)
    assert judging.problems(found) == [
        "Only 100 MB of memory are free on b: end what else runs there"
    ]


def test_weights_that_differ_are_named_with_their_rank():
    found = report("a", "b")
    found.equalities.append(Equality("clipping", 2e-6, 1, 1e-6))
    (problem,) = judging.problems(found)
    assert "Training with clipping differs from one device by 2.0e-06 in rank 1 on b" in problem
    assert "NOT EQUAL" in page.as_text(found)


def test_a_drill_that_failed_is_named():
    found = report("a", "b")
    found.drill = Drill(3.0, 1e-8, 1e-6)
    assert judging.problems(found) == []
    found.drill = Drill(3.0, 1e-3, 1e-6)
    assert "the weights differ from one device by 1.0e-03" in judging.problems(found)[0]
    found.drill = Drill(3.0, None, 1e-6, "it ended with status 75")
    assert "a rank was killed (it ended with status 75)" in judging.problems(found)[0]


def test_the_link_of_the_json_is_the_slowest_between_hosts():
    found = report("a", "a", "b", slow=[(0, 1)])
    found.links[-1] = Link((1, 2), True, 0.002, 0.003, 5e8)
    written = json.loads(json.dumps(found.as_json()))
    assert written["ranks"] == 3
    assert written["ranks_per_host"] == 2
    assert written["link"] == {"latency_seconds": 0.002, "bandwidth_bytes_per_second": 5e8}
    alone = report("a", "a", "a", slow=[(0, 1)]).as_json()
    assert alone["link"]["bandwidth_bytes_per_second"] == SLOW[-1]


def test_notes_say_what_was_not_measured():
    found = report("a", "a", "a")
    found.ranks = [dataclasses.replace(fact, cores=2) for fact in found.ranks]
    found.links.pop()
    assert [line.partition(" so ")[0][:40] for line in judging.notes(found, "they take long")] == [
        "they take long,",
        "3 ranks share 2 core(s) on a: what is me",
        "2 of 3 pairs of ranks were measured, as ",
    ]
