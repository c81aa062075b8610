"""A chief, workers and parameter servers: how they are started, and that TensorFlow goes along."""

import json

import pytest

from tests.cli.launching import messages
from tfdist.cluster import Cluster, choose_strategy
from tfdist.launcher import ranks

# --- how they are started -------------------------------------------------------------------------


def test_each_process_finds_its_place_and_is_told_apart(launcher):
    body = """
    note(f"environ-{rank}", json.dumps(dict(os.environ)))
    if rank == 0:
        wait_for("environ-1", "environ-2", "environ-ps-0", "environ-ps-1")
    print("this is", task["type"], task["index"])
    """
    logs = launcher.directory / "logs"
    finished = launcher.run(body, "--ps", "2", "--log-dir", logs, count=3)
    assert (finished.returncode, finished.stderr) == (0, b"")
    tasks = {
        "0": ("chief", 0, "rank-0.log", b""),
        "1": ("worker", 0, "rank-1.log", b"[1] "),
        "2": ("worker", 1, "rank-2.log", b"[2] "),
        "ps-0": ("ps", 0, "ps-0.log", b"[ps 0] "),
        "ps-1": ("ps", 1, "ps-1.log", b"[ps 1] "),
    }
    clusters, shown = [], []
    for name, (job, index, log, prefix) in tasks.items():
        environ = json.loads(launcher.note(f"environ-{name}"))
        cluster = Cluster.from_environment(environ)
        clusters.append(dict(cluster.jobs))
        assert (cluster.task_type, cluster.task_index) == (job, index)
        assert choose_strategy(environ, 1, horovod_installed=True)[0] == "parameter_server"
        # Requests of both workers may wait for each other.
        assert int(environ["TF_NUM_INTEROP_THREADS"]) > 2
        assert (logs / log).read_bytes() == f"this is {job} {index}\n".encode()
        shown.append(prefix + f"this is {job} {index}".encode())
    assert clusters == clusters[:1] * 5
    assert [len(clusters[0][job]) for job in ("chief", "worker", "ps")] == [1, 2, 2]
    assert sorted(finished.stdout.splitlines()) == sorted(shown)
    assert len({address for job in clusters[0].values() for address in job}) == 5


def test_there_is_one_parameter_server_if_nothing_is_said(launcher):
    finished = launcher.run(
        "print(len(config['cluster']['ps']))", "--strategy", "parameter_server", "--verbose"
    )
    assert b"1" in finished.stdout.splitlines()
    assert "3 processes, strategy parameter_server, logs in" in messages(finished)[0]


def test_an_evaluator_is_started_beside_and_has_time_to_end(launcher):
    body = """
    if rank == "evaluator-0":
        note("environ", json.dumps(dict(os.environ)))
        wait_for("chief-ends")
        time.sleep(2.0)  # longer than the others get
        note("evaluated")
        print("done")
    else:
        wait_for("environ")
        if rank == 0:
            note("chief-ends")
        else:
            time.sleep(60)
    """
    finished = launcher.run(body, "--ps", "1", "--evaluator", "--grace-period", "0.5")
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert finished.stdout == b"[evaluator 0] done\n"
    assert (launcher.directory / "evaluated").exists()
    environ = json.loads(launcher.note("environ"))
    cluster = Cluster.from_environment(environ)
    assert (cluster.task_type, len(cluster.jobs["evaluator"])) == ("evaluator", 1)
    assert choose_strategy(environ, 1, horovod_installed=True)[0] == "mirrored"


@pytest.mark.parametrize("when", ["before", "after"])
def test_training_does_not_need_the_evaluator(launcher, when):
    body = f"""
    if rank == "evaluator-0":
        wait_for(*["chief-ends"][:{int(when == "after")}])
        note("evaluator-ends")
        sys.exit(3)
    if rank == 0:
        note("chief-ends")
        wait_for("evaluator-ends")
        time.sleep({1.0 if when == "before" else 0.0})
    else:
        time.sleep(60)
    """
    finished = launcher.run(body, "--ps", "1", "--evaluator", "--grace-period", "0.5")
    assert finished.returncode == 0
    said = messages(finished)
    assert said[0].startswith("tfdist run: evaluator 0 ended with exit status 3 after")
    assert said[0].endswith("s; training does not need it")


def test_an_evaluator_needs_parameter_servers(launcher):
    finished = launcher.run("pass", "--evaluator")
    assert finished.returncode == 2
    assert b"--evaluator is for jobs with --ps" in finished.stderr


def test_the_workers_get_the_gpus():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    with ranks.environments("parameter_server", 3, environ, ps=1) as found:
        own = [environ["CUDA_VISIBLE_DEVICES"] for environ in found]
    assert own == ["", "0,1", "2,3", ""]
    with ranks.environments("parameter_server", 3, {"CUDA_VISIBLE_DEVICES": "5"}, ps=1) as found:
        own = [environ["CUDA_VISIBLE_DEVICES"] for environ in found]
    assert own == ["", "5", "5", ""]


# --- with TensorFlow ------------------------------------------------------------------------------

TRAINS = """
from tfdist.cluster import Cluster, serve, wait_for_servers

cluster = Cluster.from_environment()
if rank != 0:
    serve(cluster)
    note(f"ended-{rank}")
    sys.exit()
wait_for_servers(cluster)
import tensorflow as tf


class Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    def __del__(self):
        pass  # TensorFlow's would wait for lost workers, at the end of the process


resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = Coordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
add = tf.function(lambda: total.assign_add(1.0))
for step in range(40):
    if step == 20:
        coordinator.join()
        os.kill(int((here / f"pid-{sys.argv[2]}").read_text()), signal.SIGKILL)
    coordinator.schedule(add)
coordinator.join()
print("total", float(total))
"""


@pytest.mark.full
def test_tensorflow_trains_on_without_a_worker(launcher):
    finished = launcher.run(TRAINS, "--ps", "1", count=3, arguments=["2"], timeout=120)
    assert finished.returncode == 0, finished.stderr.decode()
    assert finished.stdout == b"total 40.0\n"
    assert "rank 2 was killed by SIGKILL" in messages(finished)[0]
    launcher.wait_for("ended-1", "ended-ps-0", timeout=0)
    assert launcher.processes() == []


@pytest.mark.full
def test_tensorflow_says_that_a_parameter_server_is_lost(launcher):
    """It is started again, but TensorFlow's own loop cannot go on with an empty one."""
    finished = launcher.run(TRAINS, "--ps", "1", arguments=["ps-0"], timeout=120)
    assert finished.returncode == 1
    said = messages(finished)
    assert "ps 0 was killed by SIGKILL" in said[0] and "it is started again (1 of 3)" in said[0]
    assert said[1].startswith("tfdist run: rank 0 ended with exit status 1 after")
    assert b"UnavailableError" in finished.stderr
