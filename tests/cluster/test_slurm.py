"""The cluster of a Slurm step has the addresses of the hosts on which the ranks run."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.test_environments import srun
from tfdist.cluster import slurm_cluster
from tfdist.cluster.slurm import expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1-2,7],m5,o[3-4]", ["n1", "n2", "n7", "m5", "o3", "o4"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[1-2].x.org", ["n1.x.org", "n2.x.org"]),
        ("localhost", ["localhost"]),
    ],
)
def test_hosts_in_slurms_order(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "n[", "n]", "n[]", "n[3-1]", "n[a]", "n[1-2", "n,,m", "n[[1]]", "n m", "n[1-9999999]"],
)
def test_a_list_of_hosts_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="Received:") as caught:
        expand_hosts(text)
    assert len(str(caught.value).splitlines()) == 1


def test_too_many_hosts_are_refused_at_once():
    with pytest.raises(ValueError, match="too many hosts"):
        expand_hosts("n[0-9999][0-9999][0-9999]")


def test_ranks_fill_the_hosts_in_order():
    """Also where the order of the names is another one: n10 sorts before n9."""
    for rank in range(3):
        cluster = slurm_cluster(srun(rank, "n[9-10]", (2, 1), TFDIST_PORT_BASE="2222"))
        assert cluster.workers == ("n9:2222", "n9:2223", "n10:2222")
        assert cluster.rank == rank


def test_ranks_go_around_the_hosts_when_they_are_dealt_out():
    for rank in range(5):
        environ = srun(rank, "n[1-3]", (2, 1, 2), "cyclic", TFDIST_PORT_BASE="2222")
        assert slurm_cluster(environ).workers == (
            *("n1:2222", "n2:2222", "n3:2222"),
            *("n1:2223", "n3:2223"),
        )


def test_steps_that_share_a_host_have_different_ports():
    def ports(**step):
        workers = slurm_cluster(srun(0, "n1", (8,), **step)).workers
        return {int(worker.rpartition(":")[2]) for worker in workers}

    steps = [
        ports(SLURM_JOB_ID=f"{job}", SLURM_STEP_ID=f"{step}")
        for job in range(4_000_000, 4_000_020)
        for step in range(4)
    ]
    assert len(set.union(*steps)) == sum(map(len, steps))
    assert all(10000 <= port < 32768 for port in set.union(*steps))
    assert ports(SLURM_STEP_ID="4294967290")  # an interactive step


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST must be set, as `srun` does"),
        ({"SLURM_STEP_NODELIST": "n[1-3]"}, "the same number of hosts. Received: 'n.1-3.' and '2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, r"must be numbers such as 2\(x3\),1. Received"),
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID must be less than .* 4. Received: SLURM_PROCID=4"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID must be an integer >= 0. .*='-1'"),
        ({"SLURM_LOCALID": "0"}, "--distribution=block.* Received: .*SLURM_LOCALID='0' where 1"),
        ({"SLURM_NODEID": "1"}, "--distribution=block.* Received: .*SLURM_NODEID='1' where 0"),
        ({"TFDIST_PORT_BASE": "65535"}, "TFDIST_PORT_BASE must be from 1 to 65534, .*=65535"),
        ({"SLURM_STEP_NODELIST": "n1,N1"}, "each host of a step once. Received: .* 'N1' twice"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "which is 4. Received: SLURM_STEP_NUM_TASKS=3 with "),
        ({"TFDIST_PORT_BASE": "x"}, "TFDIST_PORT_BASE must be an integer"),
    ],
)
def test_a_mistake_is_one_line(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        slurm_cluster({**srun(1), **change})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.graph
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 30000),
    st.integers(0, 90),
)
def test_agrees_with_tensorflow_where_the_names_sort_like_the_hosts(per_host, port, first):
    import tensorflow as tf

    hosts = f"n[{first:02}-{first + len(per_host) - 1:02}]"
    rank = sum(per_host) - 1
    environ = srun(rank, hosts, per_host, TFDIST_PORT_BASE=f"{port}")
    cluster = slurm_cluster(environ)
    with mock.patch.dict("os.environ", environ):
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port, gpus_per_node=max(per_host), gpus_per_task=1, auto_set_gpu=False
        )
        assert resolver.cluster_spec().as_dict() == {"worker": list(cluster.workers)}
        assert resolver.get_task_info() == (cluster.task_type, cluster.task_index)
