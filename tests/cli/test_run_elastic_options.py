"""Options of elastic jobs that do not fit the others are refused before anything is started."""

import pytest
from click.testing import CliRunner

from tfdist.cli.main import cli

REFUSED = {
    "--restarts 1": "--restarts is for jobs with --min. Received: --restarts 1",
    "--spares 2": "--spares is for jobs with --min. Received: --spares 2",
    "--min 1 --spares 2": "--spares is for jobs whose ranks are replaced: give --restarts too",
    "--min 1 --rejoin-timeout 5": "--rejoin-timeout is for jobs whose ranks are replaced",
    "--min 3": "--min must be at most -n. Received: --min 3 -n 2",
    "--min 1 --ps 1": "--min is for the strategies multi_worker, horovod",
    "--min 1 --devices-per-worker 2": "leave out --devices-per-worker",
    "--min 1 --restarts 1 --spares 2": "--spares must be at most --restarts",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_fit_is_refused(options, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('started')")
    done = CliRunner().invoke(cli, ["run", "-n", "2", *options.split(), str(script)])
    assert done.exit_code == 2
    assert REFUSED[options] in " ".join(done.output.split())
