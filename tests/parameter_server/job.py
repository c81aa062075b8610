"""What every process of a job with faults runs; the chief makes the faults and notes what happened.

python -m tests.parameter_server.job FOLDER SCENARIO [INPUT]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import keras
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder

FOLDER, SCENARIO, INPUT = pathlib.Path(sys.argv[1]), sys.argv[2], (*sys.argv[3:], "static")[0]
TIMEOUT = 5 if SCENARIO == "servers" else 60  # nobody starts its servers again
CONFIG = json.loads(os.environ["TF_CONFIG"])


def name_of(task):
    return f"{task['type']}-{task['index']}"


def note(name, content):
    temporary = FOLDER / f".{name}"
    temporary.write_text(json.dumps(content))
    temporary.rename(FOLDER / name)


def send(name, number):
    os.kill(json.loads((FOLDER / f"pid-{name}").read_text()), number)


def start(name):
    """Starts a process of the job again, as whoever looks after it would."""
    job, index = name.split("-")
    config = CONFIG | {"task": {"type": job, "index": int(index)}}
    command = [sys.executable, "-m", "tests.parameter_server.job", *sys.argv[1:]]
    return subprocess.Popen(command, env=os.environ | {"TF_CONFIG": json.dumps(config)})


def data():
    return tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)


class Faults(keras.callbacks.Callback):
    """Calls the method of the scenario after each batch."""

    def on_train_begin(self, logs=None):
        self.noted = {"counted": []}
        self.stopped = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        getattr(self, SCENARIO)(self.epoch, batch)

    def on_epoch_end(self, epoch, logs=None):
        self.noted["counted"].append(logs["counted"])

    def workers(self, epoch, batch):
        """One worker is killed and comes back later; another one is stopped for some time."""
        if (epoch, batch) == (1, 5):
            send("worker-0", signal.SIGKILL)
        elif (epoch, batch) == (2, 5):
            send("worker-1", signal.SIGSTOP)
            self.stopped = time.monotonic()
        elif epoch == 2 and self.stopped:
            self.noted["meanwhile"] = batch - 5
            if batch == 12 or time.monotonic() - self.stopped > 10:
                # Longer than the rest of the epoch takes: it must wait for the one step.
                seconds = float(os.environ.get("STOPPED_SECONDS", "2"))
                threading.Timer(seconds, send, ("worker-1", signal.SIGCONT)).start()
                self.stopped = None
        elif (epoch, batch) == (3, 0):
            self.restarted = start("worker-0"), time.monotonic()
        elif epoch > 2:
            time.sleep(0.05)  # leaves the processor to the worker that starts
        if epoch > 3 and batch == BATCHES - 1:
            last = self.model.facts()["workers"][-BATCHES:]
            self.model.stop_training = 0 in last or time.monotonic() > self.restarted[1] + 60

    def servers(self, epoch, batch):
        """Each start ends with a kill but the last: first of the chief, then of the ps."""
        for number, victim in enumerate(("chief-0", "ps-0"), start=1):
            if (epoch, batch) == (number, 5) and not (FOLDER / f"killed-{victim}").exists():
                note(f"killed-{victim}", int(self.model.clock[0]))
                send(victim, signal.SIGKILL)


def main():
    note(f"pid-{name_of(CONFIG['task'])}", os.getpid())
    strategy = tfdist.Strategy(input=INPUT, worker_timeout=TIMEOUT)
    with strategy.scope():
        model = Counting([0.02] * strategy.num_workers)
        model.compile(Recorder())
    model.built = True
    faults, callbacks, epochs = Faults(), [], 200
    if SCENARIO == "servers":
        epochs = 4
        backup = keras.callbacks.BackupAndRestore(str(FOLDER / "backup"), delete_checkpoint=False)
        callbacks.append(backup)
    model.fit(data(), epochs=epochs, verbose=0, callbacks=[*callbacks, faults])
    note("facts", {**model.facts(), **faults.noted})


if __name__ == "__main__":
    main()
