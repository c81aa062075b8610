"""The time of a step, against the same computed by hand."""

import pytest

from tfdist.local.choices import DiLoCo, LocalSGD
from tfdist.plan import codecs, collectives, step_time
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.workload import Device, Message, Workload

PARTS = (1.0, 2.0, 0.5)  # forward, backward, update
MACHINES = Machines(Link(0.0, 1e-6), costs=Costs())


def carried(messages, ranks=2, machines=MACHINES, exchange="ring"):
    return [
        step_time.carriage(message, ranks, machines, exchange, "horovod") for message in messages
    ]


def seconds(messages, **options):
    return step_time.synchronous(PARTS, messages, carried(messages, **options))


def message(megabytes, ready, **options):
    size = round(1e6 * megabytes)
    return Message(size, size, ready, **options)


def test_without_an_exchange_a_step_takes_as_long_as_on_one_device():
    assert seconds([]) == 3.5
    assert seconds([message(1e-6, 1.0)]) == pytest.approx(3.5, abs=1e-5)


def test_a_message_after_the_backward_pass_is_waited_for():
    assert seconds([message(4, 1.0)]) == pytest.approx(3 + 4 + 0.5)


def test_a_message_travels_beside_the_backward_pass():
    # There at 1 + 0.25 · 2, it has arrived at 2.5, before the backward pass ends at 3.
    assert seconds([message(1, 0.25)]) == pytest.approx(3.5)
    assert seconds([message(2, 0.25)]) == pytest.approx(1.5 + 2 + 0.5)


def test_messages_follow_each_other_on_the_link():
    # The first travels from 1.5 to 4.5, the second one from there to 5.5. The update of the first,
    # 3/4 of all, is over by then; that of the second takes 0.125.
    assert seconds([message(3, 0.25), message(1, 1.0)]) == pytest.approx(5.5 + 0.125)


def test_rounds_of_several_messages_wait_at_the_same_time():
    machines = Machines(Link(0.25, 1e-6), costs=Costs())
    # Two rounds of each, 0.5 s, are waited for once: 3 + 1 + 1 + 0.5, and the last update.
    pair = [message(1, 1.0), message(1, 1.0)]
    assert seconds(pair, machines=machines) == pytest.approx(5.5 + 0.25)


def test_only_some_operations_are_under_way():
    machines = Machines(Link(0.5, 1e-12), costs=Costs())
    many = [message(0.000001, 1.0)] * (2 * step_time.UNDER_WAY)
    assert seconds(many, machines=machines) == pytest.approx(3 + 2 * 1.0 + 0.5 / 2, abs=1e-4)


def test_cores_that_send_compute_more_slowly():
    machines = Machines(Link(0.0, 1e-6), costs=Costs(5e-7))
    # From 1.5 on half of the cores' time goes to the link, until it is free at 2.5.
    assert seconds([message(1, 0.25)], machines=machines) == pytest.approx(3.5 + 0.5)


def test_cores_may_be_slower_than_the_link():
    machines = Machines(Link(0.0, 1e-12), costs=Costs(1e-6))
    assert seconds([message(1, 0.25)], machines=machines) == pytest.approx(3.5 + 1.0)
    assert seconds([message(1, 1.0)], machines=machines) == pytest.approx(3.5 + 1.0)


def test_cores_that_workers_share_send_as_many_times_as_slowly():
    link = Link(0.0, 1e-12)
    machines = Machines(link, 4, link, Costs(tensorflow=1e-6), shares_cores=True)
    ways = [
        step_time.carriage(message(1, 1.0), ranks, machines, "ring", "multi_worker")
        for ranks in (2, 4)
    ]
    assert [way.cores for way in ways] == pytest.approx([2 * 1.0, 4 * 1.5])


def test_codecs_take_time_before_and_after():
    coded = Message(1_000_000, 100_000_000, 1.0, "sum", 1, "powersgd")
    whole = codecs.SECONDS_PER_BYTE["powersgd"] * 1e8
    assert seconds([coded]) == pytest.approx(3.5 + 1 + whole)


def test_gathered_payloads_reach_everyone_and_are_all_decoded():
    gathered = Message(1_000_000, 100_000_000, 1.0, "gather", 1, "int8")
    (two,), (eight,) = carried([gathered]), carried([gathered], 8)
    assert (two.sent, eight.sent) == (1e6, 7e6)
    assert eight.decoding == pytest.approx(4 * two.decoding)
    assert eight.encoding == two.encoding


def test_rounds_of_a_gather_are_half_those_of_a_sum():
    machines = Machines(Link(0.25, 1e-6), costs=Costs())
    ways = carried([message(1, 1.0), message(1, 1.0, aggregation="gather")], 4, machines)
    assert [way.latency for way in ways] == [6 * 0.25, 3 * 0.25]


def test_sums_of_parts_take_longer_with_horovod_than_their_bytes_need():
    assert collectives.factor("horovod", "sum of a part", 3, 3) > 1.3
    assert collectives.factor("horovod", "sum of a part", 3, 1) == 1.0
    assert collectives.factor("horovod", "sum of a part", 2, 2) == 1.0
    assert collectives.factor("horovod", "gather", 3, 3) == 1.0


def test_hosts_with_several_ranks_send_less_if_they_sum_first():
    machines = Machines(Link(0.0, 1e-6), per_host=2, inside=Link(0.0, 1e-9), costs=Costs())
    (ring,) = carried([message(1, 1.0)], 4, machines)
    (grouped,) = carried([message(1, 1.0)], 4, machines, "hierarchical")
    assert (ring.sent, grouped.sent) == (1.5e6, 1e6)
    assert grouped.busy == pytest.approx(1.0 + 1e-3)


def test_local_steps_exchange_once_in_a_round():
    ways = carried([message(8, 1.0)])
    assert step_time.with_local_steps(PARTS, ways, LocalSGD(8)) == pytest.approx(3.5 + 8 / 8)
    hidden = DiLoCo(8, fragments=1, overlap=3)
    assert step_time.with_local_steps(PARTS, ways, hidden) == pytest.approx(3.5)
    longer = carried([message(18.5, 1.0)])
    assert step_time.with_local_steps(PARTS, longer, hidden) == pytest.approx(3.5 + 8 / 8)


def test_two_ranks_of_one_host_gather_as_fast_as_their_bytes():
    together = Machines(Link(0.0, 1e-6), per_host=2, inside=Link(0.0, 1e-6), costs=Costs())
    (way,) = carried([message(1, 1.0, aggregation="gather")], 2, together)
    assert way.busy == pytest.approx(1.0)


def test_rows_of_sparse_gradients_have_no_groups():
    machines = Machines(Link(0.0, 1e-6), per_host=2, inside=Link(0.0, 1e-9), costs=Costs())
    rows, rounded, coded = (
        message(1, 1.0, aggregation="gather", compressor=name, is_rows=name != "topk")
        for name in (None, "fp16", "topk")
    )
    ways = carried([rows, rounded, coded], 4, machines, "hierarchical")
    assert [way.sent for way in ways] == [3e6, 3e6, 1e6]


def test_parameter_servers_are_as_fast_as_their_link():
    link = Link(0.0, 1e-6)
    few = step_time.with_parameter_servers(PARTS, 1e6, 2, 1, link)
    assert few == pytest.approx(3.5 + 2)
    many = step_time.with_parameter_servers(PARTS, 1e6, 100, 1, link)
    assert many == pytest.approx(100)
    assert step_time.with_parameter_servers(PARTS, 1e6, 100, 4, link) == pytest.approx(25)


def test_workers_of_one_host_share_its_link_to_parameter_servers():
    link = Link(0.0, 1e-6)
    found = step_time.with_parameter_servers(PARTS, 1e6, 100, 100, link, shared=8)
    assert found == pytest.approx(8)


@pytest.mark.parametrize(
    ("per_host", "reducers", "times"),
    [(1, 4, 1), (1, 8, 1), (1, 2, 2), (2, 4, 2), (2, 1, 4)],
)
def test_with_reducers_each_link_carries_a_message_once_or_its_share_of_all(
    per_host, reducers, times
):
    machines = Machines(Link(0.5, 1e-6), per_host, costs=Costs(tensorflow=1e-7))
    way = step_time.by_reducers(message(10, 1.0), 4, machines, reducers)
    longer = collectives.factor("multi_worker", "sum by reducers", 4, 8)
    assert longer > 1
    assert way.busy == pytest.approx(10 * longer * times + way.cores)
    assert way.latency == pytest.approx(3 * 0.5)
    assert way.sent == pytest.approx(1e7)
    assert way.cores == pytest.approx(1.0)


def test_halves_cost_two_ranks_more_and_take_more_ranks_longer_on_the_link():
    machines = Machines(Link(0.0, 1e-6), costs=Costs(halves=1e-6))
    halves = message(10, 1.0, compressor="fp16")
    (two,), (three,) = (carried([halves], ranks, machines) for ranks in (2, 3))
    # Two ranks convert both vectors, three ranks a part of each.
    assert (two.cores, three.cores) == (pytest.approx(20), pytest.approx(10))
    assert two.busy == pytest.approx(10 + two.cores)
    longer = collectives.factor("horovod", "sum of a part", 3, 3)
    assert three.busy == pytest.approx(1e-6 * three.sent * (longer + 1) / 2 + three.cores)


def test_ranks_that_meet_in_each_step_wait_for_the_slowest():
    costs = Costs(spread=0.1)
    # The largest of two and of four values of a normal distribution: 0.564 and 1.029 on average.
    assert costs.latest(1.0, 1) == pytest.approx(0)
    assert costs.latest(1.0, 2) == pytest.approx(0.0564, rel=0.05)
    assert costs.latest(1.0, 4) == pytest.approx(0.1029, rel=0.03)
    for slowdown in (1.0, 4.0):
        machines = Machines(Link(0.0, 1e-9), costs=costs, slowdown=slowdown)
        planner = Planner(Workload(64, (), 1 / 3, 0), lambda *_: [], Device(1.0, 64), machines)
        late = slowdown**0.5 * costs.latest(1.0, 3)
        assert planner.predict(Candidate("horovod"), 3).step == pytest.approx(slowdown + late)
        apart = Candidate("horovod", local=LocalSGD(8))
        assert planner.predict(apart, 3).step == pytest.approx(slowdown)
        assert planner.alone().step == pytest.approx(slowdown)


def test_the_cores_add_up_the_rows_of_all_ranks():
    machines = Machines(Link(0.0, 1e-6), costs=Costs(horovod_rows=1e-6, tensorflow_rows=2e-6))
    rows = Message(10, 20, 1.0, "gather", compressor="fp16", is_rows=True)
    (free,) = carried([rows], 4)
    for strategy, seconds in (("horovod", 1e-6), ("multi_worker", 2e-6)):
        way = step_time.carriage(rows, 4, machines, "ring", strategy)
        assert way.decoding - free.decoding == pytest.approx(4 * 20 * seconds)


def test_where_ranks_share_cores_tensorflow_takes_longer_for_a_byte():
    machines = Machines(Link(0.0, 1e-6), costs=Costs(1e-7, 1e-7), slowdown=3.0)
    for strategy, cores in (("horovod", 1.0), ("multi_worker", 3.0)):
        way = step_time.carriage(message(10, 1.0), 2, machines, "ring", strategy)
        assert way.cores == pytest.approx(cores)


def test_tensors_are_packed_where_tensorflow_carries_them():
    machines = Machines(Link(0.0, 1e-6), costs=Costs(packing=0.25))
    bucket = message(10, 1.0, tensors=8)
    rows = message(10, 1.0, tensors=8, aggregation="gather", is_rows=True)
    for strategy, given, packing in (
        ("multi_worker", bucket, 2.0),
        ("horovod", bucket, 0.0),
        ("multi_worker", rows, 0.0),
    ):
        way = step_time.carriage(given, 2, machines, "ring", strategy)
        assert way.encoding == way.decoding == packing / 2


def test_sums_of_halves_by_horovod_wait_for_cores_that_ranks_share():
    for strategy, compressor, on_a_core, seconds in (
        ("horovod", "fp16", 3, 18.0),
        ("horovod", "fp16", 2, 10.0),  # its turn comes before the bytes have arrived
        ("horovod", None, 3, 10.0),
        ("multi_worker", "fp16", 3, 10.0),
    ):
        machines = Machines(Link(0.0, 1e-6), costs=Costs(turn=9.0), on_a_core=on_a_core)
        way = step_time.carriage(
            message(10, 1.0, compressor=compressor), 2, machines, "ring", strategy
        )
        assert way.busy == pytest.approx(seconds)
