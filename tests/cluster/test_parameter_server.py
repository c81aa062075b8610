"""A job with parameter servers begins only when it has all its parts and all are there."""

import pytest

from tfdist.cluster import Cluster, check_parameter_server_cluster, wait_for_servers
from tfdist.cluster.addresses import listen, reserved_ports


@pytest.fixture
def jobs():
    """Two workers and two parameter servers, whose ports nobody else takes."""
    with reserved_ports(5) as ports:
        chief, *others = (f"127.0.0.1:{port}" for port in ports)
        yield {"chief": (chief,), "worker": tuple(others[:2]), "ps": tuple(others[2:])}


def port(address):
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("task", [("chief", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)])
def test_a_whole_cluster_is_accepted_in_every_process(jobs, task):
    check_parameter_server_cluster(Cluster({**jobs, "evaluator": ("e:1",)}, *task))


@pytest.mark.parametrize("missing", ["chief", "worker", "ps"])
def test_what_is_missing_is_named_and_how_to_get_it(jobs, missing):
    task = "ps" if missing == "chief" else "chief"
    rest = {job: addresses for job, addresses in jobs.items() if job != missing}
    for cluster in (rest, {**rest, missing: ()}):
        with pytest.raises(ValueError, match=f"needs a `{missing}`, ") as caught:
            check_parameter_server_cluster(Cluster(cluster, task, 0))
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        assert f'add "{missing}": ["host:port"] to `cluster` in the TF_CONFIG' in message
        counts = {job: len(addresses) for job, addresses in cluster.items()}
        assert message.endswith(f"Received: jobs={counts}")


def test_the_chief_names_the_servers_that_are_missing(jobs):
    with listen(port(jobs["worker"][0])), listen(port(jobs["ps"][1])):
        with pytest.raises(TimeoutError) as caught:
            wait_for_servers(Cluster(jobs, "chief", 0), 0.3)
    message = str(caught.value)
    assert message.startswith(
        f"The chief ({jobs['chief'][0]}) could not reach "
        f"worker 1 ({jobs['worker'][1]}: connection refused), "
        f"ps 0 ({jobs['ps'][0]}: connection refused) within 0.3 s."
    )
    assert message.endswith(f"Received: addresses={[*jobs['worker'], *jobs['ps']]}")
    assert len(message.splitlines()) == 1


def test_the_time_to_wait_comes_from_the_environment(jobs, monkeypatch):
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", "0.2")
    with pytest.raises(TimeoutError, match="within 0.2 s"):
        wait_for_servers(Cluster(jobs, "chief", 0))


def test_the_chiefs_port_must_be_free(jobs):
    with listen(port(jobs["chief"][0])):
        with pytest.raises(OSError, match=f"in use .* Received: {jobs['chief'][0]}"):
            wait_for_servers(Cluster(jobs, "chief", 0), 30)


def test_only_the_chief_waits(jobs):
    with pytest.raises(ValueError, match="Only the chief waits .* Received: task=worker 1"):
        wait_for_servers(Cluster(jobs, "worker", 1))


def test_a_cluster_that_lacks_a_part_is_not_waited_for(jobs):
    del jobs["ps"]
    with pytest.raises(ValueError, match="needs a `ps`"):
        wait_for_servers(Cluster(jobs, "chief", 0), 30)
