"""A group that changes again and again: the traces of old groups are forgotten."""

import json

import pytest

from tests.elastic.test_faults import DEADLINE, ENGINES, launch


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_no_group_keeps_the_graphs_of_its_steps(tmp_path, engine):
    command = ["tfdist", "run", "-n", "2", "--min", "2", "--strategy", engine]
    command += ["--timeout", str(DEADLINE), "-m", "tests.elastic.retraced", str(tmp_path)]
    done = launch(tmp_path, *command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    first, *_, last = json.loads((tmp_path / "found.json").read_text())
    assert last["groups"] >= first["groups"] + 8, "too few to tell"
    assert last["graphs"] <= first["graphs"] + 3
