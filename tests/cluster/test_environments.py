"""How a process was started, from the variables that each launcher really sets."""

import json

import pytest

from tests.cluster import workers
from tfdist.cluster import Cluster, choose_strategy, describe
from tfdist.cluster.environments import ranks_of_this_host


def horovodrun(rank, size):
    """As `horovodrun -np 2` of Horovod 0.28.1 sets them."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "63534",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_LOCAL_RANK": f"{rank}",
        "HOROVOD_LOCAL_SIZE": f"{size}",
        "HOROVOD_RANK": f"{rank}",
        "HOROVOD_SIZE": f"{size}",
    }


def open_mpi(rank, size):
    """As `mpirun` of Open MPI 4.1 sets them."""
    return {
        "OMPI_APP_CTX_NUM_PROCS": f"{size}",
        "OMPI_COMM_WORLD_LOCAL_RANK": f"{rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": f"{size}",
        "OMPI_COMM_WORLD_NODE_RANK": f"{rank}",
        "OMPI_COMM_WORLD_RANK": f"{rank}",
        "OMPI_COMM_WORLD_SIZE": f"{size}",
        "OMPI_UNIVERSE_SIZE": f"{size}",
        "PMIX_NAMESPACE": "605618177",
        "PMIX_RANK": f"{rank}",
    }


def mpich(rank, size):
    """As `mpiexec.hydra` of MPICH and Intel MPI sets them."""
    return {
        "MPI_LOCALNRANKS": f"{size}",
        "MPI_LOCALRANKID": f"{rank}",
        "PMI_FD": "9",
        "PMI_RANK": f"{rank}",
        "PMI_SIZE": f"{size}",
    }


def kubeflow(task, index, **jobs):
    """As the TFJob controller of Kubeflow's training operator sets TF_CONFIG."""
    cluster = {
        job: [f"train-{job}-{replica}.team.svc:2222" for replica in range(count)]
        for job, count in jobs.items()
    }
    task = {"type": task, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def sbatch(tasks):
    """The script of `sbatch` itself, before any `srun`."""
    return {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "gnode[10,20]",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "0",
        "SLURM_NPROCS": f"{tasks}",
        "SLURM_NTASKS": f"{tasks}",
        "SLURM_PROCID": "0",
        "SLURM_TASKS_PER_NODE": f"{tasks // 2}(x2)",
    }


def srun(rank, hosts="gnode[10,20]", per_host=(2, 2), distribution=None, **extra):
    """As `srun` sets them for each task."""
    places = [(host, local) for host, count in enumerate(per_host) for local in range(count)]
    if distribution == "cyclic":
        places.sort(key=lambda place: (place[1], place[0]))
    host, local = places[rank]
    environ = {
        **sbatch(len(places)),
        "SLURM_GTIDS": ",".join(str(r) for r, place in enumerate(places) if place[0] == host),
        "SLURM_LOCALID": f"{local}",
        "SLURM_NODEID": f"{host}",
        "SLURM_PROCID": f"{rank}",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": f"{len(per_host)}",
        "SLURM_STEP_NUM_TASKS": f"{len(places)}",
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, per_host)),
        **extra,
    }
    return environ | ({"SLURM_DISTRIBUTION": distribution} if distribution else {})


def summary(environ):
    launch = describe(environ)
    return launch.launcher, launch.rank, launch.size


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("python", 0, 1)),
        (horovodrun(1, 2), ("Horovod", 1, 2)),
        (horovodrun(0, 1), ("Horovod", 0, 1)),
        (open_mpi(3, 4), ("Open MPI", 3, 4)),
        (open_mpi(0, 1), ("Open MPI", 0, 1)),
        (mpich(1, 2), ("MPI", 1, 2)),
        (kubeflow("worker", 1, chief=1, worker=2), ("TF_CONFIG", 2, 3)),
        (kubeflow("evaluator", 0, worker=2), ("TF_CONFIG", None, 2)),
        (kubeflow("ps", 0, worker=2, ps=1), ("TF_CONFIG", None, 2)),
        (srun(2), ("Slurm", 2, 4)),
        (sbatch(4), ("python", 0, 1)),
        (srun(0, "gnode10", (1,)), ("python", 0, 1)),
        # Several at once: mpirun in a Slurm job, srun with a PMI library, a cluster set by hand.
        (srun(0, "gnode[10,20]", (1, 1)) | open_mpi(3, 4), ("Open MPI", 3, 4)),
        (srun(2) | mpich(2, 4), ("Slurm", 2, 4)),
        (sbatch(4) | mpich(2, 4), ("MPI", 2, 4)),
        (open_mpi(1, 2) | horovodrun(1, 2), ("Horovod", 1, 2)),
        (srun(2) | kubeflow("worker", 0, worker=2), ("TF_CONFIG", 0, 2)),
        (open_mpi(0, 1) | kubeflow("worker", 1, worker=2), ("TF_CONFIG", 1, 2)),
    ],
)
def test_the_launcher_the_rank_and_the_size(environ, expected):
    assert summary(environ) == expected


def test_the_variables_that_told_it_are_kept():
    assert describe(open_mpi(1, 2)).variables == {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    assert describe(srun(1)).variables["SLURM_STEP_NODELIST"] == "gnode[10,20]"
    config = kubeflow("worker", 0, worker=2)
    assert describe(config).variables == config
    assert describe({"PATH": "/bin"}).variables == {}


def test_the_cluster_comes_along():
    assert describe(kubeflow("worker", 1, worker=2)).cluster.task_index == 1
    assert describe(srun(1)).cluster.rank == 1
    assert describe(open_mpi(1, 2)).cluster is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE must be set.* Received: HOROVOD_SIZE=None"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Received: OMPI_COMM_WORLD_RANK=None"),
        (mpich("x", 2), "PMI_RANK must be an integer >= 0. Received: PMI_RANK='x'"),
        (mpich("-1", 2), "PMI_RANK must be an integer >= 0. Received: PMI_RANK='-1'"),
        (open_mpi(2, 2), "OMPI_COMM_WORLD_RANK must be from 0 to OMPI_COMM_WORLD_SIZE - 1"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        (srun(1, SLURM_STEP_NUM_TASKS="two"), "SLURM_STEP_NUM_TASKS must be an int.*='two'"),
        (srun(1, SLURM_STEP_NUM_TASKS="0"), "SLURM_STEP_NUM_TASKS must be an int.*='0'"),
    ],
)
def test_contradictions_are_one_line(environ, message):
    with pytest.raises(ValueError, match=message) as caught:
        describe(environ)
    assert len(str(caught.value).splitlines()) == 1


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "horovod", "devices", "expected", "reason"),
    [
        ({}, True, 1, "mirrored", "one process with 1 local device"),
        ({}, False, 4, "mirrored", "one process with 4 local devices"),
        (horovodrun(0, 2), True, 1, "horovod", "HOROVOD_RANK is set"),
        (horovodrun(0, 1), True, 1, "horovod", "HOROVOD_RANK is set"),
        (horovodrun(0, 1), False, 1, "mirrored", "one process"),
        (open_mpi(1, 2), True, 1, "horovod", "Open MPI .* rank 1 of 2 .OMPI_COMM_WORLD_RANK"),
        (mpich(1, 2), True, 1, "horovod", "PMI_RANK is set"),
        (open_mpi(0, 1), False, 2, "mirrored", "2 local devices"),
        (
            open_mpi(1, 2) | kubeflow("worker", 1, worker=2),
            False,
            1,
            "multi_worker",
            "TF_CONFIG has 2 workers",
        ),
        (kubeflow("worker", 0, worker=2), True, 1, "multi_worker", "TF_CONFIG has 2 workers"),
        (kubeflow("chief", 0, chief=1, worker=1), True, 1, "multi_worker", "has 2 workers"),
        (kubeflow("worker", 0, worker=1, ps=1), True, 1, "parameter_server", "a `ps` job"),
        (kubeflow("ps", 0, worker=1, ps=1), True, 1, "parameter_server", "a `ps` job"),
        (kubeflow("worker", 0, worker=1), True, 2, "mirrored", "2 local devices"),
        (srun(1), True, 1, "multi_worker", "Slurm has 4 workers"),
        (srun(1) | mpich(1, 4), True, 1, "multi_worker", "Slurm has 4 workers"),
        (sbatch(4), True, 1, "mirrored", "one process"),
    ],
)
def test_the_strategy_and_the_reason(environ, horovod, devices, expected, reason):
    name, because = choose_strategy(environ, devices, horovod)
    assert name == expected
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(because)


@pytest.mark.parametrize(
    ("environ", "variable"), [(horovodrun(0, 2), "HOROVOD_RANK='0'"), (mpich(1, 2), "PMI_RANK='1'")]
)
def test_several_processes_of_mpi_need_horovod(environ, variable):
    message = f"as one of 2, but Horovod is not installed: .*install_horovod.* Received: {variable}"
    with pytest.raises(ValueError, match=message) as caught:
        choose_strategy(environ, 1, horovod_installed=False)
    assert len(str(caught.value).splitlines()) == 1


# --- real processes -------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.job
def test_two_slurm_tasks_reduce_over_tensorflow():
    environs = [srun(rank, "localhost", (2,), SLURM_JOB_ID="77") for rank in range(2)]
    started = [workers.start("slurm", **environ) for environ in environs]
    for code, out, err in workers.finish(started):
        assert (code, out.splitlines()[-1:]) == (0, ["sum 3.0"]), err


def test_a_cluster_survives_its_text():
    for environ in (srun(3), kubeflow("worker", 1, chief=1, worker=2)):
        cluster = describe(environ).cluster
        assert Cluster.from_environment({"TF_CONFIG": cluster.to_tf_config()}) == cluster


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        (horovodrun(1, 2), 2),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}, 1),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            4,
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "6", "MPI_LOCALNRANKS": "3"}, 3),
    ],
)
def test_launchers_of_ranks_tell_how_many_share_a_host(environ, ranks):
    assert ranks_of_this_host(environ) == ranks


@pytest.mark.parametrize(
    ("kind", "index", "ranks"), [("chief", 0, 2), ("worker", 0, 2), ("worker", 1, 1)]
)
def test_the_addresses_of_a_cluster_tell_how_many_share_a_host(kind, index, ranks):
    jobs = {"chief": ("a:1",), "worker": ("a:2", "b:1"), "ps": ("a:3",)}
    environ = {"TF_CONFIG": Cluster(jobs, kind, index).to_tf_config()}
    assert ranks_of_this_host(environ) == ranks
