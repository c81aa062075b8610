"""What is said of clusters that cannot work, before anything is connected."""

import pytest
import tensorflow as tf

import tfdist
from tfdist.cluster.addresses import free_ports, listen, reserved_ports


def resolver(jobs):
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
    )


@pytest.mark.parametrize("missing", ["worker", "ps"])
def test_a_cluster_that_lacks_a_part_is_refused(missing):
    jobs = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    del jobs[missing]
    with pytest.raises(ValueError, match=f"parameter servers needs a `{missing}`.* Received: jobs"):
        tfdist.ParameterServerStrategy(resolver(jobs))


def test_without_a_cluster_it_says_how_to_start_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="tfdist run -n 3 --ps 1.* Received: no TF_CONFIG"):
        tfdist.ParameterServerStrategy()


@pytest.mark.parametrize("given", ["resolver", "TF_CONFIG"])
def test_servers_that_cannot_be_reached_are_named(given, monkeypatch):
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", "0.3")
    (nobody,) = free_ports(1)
    with reserved_ports(2) as (chief, ps), listen(ps):
        jobs = {
            "chief": [f"127.0.0.1:{chief}"],
            "worker": [f"127.0.0.1:{nobody}"],
            "ps": [f"127.0.0.1:{ps}"],
        }
        cluster = tfdist.cluster.Cluster(jobs, "chief", 0)
        monkeypatch.setenv("TF_CONFIG", cluster.to_tf_config())
        said = rf"could not reach worker 0 \(127.0.0.1:{nobody}: connection refused\) within 0.3 s"
        with pytest.raises(TimeoutError, match=said):
            tfdist.ParameterServerStrategy(resolver(jobs) if given == "resolver" else None)
