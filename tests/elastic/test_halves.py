"""Sums in groups that change: those of half precision are rounded once, and some are empty."""

import json

import pytest

from tests.elastic.test_faults import DEADLINE, ENGINES, launch


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_three_ranks_add_up_half_precision_in_float32(tmp_path, engine):
    command = ["tfdist", "run", "-n", "3", "--min", "2", "--strategy", engine]
    command += ["--timeout", str(DEADLINE), "-m", "tests.elastic.halves", str(tmp_path)]
    done = launch(tmp_path, *command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"ranks": 3, "total": [2050.0] * 9, "shapes": [[0, 3], [0], [0]]}
