"""Reducers beside the ranks of several machines, and on machines of their own."""

import json
import subprocess

import keras
import numpy as np
import pytest

from tests.cli.launching import Launcher, all_end, messages
from tests.cli.machines import NOTES, SECRET, said, start, wait_until_served
from tests.traffic import network

TRAINING = """
    import keras, numpy as np, tfdist
    keras.utils.set_random_seed(1)
    strategy = tfdist.Strategy("auto")
    with strategy.scope():
        model = keras.Sequential([keras.Input((160,)), keras.layers.Dense(160)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(48, 160)).astype("float32")
    model.fit(x, x, batch_size=16, epochs=2, shuffle=False, verbose=0)
    np.save(here / f"weights-{rank}.npy", model.get_weights()[0])
    note(f"engine-{rank}", type(strategy.engine).__name__)
"""


def test_ranks_and_reducers_are_numbered_over_all_machines(two, address, tmp_path):
    first, second = two
    third = Launcher(tmp_path / "third")
    body = NOTES + '    print("here")\n'
    options = {"machines": 3, "notes": first}
    serving = start(first, body, address, "--reducers", 1, count=2, **options)
    wait_until_served(address)
    others = [
        start(second, body, address, "--reducers", 2, count=0, **options),
        start(third, body, address, **options),
    ]
    ends = [said(process) for process in (serving, *others)]
    assert [status for status, _, _ in ends] == [0, 0, 0]
    names = ["0", "1", "2", "reducer-0", "reducer-1", "reducer-2"]
    notes = [json.loads(first.note(f"task-{name}")) for name in names]
    tasks = [(task["type"], task["index"]) for task, _, _ in notes]
    assert tasks == [*(("worker", i) for i in range(3)), *(("reducer", i) for i in range(3))]
    clusters = [cluster for _, cluster, _ in notes]
    assert clusters == clusters[:1] * 6
    assert (len(clusters[0]["worker"]), len(clusters[0]["reducer"])) == (3, 3)
    assert len({*clusters[0]["worker"], *clusters[0]["reducer"]}) == 6
    shown = [line for _, output, _ in ends for line in output.splitlines()]
    assert {f"[reducer {number}] here" for number in range(3)} <= set(shown)


def test_a_reducer_that_dies_ends_the_job_on_all_machines(two, address):
    body = NOTES + (
        "    if rank == 'reducer-0':\n"
        "        wait_for('task-0', 'task-1')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(600)\n"
    )
    first, second = two
    serving = start(first, body, address, count=2, notes=first)
    wait_until_served(address)
    other = start(second, body, address, "--reducers", 1, count=0, notes=first)
    for status, _, errors in map(said, (serving, other)):
        assert status == 137
        assert "reducer 0 was killed by SIGKILL" in errors
    assert all_end(first.pids("pid-0", "pid-1"), within=1)


@pytest.mark.full
def test_where_reducers_come_later_strategies_without_a_use_for_them_train_on(two, address):
    body = """
    import keras, numpy as np, tfdist

    def fit(strategy, epochs, *callbacks):
        with strategy.scope():
            model = keras.Sequential([keras.Input((160,)), keras.layers.Dense(160)])
            model.compile("sgd", "mse")
        x = np.ones((48, 160), "float32")
        model.fit(x, x, batch_size=24, epochs=epochs, verbose=0, callbacks=callbacks)

    class UntilReducers(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            note(f"trains-{rank}")
            self.model.stop_training = strategy.engine.exchanges is not None

    strategy = tfdist.Strategy("auto")
    fit(strategy, 100_000, UntilReducers())
    apart = tfdist.Strategy("auto", local=tfdist.LocalSGD(2))
    fit(apart, 2)
    note(f"used-{rank}", apart.engine.exchanges)
    """
    first, second = two
    serving = start(first, body, address, "--min", 1, count=2, notes=first)
    first.wait_for("trains-0", "trains-1", timeout=90)
    other = start(second, body, address, "--min", 1, "--reducers", 1, count=0, notes=first)
    for status, _, errors in (said(process, timeout=120) for process in (serving, other)):
        assert status == 0, errors
    assert [first.note(f"used-{rank}") for rank in range(2)] == ["None", "None"]


def test_reducers_of_a_single_rank_are_refused_when_all_machines_have_come(two, address):
    first, second = two
    serving = start(first, NOTES, address, notes=first)
    wait_until_served(address)
    other = start(second, NOTES, address, "--reducers", 2, count=0, notes=first)
    for status, _, errors in map(said, (serving, other)):
        assert status == 2
        assert "must be at least 2. Received: 1, and 2 reducer(s)" in errors
    assert not list(first.directory.glob("task-*"))


@pytest.mark.parametrize(
    "options",
    [[], ["--reducers", "2"], ["--rendezvous", "localhost:1", "--machines", "2"]],
    ids=str,
)
def test_no_ranks_are_refused_where_nobody_else_has_them(launcher, options):
    finished = launcher.run("", *options, count=0, environ=SECRET)
    assert finished.returncode == 2
    assert "Invalid value for '-n': it must be at least 1" in messages(finished)[0]
    assert "Received: -n 0" in messages(finished)[0]


@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_hosts_train_what_one_device_trains(tmp_path):
    """Two hosts have a rank each, and a third one sums."""
    launchers = [Launcher(tmp_path / str(number)) for number in range(3)]
    options = ["--machines", "3", "--timeout", "120"]
    with network.hosts(3) as hosts:
        meeting = ["--rendezvous", f"{hosts[0].address}:2222", *options]
        processes = []
        for number, (host, launcher) in enumerate(zip(hosts, launchers)):
            sums = number == 2
            given = ["--reducers", "1"] if sums else []
            command = launcher.command(TRAINING, *meeting, *given, count=0 if sums else 1)
            command[command.index(str(launcher.script)) + 1] = str(tmp_path)
            environ = launcher.environment(**SECRET)
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            processes.append(host.start(command, env=environ, **streams))
        ends = [said(process, timeout=150) for process in processes]
    assert [status for status, _, _ in ends] == [0, 0, 0], ends
    assert {(tmp_path / f"engine-{rank}").read_text() for rank in range(2)} == {"ReducersEngine"}
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((160,)), keras.layers.Dense(160)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(48, 160)).astype("float32")
    model.fit(x, x, batch_size=16, epochs=2, shuffle=False, verbose=0)
    weights = [np.load(tmp_path / f"weights-{rank}.npy") for rank in range(2)]
    np.testing.assert_array_equal(*weights)
    np.testing.assert_allclose(weights[0], model.get_weights()[0], rtol=0, atol=1e-6)
