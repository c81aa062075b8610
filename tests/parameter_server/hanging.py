"""A chief frees a tensor on a worker that hangs; others' threads must not wait for that.

python -m tests.parameter_server.hanging FOLDER
"""

import json
import os
import pathlib
import signal
import sys
import time

import tensorflow as tf

import tfdist
from tfdist import compat

FOLDER = pathlib.Path(sys.argv[1])
SECONDS = 20


def main():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    (FOLDER / f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))
    strategy = tfdist.ParameterServerStrategy()
    double = tf.function(lambda value: 2 * value)
    given = tf.ones([1000])
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        total = float(tf.reduce_sum(double(given)))
    os.kill(int((FOLDER / "pid-worker-0").read_text()), signal.SIGSTOP)
    del given
    time.sleep(0.5)  # it is freed in another thread
    compat.run_on_workers(strategy.coordinator, lambda worker, device: None, 2)
    end = time.monotonic() + SECONDS
    while not strategy.coordinator.done() and time.monotonic() < end:
        time.sleep(0.01)
    (FOLDER / "facts").write_text(json.dumps([total, strategy.coordinator.done()]))
    os.kill(int((FOLDER / "pid-worker-0").read_text()), signal.SIGCONT)


if __name__ == "__main__":
    main()
