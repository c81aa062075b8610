"""Elastic groups whose connections break again and again: training equals one device."""

import os
import pathlib
import pickle
import subprocess
import sys
import time

import keras
import pytest

from tests.equivalence import compare
from tests.equivalence.features import FEATURES
from tests.equivalence.results import file_name
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 2
SECONDS = 240  # for one feature
# The features of an engine are divided into so many jobs.
_PARTS = 12
_KERAS = _versions.release(keras.__version__)
# What groups must take back, hand over, or compute again.
_USUAL = {
    "multi_worker": (
        "Adam",
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "predict and evaluate, uneven batches",
        "two optimizers (GAN), last batch of 3",
    ),
}
# A rank that is lost in its first step would leave variables of which nobody knows the first value.
_NOT_REPEATED = ("train_on_batch, test_on_batch, predict_on_batch",)


class Job:
    """Ranks of one engine that train features in turn, under faults.

    Args:
        engine: the name of the strategy.
        features: their names.
        folder: for results and logs.
    """

    def __init__(self, engine, features, folder):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tfdist", "run", "-n", str(RANKS), "--min", str(RANKS)]
        command += ["--strategy", engine, "-m", "tests.elastic.worker", str(folder), engine]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "interrupt@6", *features],
                env=os.environ | {"PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def results(self, feature):
        """The results of all ranks; waits for them."""
        paths = [self._folder / file_name(feature, str(rank)) for rank in range(RANKS)]
        end = time.monotonic() + SECONDS
        while not all(path.exists() for path in paths):
            ended = self._process.poll() is not None and not all(path.exists() for path in paths)
            assert not ended and time.monotonic() < end, (self._folder / "log").read_text()[-5000:]
            time.sleep(0.05)
        return [pickle.loads(path.read_bytes()) for path in paths]

    def stop(self):
        self._process.terminate()
        self._process.wait()


def _group(item):
    marker = item.get_closest_marker("xdist_group")
    return marker and marker.args[0]


@pytest.fixture(scope="session")
def job(request, tmp_path_factory):
    """The job of a group of tests."""
    jobs = {}

    def of(group, engine):
        if group not in jobs:
            together = [item for item in request.session.items if _group(item) == group]
            features = [item.callspec.params["feature"].name for item in together]
            jobs[group] = Job(engine, features, tmp_path_factory.mktemp("elastic") / "job")
        return jobs[group]

    yield of
    for one in jobs.values():
        one.stop()


def _cells():
    for engine in ("multi_worker", "horovod"):
        for place, feature in enumerate(FEATURES):
            if _KERAS < feature.since or feature.name in _NOT_REPEATED:
                continue
            usual = feature.name in _USUAL.get(engine, ())
            part = "usual" if usual else place % _PARTS
            marks = [pytest.mark.xdist_group(f"elastic {engine} {part}")]
            if not usual:
                marks.append(pytest.mark.full)
            if engine == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param(engine, feature, marks=marks, id=f"{engine}-{feature.name}")


@pytest.mark.parametrize(("engine", "feature"), list(_cells()))
def test_training_with_broken_connections_equals_one_device(request, engine, feature, job, results):
    ranks = job(_group(request.node), engine).results(feature.name)
    assert not ranks[0].refused
    problems = compare.problems(ranks, results.reference(feature), history=feature.history)
    assert not problems, "\n".join(problems)
