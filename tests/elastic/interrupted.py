"""A rank that adds up by Horovod again and again, in one group after the other.

Reads lines from its standard input: the variables of a group as JSON, with which the rank forms it
and adds up, and "interrupt", which frees it. Says "formed" and "free" in turn, or "not formed".

python -m tests.elastic.interrupted LENGTH
"""

from __future__ import annotations

import json
import sys
import threading

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.elastic.formation import Formation
from tfdist.strategies.horovod.group_connection import HorovodConnection, NotFormedError


def add_up(connection: HorovodConnection, value: tf.Tensor) -> None:
    """Until the rank is interrupted."""
    while True:
        try:
            connection.sum(value)
        except Exception as error:
            if not connection.is_loss(error):
                raise
            return


def main() -> None:
    """Forms groups until there are no more."""
    connection = HorovodConnection(hvd)
    value = tf.ones([int(sys.argv[1])])
    for number, line in enumerate(iter(sys.stdin.readline, "")):
        try:
            connection.form(Formation(number + 1, [], [], variables=json.loads(line)), 0)
        except NotFormedError:
            connection.leave()
            print("not formed", flush=True)
            continue
        adding = threading.Thread(target=add_up, args=(connection, value))
        adding.start()
        print("formed", flush=True)
        assert sys.stdin.readline() == "interrupt\n"
        connection.interrupt()
        adding.join()
        connection.leave()
        print("free", flush=True)


if __name__ == "__main__":
    main()
