"""Other packages under each strategy: the weights of one device without tfdist.

They are not requirements of the tests: `make integrations` installs them.
"""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from tests.equivalence.compare import MAX_WEIGHT_DIFFERENCE
from tests.integrations.features import FEATURES
from tests.integrations.trained import DIGITS, ROOT, SECONDS, assert_equal, variables, weights

PYTHON = pathlib.Path(
    os.environ.get("TFDIST_TEST_INTEGRATIONS", ROOT / ".venv-integrations"), "bin/python"
)
LAUNCHED = {
    "mirrored": (),
    "multi_worker": ("-n", "2", "--strategy", "multi_worker"),
    "horovod": ("-n", "2", "--strategy", "horovod"),
    "parameter_server": ("-n", "3", "--strategy", "parameter_server", "--ps", "1"),
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON.exists(), reason="the packages are not there: make integrations"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains all features in one job of a system, once; returns the folder of the results."""
    folders = {}

    def train(system):
        if system not in folders:
            folders[system] = tmp_path_factory.mktemp("trained")
            launched = ("-m", "tfdist", "run", *LAUNCHED[system]) if LAUNCHED.get(system) else ()
            worker = ("-m", "tests.integrations.worker", str(folders[system]), system)
            _run(*launched, *worker)
        return folders[system]

    return train


def _run(*arguments):
    done = subprocess.run(
        [str(PYTHON), *arguments],
        env=os.environ | variables(WANDB_SILENT="true"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("system", LAUNCHED)
def test_a_package_trains_as_on_one_device(trained, system, name):
    expected = np.load(trained("one device") / f"{name} 0.npz")
    ranks = sorted(trained(system).glob(f"{name} *.npz"))
    assert len(ranks) == (2 if system in ("multi_worker", "horovod") else 1)
    for path in ranks:
        found = np.load(path)
        assert found.files == expected.files
        for key in expected.files:
            np.testing.assert_allclose(
                found[key], expected[key], rtol=0, atol=MAX_WEIGHT_DIFFERENCE
            )


def test_ray_starts_all_again_where_one_has_died(digits_on_one_device, tmp_path):
    start = ("examples/ray_train.py", "--workers", "2", "--storage", str(tmp_path / "ray"))
    _run(str(ROOT / start[0]), *start[1:], str(DIGITS), str(tmp_path), "--backup", "--dies")
    assert (tmp_path / "died").exists()
    assert_equal(weights(tmp_path, 2), digits_on_one_device)
