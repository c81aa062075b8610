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

_ALL = tuple(range(len(rank.CASES)))
_NEEDS_HOROVOD = pytest.mark.skipif(not is_installed(), reason="Horovod is not installed")


def _job(backend, data, model, cases, *marks):
    name = f"{backend}, {data} x {model}, {len(cases)} cases"
    needs = [_NEEDS_HOROVOD] if backend == "horovod" else []
    marks = [*marks, *needs, pytest.mark.xdist_group(f"tensor_parallel {name}")]
    given = (backend, {"data": data, "model": model}, cases)
    return pytest.param(given, marks=marks, id=name)


@pytest.fixture(
    scope="module",
    params=[
        _job("horovod", 1, 2, rank.USUAL[1], pytest.mark.full),
        _job("multi_worker", 2, 2, rank.USUAL[2]),
        _job("horovod", 1, 4, _ALL, pytest.mark.full),
        _job("horovod", 2, 2, _ALL, pytest.mark.full),
        _job("multi_worker", 1, 2, _ALL, pytest.mark.full),
        _job("multi_worker", 3, 2, rank.NOT_EAGER, pytest.mark.full),
    ],
)
def found(request, tmp_path_factory):
    folder, (backend, shape, cases) = tmp_path_factory.mktemp("ranks"), request.param
    ranks = shape["data"] * shape["model"]
    command = [sys.executable, "-m", "tfdist", "run", "-n", str(ranks), "--strategy", backend]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    program = ROOT / "tests/tensor_parallel/rank.py"
    job = subprocess.run(
        [*command, str(program), str(folder), json.dumps(cases), json.dumps(shape), backend],
        env=environ,
        capture_output=True,
        timeout=900,
    )
    assert job.returncode == 0, (job.stdout + job.stderr).decode()[-4000:]
    results = [json.loads((folder / f"{number}.json").read_text()) for number in range(ranks)]
    assert [len(of_rank["equality"]) for of_rank in results] == [len(cases)] * ranks
    assert [of_rank["shape"] for of_rank in results] == [shape] * ranks
    return results


def test_weights_and_logs_are_those_of_one_device(found):
    for of_rank in found:
        for name, of in of_rank["equality"].items():
            assert of["weights"] <= 1e-6, (name, of)
            assert of["logs"] <= 1e-5, (name, of)
            assert of["loaded again"] == 0, (name, of)


def test_loops_of_ones_own_are_those_of_one_device(found):
    assert max(of_rank["loops"] for of_rank in found) <= 1e-6


def test_what_one_rank_decides_holds_for_all(found):
    if found[0]["shape"]["data"] == 1:
        pytest.skip("in one model group callbacks decide alike in all ranks")
    for of_rank in found:
        ended_together, distance = of_rank["decisions"]
        assert ended_together and distance <= 1e-6


def test_ranks_have_the_same_bits(found):
    """In all ranks those of whole weights, in ranks with the same parts those of parts."""
    for name in found[0]["equality"]:
        of_ranks = [(of["model rank"], of["equality"][name]["bits"]) for of in found]
        assert any(in_parts for in_parts, _ in of_ranks[0][1])
        for weight in zip(*(bits for _, bits in of_ranks), strict=True):
            seen = {}
            for (place, _), (in_parts, checksum) in zip(of_ranks, weight):
                assert seen.setdefault(place if in_parts else 0, checksum) == checksum, name


def test_a_rank_holds_a_part(found):
    parts = found[0]["shape"]["model"]
    for of_rank in found:
        assert max(of["part"] for of in of_rank["equality"].values()) < 1.5 / parts


def test_what_would_be_wrong_is_refused_and_changes_no_weight(found):
    for of_rank in found:
        assert len(of_rank["refusals"]) >= 22
        assert {name: text for name, text in of_rank["refusals"].items() if text} == {}
