"""Reducers: how they are started, and what is said when one dies."""

import json
import signal

import pytest

from tests.cli.launching import messages
from tfdist.cluster import Cluster, choose_strategy

_TRAINING = """
import threading
import keras, numpy as np, tfdist

dies = rank == "reducer-0"
if dies:
    threading.Thread(
        target=lambda: (wait_for("trains"), os.kill(os.getpid(), signal.SIGKILL)), daemon=True
    ).start()
strategy = tfdist.Strategy("auto")
with strategy.scope():
    model = keras.Sequential([keras.Input((160,)), keras.layers.Dense(160)])
    model.compile("sgd", "mse")
x = np.ones((64, 160), "float32")
begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: note("trains"))
model.fit(x, x, batch_size=16, epochs=100_000, verbose=0, callbacks=[begun])
"""


def test_reducers_are_started_besides_the_ranks(launcher):
    body = """
    note(f"environ-{rank}", json.dumps(dict(os.environ)))
    """
    finished = launcher.run(body, "--reducers", "2", "--log-dir", launcher.directory / "logs")
    assert (finished.returncode, finished.stderr) == (0, b"")
    clusters = []
    for name in ("0", "1", "reducer-0", "reducer-1"):
        environ = json.loads(launcher.note(f"environ-{name}"))
        cluster = Cluster.from_environment(environ)
        clusters.append(cluster.jobs)
        assert choose_strategy(environ, 1, horovod_installed=True)[0] == "multi_worker"
        assert cluster.size == 2
        kind, _, number = name.rpartition("-")
        assert (cluster.task_type, cluster.task_index) == (kind or "worker", int(number))
        assert (launcher.directory / "logs" / f"{kind or 'rank'}-{number}.log").exists()
    assert clusters == clusters[:1] * 4
    assert [len(clusters[0][job]) for job in ("worker", "reducer")] == [2, 2]


@pytest.mark.parametrize(
    ("options", "count", "text"),
    [
        (["--strategy", "horovod"], 2, "--reducers is for the strategy multi_worker"),
        (["--ps", "1"], 3, "--reducers is for the strategy multi_worker"),
        (["--devices-per-worker", "2"], 2, "leave out --devices-per-worker"),
        ([], 1, "or --max in a job with --min. Received: -n 1 --reducers 2"),
        (["--min", "1", "--max", "1"], 1, "Received: -n 1 --max 1 --reducers 2"),
    ],
)
def test_where_nobody_could_use_reducers_they_are_refused(launcher, options, count, text):
    finished = launcher.run("", "--reducers", "2", *options, count=count)
    assert finished.returncode == 2
    assert text in finished.stderr.decode()


def test_the_variable_of_horovodrun_is_refused(launcher):
    finished = launcher.run("", environ={"TFDIST_REDUCERS": "1"})
    assert finished.returncode == 2
    assert b"give --reducers instead. Received: TFDIST_REDUCERS='1'" in finished.stderr


@pytest.mark.full
def test_a_reducer_that_dies_is_named(launcher):
    finished = launcher.run(_TRAINING, "--reducers", "1", timeout=120)
    assert finished.returncode == 137
    assert "reducer 0 was killed by SIGKILL" in messages(finished)[0]


@pytest.mark.full
@pytest.mark.parametrize("options", [[], ["--min", "1"]])
def test_ctrl_c_lets_ranks_end_their_step_and_save(launcher, options):
    body = """
    import keras, numpy as np, tfdist

    strategy = tfdist.Strategy("auto")
    with strategy.scope():
        model = keras.Sequential([keras.Input((600,)), keras.layers.Dense(600)])
        model.compile("sgd", "mse", steps_per_execution=50)
    x = np.ones((3200, 600), "float32")
    begun = lambda *_, **__: note(f"trains-{rank}")
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=begun)]
    try:
        model.fit(x, x, batch_size=16, epochs=100_000, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        print("saves its model")
        raise
    """
    process = launcher.start(body, "--reducers", "1", "--grace-period", "60", *options)
    launcher.wait_for("trains-0", "trains-1", timeout=90)
    process.send_signal(signal.SIGINT)
    output, errors = (text.decode() for text in process.communicate(timeout=120))
    assert process.returncode == 130
    assert "saves its model" in output and "[1] saves its model" in output
    assert "reducer" not in errors
    assert "[reducer" not in output


@pytest.mark.full
def test_workers_at_different_sums_end_the_job(launcher):
    # Rank 1 fails in its second step while it waits for the sum, as rank 0 is late.
    body = """
    import time, tensorflow as tf, tfdist
    from tfdist.step.exchange import all_reduce

    strategy = tfdist.Strategy("auto")

    def after(seconds, value):
        def waited(value, seconds):
            time.sleep(float(seconds))
            return value

        value_later = tf.numpy_function(waited, [value, seconds], value.dtype)
        return tf.ensure_shape(value_later, value.shape)

    def of_replica(vector, late, bad):
        first = all_reduce([after(late, vector)])[0]
        with tf.control_dependencies([tf.debugging.assert_equal(after(2 * bad, bad), 0.0)]):
            return all_reduce([first + 1.0])[0]

    step = tf.function(lambda *given: strategy.run(of_replica, given))
    for turn in range(5):
        late, bad = 6.0 * (turn == 1 and rank == 0), float(turn == 1 and rank == 1)
        try:
            step(tf.ones([70_000]), tf.constant(late), tf.constant(bad))
        except tf.errors.InvalidArgumentError:
            print("goes on")
    """
    finished = launcher.run(body, "--reducers", "1", timeout=120)
    assert finished.returncode == 1
    assert b"[1] goes on" in finished.stdout
    # Who sees it first says so: the reducer, or a rank that the reducer has left.
    said = finished.stderr.decode()
    assert "The workers are at different sums" in said or "lost its connection to" in said
