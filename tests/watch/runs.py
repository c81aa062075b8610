"""Runs as data, for the views."""

from tfdist.watch.numbers import Epoch, RankNumbers, Run, Traffic, WorkerNumbers


def rank(compute, **more):
    """A rank's ten steps of 100 ms, of which it waits 10 ms for data."""
    exchange = 0.8 - compute
    known = {"compute": compute, "exchange": exchange, "update": 0.05, "samples": 320.0}
    numbers = {"seconds": 1.0, "calls": 0.95, "memory": 5 * 10**8, "peak_memory": 6 * 10**8}
    network = {"sent": 3 * 10**6, "received": 2 * 10**6}
    return RankNumbers(host="host-a", steps=10, **{**known, **numbers, **network, **more})


def run(epochs=6, ranks=4, **more):
    """A run of several ranks, of which rank 2 is slow."""
    found = []
    for number in range(epochs):
        logs = {"loss": 2.0 / (number + 1), "val_loss": 2.2 / (number + 1)}
        logs |= {"sparse_categorical_accuracy": 1 - 0.5 / (number + 1), "learning_rate": 0.01}
        logs |= {"staleness": 1.5, "staleness_max": 3.0, "replicas": ranks, "recoveries": 1}
        own = [rank(0.7 if n == 2 else 0.3 + 0.01 * n) for n in range(ranks)]
        workers = {n: WorkerNumbers(100, 1.5, 3, 7) for n in range(3)}
        traffic = Traffic(4 * 10**6, 10**8)
        found.append(Epoch(number, 1000.0 + 60 * number, logs, own, traffic, workers))
    environment = {"strategy": "MultiWorkerMirroredStrategy, 4 replicas", "Python": "3.11.7"}
    environment["options"] = "compression=" + "x" * 200  # a word that must be broken
    title = "Training a_model_with_a_name_that_is_longer_than_a_narrow_screen"
    return Run(title, 940.0, epochs, environment, ["Memory of GPUs: none."], found, **more)
