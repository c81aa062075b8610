"""The benchmark of all-reduces keeps each job, and goes on with those that are missing."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import algorithms
from benchmarks.all_reduce import plan
from benchmarks.all_reduce.results import Job, Results

SETTINGS = {"sizes": [1000], "rounds": 3}
JOB = Job("loopback", 2, 0, plan.MULTI_WORKER)
FOUND = {
    "link": {"alpha": 1e-3, "beta": 1e-9},
    "sizes": {"1000": {plan.RING: {"seconds": [0.1], "sent": [0]}}},
}


def test_a_later_run_finds_the_jobs_of_an_earlier_one(tmp_path):
    path = tmp_path / "new" / "kept.json"
    Results(path, SETTINGS, False).add(JOB, FOUND)
    later = Results(path, SETTINGS, False)
    assert not later.lacks(JOB)
    others = {"link": "1gbit", "ranks": 3, "block": 1, "backend": plan.HOROVOD_BACKEND}
    assert all(later.lacks(JOB._replace(**{name: value})) for name, value in others.items())
    assert later.cell("loopback", 2).seconds(1000, plan.RING) == [0.1]
    assert later.cell("loopback", 3).sizes == []


def test_a_fresh_run_forgets_them(tmp_path):
    path = tmp_path / "kept.json"
    Results(path, SETTINGS, False).add(JOB, FOUND)
    assert Results(path, SETTINGS, True).lacks(JOB)


def test_jobs_with_other_settings_are_refused(tmp_path):
    path = tmp_path / "kept.json"
    Results(path, SETTINGS, False).add(JOB, FOUND)
    with pytest.raises(SystemExit, match="--fresh .*Received: .*'rounds': 3"):
        Results(path, SETTINGS | {"rounds": 4}, False)


def options(minutes: float) -> argparse.Namespace:
    return argparse.Namespace(
        links=["loopback"], ranks=[2, 3], backends=plan.BACKENDS, blocks=1, minutes=minutes
    )


def test_a_job_that_fails_does_not_end_the_others(tmp_path, monkeypatch, capsys):
    results, arguments = Results(tmp_path / "kept.json", SETTINGS, False), options(60)
    jobs, begun = algorithms.wanted(arguments), []

    def measured(job, link, _):
        begun.append((job.ranks, job.backend, link is not None))
        if job.ranks == 2 and job.backend == plan.MULTI_WORKER:
            raise RuntimeError("no ranks")
        return FOUND

    monkeypatch.setattr(algorithms, "measure", measured)
    algorithms.measure_all(jobs, results, arguments)
    # Horovod's job is told of the link if the one before has measured it.
    two, three = [
        [(ranks, backend, known and backend == "horovod") for backend in plan.BACKENDS]
        for ranks, known in ((2, False), (3, True))
    ]
    assert begun == [*two, *three]
    assert "FAILED\nno ranks" in capsys.readouterr().err
    begun.clear()
    algorithms.measure_all(jobs, results, arguments)
    assert [job[:2] for job in begun] == [(2, plan.MULTI_WORKER)]


def test_no_job_begins_when_the_time_is_up(tmp_path, monkeypatch):
    results, arguments = Results(tmp_path / "kept.json", SETTINGS, False), options(-1)
    monkeypatch.setattr(algorithms, "measure", lambda *_: pytest.fail("begun"))
    algorithms.measure_all(algorithms.wanted(arguments), results, arguments)
