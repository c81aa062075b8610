"""What all tests share. Nothing here imports TensorFlow before a test wants it."""

import gc
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import pytest

pytest_plugins = ["tests.selection"]

# Other jobs may slow this one down, so no test fails for the time that an example takes.
hypothesis.settings.register_profile(
    "any time", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any time")

FULL = "full"


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        f'{FULL}: what takes long and is tested otherwise too; runs with -m "{FULL} or not {FULL}"',
    )


def pytest_collection_modifyitems(config, items):
    """Leaves the marked tests out unless the command line says which marks it wants."""
    if config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(FULL)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker(FULL)]


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.full)])
def strategy(request):
    """A strategy on several devices."""
    return _mirrored(request.param)


@pytest.fixture
def two_replicas():
    return _mirrored(2)


def _mirrored(count):
    import tfdist
    from tests.devices import DEVICES

    return tfdist.MirroredStrategy(DEVICES[:count])


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that the processes of pytest-xdist have in common."""
    if "TFDIST_EQUIVALENCE_RESULTS" in os.environ:
        return pathlib.Path(os.environ["TFDIST_EQUIVALENCE_RESULTS"])
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = base / "shared"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session")
def shared(shared_folder):
    """What one process of pytest-xdist computes and all use."""
    from tests.equivalence.results import Shared

    return Shared(shared_folder)


@pytest.fixture(autouse=True)
def _fresh_keras_state():
    yield
    keras = sys.modules.get("keras")
    if keras is None:
        return
    # Garbage is looked for after tests that have made much. What TensorFlow has kept of their
    # functions is then left out the next time: it would soon take longer than the tests.
    made_much = gc.get_count()[2] > 0
    keras.backend.clear_session(free_memory=made_much)
    if made_much:
        gc.freeze()
    keras.config.set_dtype_policy("float32")
