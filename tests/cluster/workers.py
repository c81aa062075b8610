"""Processes for the tests of this folder, started as `python -m tests.cluster.workers NAME ...`."""

import functools
import os
import signal
import subprocess
import sys
import time

from tfdist.cluster import wait_for_peers


def start(name, *arguments, **environ):
    """A process that runs the function `name` of this file.

    It minds Ctrl-C, which what a shell starts in the background inherits as ignored.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.workers", name, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def finish(processes, timeout=60):
    """Their exit statuses and outputs; none is left running."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, out.strip(), err.strip()) for p, (out, err) in zip(processes, outputs)]


def wait(rank, addresses, delay="0", timeout="30"):
    """Waits for the peers, then takes its port as a server would."""
    from tfdist.cluster.addresses import listen, split_address

    time.sleep(float(delay))
    addresses = addresses.split(",")
    started = time.monotonic()
    try:
        wait_for_peers(addresses, int(rank), float(timeout))
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
    else:
        with listen(split_address(addresses[int(rank)])[1]):
            print("all there")
            time.sleep(1)  # those who still wait must find somebody
    print(f"{time.monotonic() - started:.2f}")


def serve_and_train(rank, *rounds):
    """In each round a TensorFlow server on new ports; in the last one a real strategy."""
    import random

    import tensorflow as tf

    from tfdist.cluster import Cluster

    rank = int(rank)
    servers = []
    for addresses in (text.split(",") for text in rounds[:-1]):
        time.sleep(random.random() / 20)
        wait_for_peers(addresses, rank, 30)
        cluster = {"worker": addresses}
        servers.append(tf.distribute.Server(cluster, job_name="worker", task_index=rank))
    addresses = rounds[-1].split(",")
    wait_for_peers(addresses, rank, 30)
    os.environ["TF_CONFIG"] = Cluster({"worker": addresses}, "worker", rank).to_tf_config()
    train()


def train():
    """An all-reduce over the workers of TF_CONFIG."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def step():
        context = tf.distribute.get_replica_context()
        rank = strategy.cluster_resolver.task_id
        return context.all_reduce("SUM", tf.constant(float(rank + 1)))

    print("sum", float(strategy.run(step)))


def watch(address, timeout="30"):
    """Stays until the chief has ended."""
    from tfdist.cluster import chief

    chief.wait_for_end(address, float(timeout))
    print("the chief has ended")


def greet(address, seconds="0"):
    """Listens as a gRPC server does, and ends each connection after so many seconds."""
    from tfdist.cluster.addresses import listen, split_address

    with listen(split_address(address)[1]) as server:
        server.setblocking(True)
        while True:
            connection, _ = server.accept()
            connection.sendall(b"hello")
            print("greeted", flush=True)
            time.sleep(float(seconds))
            connection.close()


def serve():
    """A worker or ps of TF_CONFIG."""
    import tensorflow as tf

    from tfdist.cluster import Cluster, serve

    tf.get_logger().setLevel("INFO")
    serve(Cluster.from_environment())
    raise SystemExit(0)


def coordinate():
    """A chief that has the workers of TF_CONFIG add ones to a variable, and stays."""
    import tensorflow as tf

    from tfdist.cluster import Cluster, wait_for_servers

    wait_for_servers(Cluster.from_environment())
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)
    add = tf.function(lambda: total.assign_add(1.0))
    for _ in range(10):
        coordinator.schedule(add)
    coordinator.join()
    print(f"total {float(total)}", flush=True)
    time.sleep(600)


def slurm():
    """An all-reduce between the tasks of a Slurm step."""
    from tfdist.cluster import slurm_cluster

    cluster = slurm_cluster(os.environ)
    wait_for_peers(cluster.workers, cluster.rank, 30)
    os.environ["TF_CONFIG"] = cluster.to_tf_config()
    train()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
