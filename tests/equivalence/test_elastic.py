"""Elastic groups whose connections break, or whose ranks die and are replaced, again and again."""

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
SECONDS = 240  # for one feature
# What happens, and the options of the jobs.
_BREAK, _DIE = "interrupt@6", "kill@170"
_OPTIONS = {
    _BREAK: ["-n", "2", "--min", "2"],
    _DIE: ["-n", "3", "--min", "2", "--restarts", "50"],
}
# The features of an engine are divided into so many jobs.
_PARTS = 12
_KERAS = _versions.release(keras.__version__)
# What groups must take back, hand over, or compute again.
_USUAL = {
    "multi_worker": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "predict and evaluate, uneven batches",
    ),
}
# A rank that is lost in its first step would leave variables of which nobody knows the first value.
_NOT_REPEATED = ("train_on_batch, test_on_batch, predict_on_batch",)
# What compression keeps in each rank, or who has which samples, has a part in these.
_OPTIONAL = ("+topk", "+balance", "+reducers")
_WITH_OPTIONS = (
    "Adam",
    "accumulation_steps=3, steps_per_execution=4, remainders",
    "two optimizers (GAN), last batch of 3",
    "mixed_float16",
    "a second fit continues",
    "Embedding, accumulation",
    "synchronized BatchNormalization, last batch of 3",
    "last batch of 1 sample",
)
# Each rank has a folder of its own here, so that the next rank 0 does not find the files of a dead
# one, and a new rank does not do what the others have done because of a file.
_OWN_FILES = ("BackupAndRestore", "ModelCheckpoint", "save_weights", "Keras' guide")


class Job:
    """Ranks of one engine that train features in turn, under faults.

    Args:
        engine: the name of the strategy, and an option as for `tests.elastic.worker`.
        faults: what happens, as for `tests.elastic.faulty.install`.
        features: their names.
        folder: for results and logs.
    """

    def __init__(self, engine, faults, features, folder):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tfdist", "run", *_OPTIONS[faults]]
        command += ["--strategy", engine.partition("+")[0]]
        command += ["--reducers", "2"] if engine.endswith("+reducers") else []
        command += ["-m", "tests.elastic.worker", str(folder), engine]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, faults, *features],
                env=os.environ | {"PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def results(self, feature):
        """The results of ranks 0 and 1; waits for them."""
        paths = [self._folder / file_name(feature, str(rank)) for rank in range(2)]
        end = time.monotonic() + SECONDS
        while not all(path.exists() for path in paths):
            ended = self._process.poll() is not None and not all(path.exists() for path in paths)
            assert not ended and time.monotonic() < end, self._last_lines()
            time.sleep(0.05)
        return [pickle.loads(path.read_bytes()) for path in paths]

    def results_of_survivors(self, feature, features):
        """The results of the ranks that have trained the feature to its end, when all have ended.

        Args:
            feature: its name.
            features: how many the job trains.
        """
        status = self._process.wait(SECONDS * features)
        assert status == 0, self._last_lines()
        start = file_name(feature, "")
        names = [path.name for path in self._folder.iterdir() if path.name.startswith(start)]
        names = [name for name in names if name[len(start) :].isdigit()]
        return [pickle.loads((self._folder / name).read_bytes()) for name in sorted(names)]

    def _last_lines(self):
        return (self._folder / "log").read_text(errors="replace")[-5000:]

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

    def of(group, engine, faults):
        together = [item for item in request.session.items if _group(item) == group]
        features = [item.callspec.params["feature"].name for item in together]
        if group not in jobs:
            folder = tmp_path_factory.mktemp("elastic") / "job"
            jobs[group] = Job(engine, faults, features, folder), len(features)
        return jobs[group]

    yield of
    for one, _ in jobs.values():
        one.stop()


def _cells(faults, kind=""):
    for engine in ("multi_worker", "horovod")[: 1 if kind == "+reducers" else 2]:
        for place, feature in enumerate(FEATURES):
            if kind and feature.name not in _WITH_OPTIONS:
                continue
            if _KERAS < feature.since or feature.name in _NOT_REPEATED:
                continue
            if faults == _DIE and feature.name.startswith(_OWN_FILES):
                continue
            usual = faults == _BREAK and not kind and feature.name in _USUAL.get(engine, ())
            part = "usual" if usual else kind or place % _PARTS
            marks = [pytest.mark.xdist_group(f"elastic {faults} {engine} {part}")]
            if not usual:
                marks.append(pytest.mark.full)
            if engine == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            name = f"{engine}{kind}-{feature.name}"
            yield pytest.param(engine + kind, feature, marks=marks, id=name)


@pytest.mark.parametrize(
    ("engine", "feature"), [cell for kind in ("", *_OPTIONAL) for cell in _cells(_BREAK, kind)]
)
def test_training_with_broken_connections_equals_one_device(request, engine, feature, job, results):
    trained, _ = job(_group(request.node), engine, _BREAK)
    ranks = trained.results(feature.name)
    assert not ranks[0].refused
    problems = compare.problems(ranks, results.reference(feature), history=feature.history)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("engine", "feature"), [cell for kind in ("", *_OPTIONAL) for cell in _cells(_DIE, kind)]
)
def test_training_with_replaced_ranks_equals_one_device(request, engine, feature, job, results):
    trained, features = job(_group(request.node), engine, _DIE)
    ranks = trained.results_of_survivors(feature.name, features)
    # One rank alone has a result where the other died after the last operation, and a third came
    # too late for it.
    assert ranks
    assert not ranks[0].refused
    problems = compare.problems(ranks, results.reference(feature), history=feature.history)
    assert not problems, "\n".join(problems)
