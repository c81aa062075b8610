"""What an epoch takes and costs: whole steps, on all machines that are paid for."""

import pytest

from tfdist.plan.machine import Costs, Machines, link_of
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.table import Epoch, as_data, as_text, money
from tfdist.plan.workload import Device, TracedVariable, Workload

MODEL = Workload(64, (TracedVariable("w", (1000,), "float32", 4, 1.0),), 1 / 3, 4000)
SERVERS = Candidate("parameter_server")


def predicted(candidate, workers, per_host=1, **options):
    machines = Machines(link_of(1e9, 5e-5), per_host=per_host, costs=Costs())
    made = Planner(MODEL, lambda *_: [], Device(1.0, 64), machines, **options)
    return made.predict(candidate, workers)


@pytest.mark.parametrize(
    ("samples", "steps"), [(1, 1), (1000, 1), (4096, 1), (4097, 2), (10 * 4096, 10)]
)
def test_an_epoch_has_whole_steps(samples, steps):
    found = predicted(Candidate("multi_worker"), 64)
    assert Epoch(samples, None).seconds(found) == pytest.approx(steps * found.step)


@pytest.mark.parametrize(
    ("samples", "updates"), [(1, 4), (256, 4), (257, 5), (10 * 64 - 1, 10), (6400, 100)]
)
def test_an_epoch_of_parameter_servers_has_whole_updates(samples, updates):
    found = predicted(SERVERS, 4)
    assert Epoch(samples, None).seconds(found) == pytest.approx(updates * found.step / 4)


def test_parts_of_a_divided_batch_are_whole_steps_too():
    found = predicted(Candidate("horovod"), 3, strong=True)
    assert Epoch(10 * 64, None).seconds(found) == pytest.approx(10 * found.step)
    assert Epoch(10 * 64 + 1, None).seconds(found) == pytest.approx(11 * found.step)


@pytest.mark.parametrize(
    ("candidate", "workers", "per_host", "machines"),
    [
        (Candidate("multi_worker"), 6, 1, 6),
        (Candidate("multi_worker"), 6, 4, 2),
        (Candidate("mirrored"), 4, 4, 1),
        (SERVERS, 6, 1, 6 + 2 + 1),
        (SERVERS, 6, 4, 2 + 2 + 1),
        (SERVERS, 4, 4, 1),
    ],
)
def test_all_machines_cost(candidate, workers, per_host, machines):
    found = predicted(candidate, workers, per_host, servers=2)
    assert found.machines == machines
    epoch = Epoch(64 * 6000, 2.5)
    assert epoch.cost(found) == pytest.approx(2.5 * machines * epoch.seconds(found) / 3600)


def test_where_the_samples_are_not_known_a_million_of_them_cost():
    found = predicted(Candidate("multi_worker"), 2)
    epoch = Epoch(None, 2.5)
    assert (epoch.seconds(found), epoch.cost(found)) == (None, None)
    expected = 2 * 2.5 * 1e6 / found.samples_per_second / 3600
    assert epoch.cost_of_a_million(found) == pytest.approx(expected)
    head, row = as_text([found], epoch)
    assert head.endswith("cost of a million") and row.endswith(money(expected))
    (data,) = as_data([found], epoch)
    assert data["million_samples_cost"] == pytest.approx(expected)
    assert Epoch(None, None).cost_of_a_million(found) is None
    assert "cost" not in as_text([found], Epoch(64, None))[0]


def test_small_costs_have_digits():
    amounts = (1234.567, 1.0, 0.9994, 0.01234, 5e-7)
    assert [money(amount) for amount in amounts] == [
        *("1,234.57", "1.00", "0.999", "0.0123", "0.000000500")
    ]
    found = predicted(Candidate("multi_worker"), 2)
    assert as_text([found], Epoch(64, 0.01))[1].endswith("0.00000556")
