"""What happens around ranks: they are stopped for a while, a disk is full, a clock is set."""

import pytest

from tests.elastic.test_faults import ENGINES, check, train
from tests.elastic.test_faults import one_device as one_device  # a fixture
from tests.faults import surroundings

pytestmark = [pytest.mark.full, pytest.mark.parametrize("engine", ENGINES)]

# What is around a job of three ranks, what happens to it, options of `train`, which ranks are left.
SURROUNDINGS = {
    "is stopped for five seconds": ("", ["1:PAUSE:step 3"], {"stall": 60}, [0, 1, 2]),
    "the clocks of all ranks are one day ahead; one dies; replaced": (
        "clock",
        ["2:CLOCK:step 3", "1:SIGKILL:step 6"],
        {"least": 3, "restarts": 1},
        [0, 2, 3],
    ),
    "the disk of the launcher is full; one dies": (
        "disk",
        ["1:SIGKILL:step 8"],
        {"restarts": 1},
        [0, 2],
    ),
}
SAID = {"disk": "cannot join the others: the disk is full"}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_result_is_that_of_one_device(name, engine, tmp_path, one_device):
    kind, faults, options, left = SURROUNDINGS[name]
    with surroundings.around(kind, tmp_path) as variables:
        done = train(tmp_path, engine, *faults, **options, **variables)
    assert done.returncode == 0, done.stderr
    assert SAID.get(kind, "") in done.stderr
    assert (tmp_path / "ahead").exists() == (kind == "clock")
    if kind == "":
        assert "training goes on" not in done.stderr, "nobody was lost"
    check(tmp_path, left, one_device())
    assert not surroundings.left_behind(tmp_path)
