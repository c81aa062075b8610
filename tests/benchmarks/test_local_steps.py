"""The benchmark of local steps: its jobs, what it keeps of them, its goals and tables."""

from __future__ import annotations

import argparse
import collections

import pytest

from benchmarks.local_sgd import goals, plan, report, step_time
from benchmarks.local_sgd.choices import CHOICES, DENSE, DILOCO, POST_LOCAL, SYNCHRONOUS
from benchmarks.local_sgd.found import Found
from benchmarks.side_by_side.launch import Phase
from benchmarks.side_by_side.systems import SYSTEMS

BACKEND = "multi_worker"
CODED, POWERSGD = "h32-bits", "h32-powersgd"
SETTINGS = {"blocks": 2, "updates": 10, "batch": 32}


def arguments(*parts: str, **others) -> argparse.Namespace:
    choices = [SYNCHRONOUS, DENSE, POST_LOCAL[0]]
    values = {"parts": parts, "backend": BACKEND, "choices": choices}
    values |= {"rounds": 3, "seeds": 2, "tasks": ["char_lm"]}
    return argparse.Namespace(**values | others)


def test_systems_of_several_parts_take_turns_and_run_once_in_a_round():
    jobs = plan.jobs(arguments(plan.STEP_TIME, plan.PEERS))
    rounds = collections.defaultdict(list)
    for job in jobs:
        rounds[job.number].append(job.system)
    assert len(set(jobs)) == len(jobs)
    # Of the third choice the first steps would be synchronous.
    ours = ["keras", *(plan.own(BACKEND, choice) for choice in (SYNCHRONOUS, DENSE))]
    assert rounds[0] == [*ours, plan.own(BACKEND, DILOCO), "torch", *plan.TORCH]
    assert rounds[1] == rounds[0][::-1]
    assert rounds[2] == ours


def test_the_part_of_the_peers_has_what_they_are_compared_with():
    systems = [job.system for job in plan.jobs(arguments(plan.PEERS, rounds=1))]
    compared = {plan.own(BACKEND, choice) for choice in report.PAIRS.values()}
    assert compared | set(report.PAIRS) | set(plan.ALONE.values()) == set(systems)


def test_the_part_of_the_losses_has_each_seed():
    jobs = plan.jobs(arguments(plan.LOSS))
    assert len(jobs) == 2 * 3
    assert [(job.system, job.number) for job in jobs[2:4]] == [(POST_LOCAL[0], 0), (SYNCHRONOUS, 1)]
    assert jobs[1].title == "char_lm, H = 32, seed 0"


def test_only_the_losses_of_codecs_that_lose_more_are_compared():
    codecs = [f"streaming-{name}" for name in ("onebit", "signsgd")]
    every = arguments(*plan.PARTS, choices=list(CHOICES), rounds=1, seeds=1)
    jobs = plan.jobs(every)
    losses = [job.system for job in jobs if job.part == plan.LOSS]
    assert losses == list(CHOICES) and set(codecs) <= set(losses)
    timed = {job.system for job in jobs if job.part == plan.STEP_TIME}
    assert not timed & {plan.own(BACKEND, choice) for choice in codecs}
    assert {plan.own(BACKEND, c) for c in CHOICES if c not in (*POST_LOCAL, *codecs)} < timed
    streamed = CHOICES["streaming-bits"].local
    assert all(CHOICES[choice].local == streamed for choice in codecs)
    some = plan.jobs(arguments(plan.LOSS, choices=codecs, seeds=1))
    assert [job.system for job in some] == codecs
    assert some[0].title == "char_lm, DiLoCo, H = 32, streaming, onebit, seed 0"


def test_the_table_has_the_losses_of_further_codecs():
    jobs = [trained(SYNCHRONOUS, 2.0, 10**6), trained("streaming-onebit", 2.078, 10**5)]
    (row,) = [line for line in report.losses(Found(jobs)) if "onebit" in line]
    assert row == "| char_lm | DiLoCo, H = 32, streaming, onebit | 0.20 | 10.0 × | 2.0780 | 1.039 |"


@pytest.mark.parametrize(
    ("system", "rate", "steps"),
    [
        ("keras", "10mbit", 64),
        (plan.own(BACKEND, CODED), "10mbit", 64),
        (plan.own(BACKEND, DENSE), "100mbit", 64),
        (plan.own(BACKEND, SYNCHRONOUS), "100mbit", 5),  # 3.2 seconds each
        (plan.own(BACKEND, SYNCHRONOUS), "10mbit", 0),  # 32 seconds each
        (plan.own(BACKEND, DENSE), "10mbit", 0),
        ("post_local_sgd", "100mbit+50ms", 64),
        ("torchft_diloco", "10mbit", 0),
    ],
)
def test_whole_rounds_are_timed_and_no_endless_ones(system, rate, steps):
    assert plan.timed_steps(system, rate, 64) == steps


def test_at_least_one_round_is_timed():
    assert plan.timed_steps(plan.own(BACKEND, CODED), "100mbit", 3) == 32


def test_the_steps_of_all_hosts_count_in_the_second_half_of_a_link():
    def report_of(*seconds: float):
        timed = [{"seconds": [9.0], "bytes": 9}]
        timed.append({"seconds": [8.0, 9.0, *seconds], "bytes": 100})
        return {"phases": timed, "versions": {"keras": "3"}, "parameters": 10}

    phases = [Phase("unlimited", 1), Phase("100mbit", 4)]
    reports = [report_of(1.0, 3.0), report_of(2.0, 6.0)]
    found = step_time.summed(reports, phases, [[1.0] * 2, [12.4e6, 12.3e6]])
    # Not 4.0, which is the mean of the slowest in each step.
    timed = {"seconds": 3.0, "bytes": 100, "links": [12400000, 12300000]}
    assert found == {"rates": {"100mbit": timed}, "versions": {"keras": "3"}, "parameters": 10}


def stepped(system: str, seconds: float, number: int = 0, rate: str = "100mbit"):
    """A job that has timed steps."""
    timed = {"seconds": seconds, "bytes": 2e6, "links": []}
    content = {"rates": {rate: timed}, "versions": {"torch": "2"}, "parameters": 10_000_000}
    return [plan.STEP_TIME, system, plan.WORK, number], content


def trained(choice: str, loss: float, sent: int, seed: int = 0):
    """A job that has found a loss."""
    found = {"bytes": [sent, sent], "seconds": [1.0, 1.0], "loss": [3.0, loss]}
    return [plan.LOSS, choice, "char_lm", seed], found


def goal_rows(*jobs) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in goals.table(Found(jobs), BACKEND)[2:]]
    return {row[0]: row[1:] for row in rows}


STEP_GOAL = "step on 100 Mbit/s, by one device"


@pytest.mark.parametrize(("ours", "reached"), [(1.04, "yes"), (1.06, "no")])
def test_a_step_is_compared_with_one_device_of_the_same_round(ours, reached):
    jobs = []
    for number, slower in enumerate((1, 10, 100)):
        jobs.append(stepped("keras", slower, number))
        jobs.append(stepped(plan.own(BACKEND, CODED), ours * slower, number))
    row = goal_rows(*jobs)[STEP_GOAL]
    measured = f"{ours:.3f} ({ours:.3f}–{ours:.3f})"
    assert row == ["H = 32, 4 bits", "≤ 1.05", measured, "not measured", reached]


def test_a_choice_whose_loss_is_too_great_is_beside_one_that_loses_little():
    jobs = [stepped("keras", 1.0), stepped(plan.own(BACKEND, CODED), 1.01)]
    jobs += [stepped(plan.own(BACKEND, POWERSGD), 1.02)]
    least = "the same, with a loss of at most 1.03 ×"
    rows = goal_rows(*jobs)
    assert (rows[STEP_GOAL][0], least in rows) == ("H = 32, 4 bits", False)
    losses = [trained(SYNCHRONOUS, 2.0, 10**6), trained(CODED, 2.08, 10**6)]
    losses += [trained(POWERSGD, 2.05, 10**6)]
    rows = goal_rows(*jobs, *losses)
    assert (rows[STEP_GOAL][0], rows[STEP_GOAL][3]) == ("H = 32, 4 bits", "1.040")
    assert (rows[least][0], rows[least][3]) == ("H = 32, PowerSGD, rank 4", "1.025")


def test_losses_are_compared_with_synchronous_training_of_the_same_seed():
    jobs = [trained(SYNCHRONOUS, 2.0, 10**6), trained(SYNCHRONOUS, 4.0, 10**6, 1)]
    jobs += [trained(POST_LOCAL[0], 2.004, 10**5), trained(POST_LOCAL[0], 4.016, 10**5, 1)]
    jobs += [trained(POST_LOCAL[0], 9.9, 10**5, 2)]
    rows = goal_rows(*jobs)
    (row,) = rows.values()
    assert row == [CHOICES[POST_LOCAL[0]].title, "≤ 1.005", "1.003 (1.002–1.004)", "1.003", "yes"]


def test_only_what_sends_200_times_fewer_bytes_counts_for_its_goal():
    jobs = [trained(SYNCHRONOUS, 2.0, 10**6), trained(CODED, 2.05, 5000)]
    jobs += [trained(POWERSGD, 2.07, 4000), trained(DENSE, 2.0, 5001)]
    row = goal_rows(*jobs)["the same, with 200 × fewer bytes"]
    assert row == ["H = 32, 4 bits", "≤ 1.03", "1.025", "1.025", "yes"]


def test_the_page_has_a_table_of_each_part_that_ran():
    assert report.page(Found([]), BACKEND, SETTINGS).count("\n|---") == 0
    jobs = [stepped("keras", 0.05), stepped(plan.own(BACKEND, DENSE), 0.1)]
    one = report.page(Found(jobs), BACKEND, SETTINGS)
    assert "| 100 Mbit/s | H = 32 | 2.000 | 100.0 | 2.000 |" in one
    assert "| 100 Mbit/s | one device | 2.000 | 50.0 | 1.000" in one
    jobs += [stepped("torch", 0.04), stepped("post_local_sgd", 0.12)]
    jobs += [trained(SYNCHRONOUS, 2.0, 10**6), trained(CODED, 2.05, 5000)]
    page = report.page(Found(jobs), BACKEND, SETTINGS)
    peer = [line for line in page.splitlines() if SYSTEMS["post_local_sgd"].title in line]
    ratio, ours, theirs = (cell.split()[0] for cell in peer[0].strip("| ").split(" | ")[5:])
    assert (ratio, ours, theirs) == ("1.200", "50.0", "80.0")
    assert "torch 2." in page and "after 20 updates of 32 samples" in page
    assert "| char_lm | H = 32, 4 bits | 0.01 | 200.0 × | 2.0500 | 1.025" in page
    assert page.count("\n|---") == 4
