"""Ranks that hold parts of layers train as one device does, and refuse what they cannot."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.tensor_parallel import rank
from tfdist.strategies.horovod.backend import is_installed

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="Horovod is not installed"),
    pytest.mark.xdist_group("tensor_parallel"),
]


_ALL = len(rank.CASES)


@pytest.fixture(
    scope="module",
    params=[
        (2, rank.USUAL),
        pytest.param((2, _ALL), marks=pytest.mark.full),
        pytest.param((4, _ALL), marks=pytest.mark.full),
    ],
    ids=lambda given: "{} ranks, {} cases".format(*given),
)
def found(request, tmp_path_factory):
    folder, (ranks, cases) = tmp_path_factory.mktemp("ranks"), request.param
    command = [sys.executable, "-m", "tfdist", "run", "-n", str(ranks), "--strategy", "horovod"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    program = ROOT / "tests/tensor_parallel/rank.py"
    job = subprocess.run(
        [*command, str(program), str(folder), str(cases)],
        env=environ,
        capture_output=True,
        timeout=600,
    )
    assert job.returncode == 0, (job.stdout + job.stderr).decode()[-4000:]
    results = [json.loads((folder / f"{number}.json").read_text()) for number in range(ranks)]
    assert [len(of_rank["equality"]) for of_rank in results] == [cases] * ranks
    return results


def test_weights_and_logs_are_those_of_one_device(found):
    for of_rank in found:
        assert of_rank["shape"] == {"data": 1, "model": len(found)}
        for name, of in of_rank["equality"].items():
            assert of["weights"] <= 1e-6, (name, of)
            assert of["logs"] <= 1e-5, (name, of)
            assert of["loaded again"] == 0, (name, of)


def test_loops_of_ones_own_are_those_of_one_device(found):
    assert max(of_rank["loops"] for of_rank in found) <= 1e-6


def test_a_rank_holds_a_part(found):
    for of_rank in found:
        assert max(of["part"] for of in of_rank["equality"].values()) < 1.5 / len(found)


def test_what_would_be_wrong_is_refused_and_changes_no_weight(found):
    for of_rank in found:
        assert len(of_rank["refusals"]) == 25
        assert {name: text for name, text in of_rank["refusals"].items() if text} == {}
