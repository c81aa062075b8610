"""The simulation beside the jobs that docs/asynchronous.md has measured."""

import pytest

from benchmarks import simulation
from tests.docs import sources

ROWS = simulation.measured()


def test_all_policies_were_measured_on_both_tasks():
    found = [(row.task, row.policy) for row in ROWS]
    assert found == [(t, policy) for t in ("digits", "linear") for policy in simulation.POLICIES]
    assert all(len(row.seconds) == 4 and row.seconds[0] < row.seconds[3] / 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.task}, {row.policy}")
def test_rates_are_those_that_were_measured(row):
    assert abs(row.error) <= 0.1


def test_each_policy_has_a_row_with_its_time():
    lines = simulation.durations(20, 10).splitlines()
    for name in [*list(simulation.POLICIES)[:-1], *simulation.FAULTS]:
        assert sum(line.startswith(f"| {name} |") for line in lines) == 1


def test_workers_of_the_timed_elastic_jobs_die():
    rows = [line.split(" | ") for line in simulation.durations(2000, 20).splitlines()]
    counted = [row[1].replace(",", "").split() for row in rows if row[0].startswith("| elastic")]
    seldom, often = ((int(gradients[:-1]), int(deaths)) for gradients, deaths, _ in counted)
    assert often[1] > seldom[1] and often[0] < seldom[0] <= 40_000


def test_the_docs_have_the_table():
    text = (sources.DOCS / "scaling.md").read_text()
    assert f"<!-- simulated:begin -->\n{simulation.compared()}\n" in text
