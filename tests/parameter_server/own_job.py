"""What every process of a job runs whose workers make their updates themselves.

python -m tests.parameter_server.own_job FOLDER KILLS EPOCHS

The chief kills worker 0 so many times, and starts it again: in turns, at moments that have nothing
to do with batches, and while workers wait for the lock. Then it trains for so many epochs more.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import keras
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder

FOLDER, KILLS, EPOCHS = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
CONFIG = json.loads(os.environ["TF_CONFIG"])


def start_worker():
    config = CONFIG | {"task": {"type": "worker", "index": 0}}
    command = [sys.executable, "-m", "tests.parameter_server.own_job", *sys.argv[1:]]
    return subprocess.Popen(command, env=os.environ | {"TF_CONFIG": json.dumps(config)})


class Killer(threading.Thread):
    """Kills worker 0, and starts it again, whatever the training does meanwhile."""

    def __init__(self, strategy, model):
        super().__init__(daemon=True)
        self.model = model
        self.strategy = strategy
        self.kills = 0
        self.at_rest = []

    def run(self):
        process, pid = None, int((FOLDER / "pid-worker-0").read_text())
        while self.kills < KILLS:
            self.wait_for_updates()
            if self.kills % 2:
                self.kill_at_rest(pid)
            else:
                time.sleep(random.random() / 2)
                os.kill(pid, signal.SIGKILL)
            if process is not None:
                process.wait()
            self.kills += 1
            process = start_worker()
            pid = process.pid
            self.wait_until(lambda: 0 in self.strategy.lost)
            self.wait_until(lambda: 0 not in self.strategy.lost)
        self.wait_for_updates()

    def kill_at_rest(self, pid):
        """Kills the worker while it waits; notes the updates before, and after some time."""
        own = self.model.train_function._own
        with own.at_rest() as version:
            time.sleep(0.3)  # a step takes 0.02
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            self.at_rest.append([version, own.ledger.updates()])

    def wait_for_updates(self):
        """Waits until worker 0 has made updates again."""
        before = self.made()
        self.wait_until(lambda: self.made() > before)

    def wait_until(self, condition):
        while not condition():
            time.sleep(0.01)

    def made(self):
        return self.strategy.staleness_report().worker(0).histogram.total()


class Enough(keras.callbacks.Callback):
    """Notes what each epoch has counted, and ends the training some epochs after the last kill."""

    def __init__(self, killer):
        super().__init__()
        self.killer, self.left, self.counted = killer, EPOCHS, []

    def on_epoch_end(self, epoch, logs=None):
        self.counted.append(logs["counted"])
        if not self.killer.is_alive():
            self.left -= 1
        self.model.stop_training = self.left == 0


def main():
    task = CONFIG["task"]
    (FOLDER / f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))
    strategy = tfdist.Strategy(staleness=tfdist.staleness.InverseLR())
    with strategy.scope():
        model = Counting([0.02] * strategy.num_workers)
        model.compile(Recorder(1.0))
    model.built = True
    killer = Killer(strategy, model)
    if KILLS:
        killer.start()
    enough = Enough(killer)
    data = tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)
    model.fit(data, epochs=2600, verbose=0, callbacks=[enough])
    report = strategy.staleness_report()
    facts = model.facts() | {
        "counted": enough.counted,
        "at rest": killer.at_rest,
        "version": strategy.version,
        "reported": sorted(report.histogram.elements()),
        "reported rate": report.learning_rate_factor,
        "why chief": model.train_function.why_chief,
    }
    (FOLDER / "facts").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
