"""`horovodrun` with TFDIST_REDUCERS, and `mpirun` with `tfdist run`: some processes only sum."""

import pathlib
import shutil

import numpy as np
import pytest

from tests.equivalence.test_launchers import COMMANDS, PYTHON, environment, run
from tests.multi_process.scenarios import reducers
from tfdist.cluster.addresses import reserved_ports
from tfdist.strategies.horovod.backend import is_installed

SCRIPT = str(pathlib.Path(__file__).with_name("summed_by_reducers.py"))


def check(folder):
    """Compares what two workers have trained with what one device trains."""
    found = [dict(np.load(file)) for file in sorted(folder.glob("*.npz"))]
    assert [rank.pop("exchanges") > 0 for rank in found] == [True, True]
    model = reducers.model_of()
    reducers.fit(model)
    for rank in found:
        for place, expected in enumerate(model.get_weights()):
            name = f"arr_{place}"
            np.testing.assert_array_equal(rank[name], found[0][name])
            np.testing.assert_allclose(rank[name], expected, rtol=0, atol=1e-6)


@pytest.mark.skipif(not is_installed(), reason="needs Horovod")
def test_the_last_ranks_of_horovodrun_sum_for_the_others(tmp_path):
    program, *options = COMMANDS["horovodrun"]
    options[options.index("-np") + 1] = "4"
    command = (program, *options, SCRIPT, str(tmp_path), "2")
    run([command], [environment(TFDIST_REDUCERS="2")])
    check(tmp_path)


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_mpirun_starts_workers_and_reducers_by_their_host(tmp_path):
    with reserved_ports(1) as (port,):
        place = ("--rendezvous", f"127.0.0.1:{port}", "--machines", "3")
        common = (*place, "--timeout", "150", SCRIPT, str(tmp_path), "1")
        started = (PYTHON, "-m", "tfdist", "run")
        worker = ("-np", "2", *started, "-n", "1", *common)
        reducer = ("-np", "1", *started, "-n", "0", "--reducers", "1", *common)
        command = ("mpirun", "--oversubscribe", *worker, ":", *reducer)
        run([command], [environment(TFDIST_SECRET="known to all of them")])
    check(tmp_path)
