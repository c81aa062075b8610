"""Environments that a strategy refuses, since the processes would train apart."""

import json

import pytest
import tensorflow as tf

import tfdist

WORKERS = ["127.0.0.1:1", "127.0.0.1:2"]


@pytest.fixture
def tf_config(monkeypatch):
    """Sets TF_CONFIG for a task of a cluster of two workers."""

    def set_(task, index, **jobs):
        cluster = {"worker": WORKERS, **jobs}
        value = json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})
        monkeypatch.setenv("TF_CONFIG", value)

    return set_


@pytest.mark.parametrize(("task", "jobs"), [("ps", {"ps": ["127.0.0.1:3"]}), ("evaluator", {})])
def test_multi_worker_refuses_tasks_that_do_not_train(tf_config, task, jobs):
    tf_config(task, 0, **jobs)
    with pytest.raises(ValueError, match=f"`chief` and `worker`. Received: .* is {task} 0"):
        tfdist.MultiWorkerMirroredStrategy()


def test_multi_worker_refuses_to_be_one_of_several_without_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    with pytest.raises(ValueError, match="as one of 2, but without TF_CONFIG"):
        tfdist.MultiWorkerMirroredStrategy()


def test_horovod_refuses_to_be_one_of_several_of_tf_config(tf_config):
    tf_config("worker", 0)
    with pytest.raises(ValueError, match="as one of 2, of which Horovod knows 1: TF_CONFIG"):
        tfdist.HorovodStrategy()


def test_multi_worker_takes_tensorflows_communication_options(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1)
    tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    with pytest.raises(TypeError, match="communication_options"):
        tfdist.MultiWorkerMirroredStrategy(communication_options={"bytes_per_pack": 1})
