"""A rank that is lost while it reads weights for all others ends the job: nobody has them."""

import pytest

from tests.elastic.test_faults import ONE_USUAL, launch


@pytest.mark.parametrize("engine", ONE_USUAL)
def test_a_backup_that_nobody_has_read_to_its_end_is_an_error(engine, tmp_path):
    command = [
        "tfdist",
        "run",
        "-n",
        "3",
        "--min",
        "1",
        "--strategy",
        engine,
        "--stall-timeout",
        "3",
    ]
    done = launch(tmp_path, *command, "-m", "tests.elastic.restoring", str(tmp_path / "backup"))
    assert done.returncode != 0
    assert "Rank 0 was lost while it read weights for the others" in done.stderr
