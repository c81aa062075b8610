"""The time of an update with parameter servers, against the same computed by hand."""

import dataclasses

import pytest

from tests.plan.test_candidates import SIZE, SMALL, TABLE, planner, with_a_table
from tfdist.plan import codecs, server_time
from tfdist.plan.alpha_beta import Link
from tfdist.plan.candidate import Candidate
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.server_time import Servers, Way
from tfdist.plan.workload import Message
from tfdist.step.tables import Tables

PARTS = (1.0, 2.0, 0.5)  # forward, backward, update
LINK = Link(0.0, 1e-6)
PUSHED, PULLED = Way(1e6), Way(3e6)


def asynchronous(servers, pushed=PUSHED, pulled=PULLED):
    return server_time.asynchronous(PARTS, pushed, pulled, servers)


def synchronous(servers, pushed=PUSHED, pulled=PULLED):
    return server_time.synchronous(PARTS, pushed, pulled, servers)


def test_a_worker_waits_for_both_ways():
    assert asynchronous(Servers(1, 1, LINK)) == pytest.approx(3.5 + 1 + 3)
    assert asynchronous(Servers(2, 1, LINK)) == pytest.approx(3 + 0.25 + 1 + 3)
    slow = Servers(1, 1, Link(0.25, 1e-6))
    assert asynchronous(slow) == pytest.approx(3.5 + 1 + 3 + 2 * 0.25)


def test_many_workers_wait_for_the_busier_way_of_a_link():
    assert asynchronous(Servers(1, 100, LINK)) == pytest.approx(100 * 3)
    assert asynchronous(Servers(4, 100, LINK)) == pytest.approx(25 * 3)
    assert asynchronous(Servers(100, 100, LINK, shared=8)) == pytest.approx(8 * 3)


def test_many_workers_wait_for_the_updates_of_a_server_and_for_the_chief():
    fast = Link(0.0, 1e-12)
    assert asynchronous(Servers(1, 100, fast)) == pytest.approx(100 * 0.5)
    assert asynchronous(Servers(10, 100, fast)) == pytest.approx(100 * 0.05)
    assert asynchronous(Servers(10, 100, fast, chief=0.2)) == pytest.approx(100 * 0.2)


def test_servers_decode_gradients_and_encode_weights_of_each_worker():
    pushed, pulled = Way(1e6, encoding=1.0, decoding=0.25), Way(3e6, encoding=0.5, decoding=2.0)
    alone = 3.5 + 4 + (1.0 + 2.0) + (0.25 + 0.5 + 2.0)
    assert asynchronous(Servers(1, 1, LINK), pushed, pulled) == pytest.approx(alone)
    many = asynchronous(Servers(2, 100, Link(0.0, 1e-12)), pushed, pulled)
    assert many == pytest.approx(100 * (0.5 + 2.75) / 2)
    together = synchronous(Servers(2, 4, Link(0.0, 1e-12)), pushed, pulled)
    assert together == pytest.approx(3 + 3.0 + (4 * 2.75 + 0.5) / 2)


def test_workers_that_update_together_share_the_links_of_the_servers():
    assert synchronous(Servers(1, 4, LINK)) == pytest.approx(3.5 + 4 * (1 + 3))
    assert synchronous(Servers(8, 4, LINK)) == pytest.approx(3 + 0.5 / 8 + 1 + 3)
    assert synchronous(Servers(8, 4, LINK, shared=2)) == pytest.approx(3 + 0.5 / 8 + 2 * (1 + 3))
    slow = Servers(1, 4, Link(0.25, 1e-15), chief=0.1)
    assert synchronous(slow) == pytest.approx(3.5 + 2 * 0.25 + 4 * 0.1)


def test_bytes_are_those_of_the_codecs_and_rows_travel_as_they_are():
    coded = Message(1000, 4000, 1.0, "gather", 1, "int8", has_residual=True)
    rows = Message(10, 20, 1.0, "gather", compressor="fp16", is_rows=True)
    way = server_time.way_of([coded, rows], Costs(residual=1e-3, codec=2.0), slowdown=3.0)
    encoding, decoding = codecs.seconds("int8", 4000, 1)
    assert way.nbytes == 1000 + 20
    assert way.encoding == pytest.approx(3 * (2 * encoding + 4.0))
    assert way.decoding == pytest.approx(3 * 2 * decoding)
    carried = server_time.way_of([coded], Costs(tensorflow=1e-3))
    assert carried.carrying == pytest.approx(0.5)
    assert server_time.way_of([], Costs()) == Way(0)


def test_compressed_gradients_and_weights_take_less_of_a_slow_link():
    made = dataclasses.replace(planner(1.25e6), servers=4)
    steps = [
        made.predict(candidate, 2)
        for candidate in (
            Candidate("parameter_server"),
            Candidate("parameter_server", pull_compression="fp16"),
            Candidate("parameter_server", "powersgd", pull_compression="fp16"),
        )
    ]
    whole, pulled, both = (step.step - 1.0 for step in steps)
    assert pulled == pytest.approx(0.75 * whole, rel=0.03)
    assert both == pytest.approx(0.255 * whole, rel=0.05)
    assert [step.sent for step in steps] == [SIZE, SIZE, SIZE / 100]


def test_synchronous_updates_are_exact_and_of_all_samples():
    together = Candidate("parameter_server", synchronous=True)
    found = planner(1.25e9).predict(together, 4)
    assert found.candidate.is_exact and not Candidate("parameter_server").is_exact
    assert (found.batch_size, found.samples_per_update) == (256, 256)
    assert found.epoch_seconds(257) == pytest.approx(2 * found.step)
    assert found.machines == 4 + 1 + 1
    assert found.step >= 1.0 + 4 * server_time.CHIEF


@pytest.mark.parametrize("tables", Tables)
def test_rows_are_read_and_sent_as_rows(tables):
    made = with_a_table(tables)
    machines = Machines(Link(0.0, 1e-3), costs=Costs())
    made = dataclasses.replace(made, machines=machines)
    found = made.predict(Candidate("parameter_server"), 2)
    nbytes = SMALL.nbytes + 50 * (4 * TABLE.shape[1] + 4)
    assert found.sent == nbytes
    assert found.step == pytest.approx(1.0 + 2 * 1e-3 * nbytes)
