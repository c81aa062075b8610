"""The manifests fit `tfdist run`, and their parts fit each other."""

import re
import shlex

import click
import pytest

from tests.examples import image, manifests
from tfdist.cli.run import run
from tfdist.cluster.addresses import split_address

_SLURM = manifests.FOLDER.parent / "slurm"
_SCRIPTS = sorted(path.name for path in _SLURM.glob("*.sh"))
_NAMESPACE = "$(NAMESPACE).svc.cluster.local"


def command_of_pods(file):
    """The command lines of all Jobs of a file, without `tfdist run`."""
    found = []
    for container in manifests.containers(file).values():
        program, verb, *options = container["command"] + container.get("args", [])
        assert (program, verb) == ("tfdist", "run")
        found.append(options)
    return found


def command_of_tasks(file):
    """The command line of a script for Slurm."""
    text = (_SLURM / file).read_text().replace("\\\n", " ")
    (line,) = re.findall(r'tfdist run (.*"\$@")', text)
    return [word.replace("$@", "train.py") for word in shlex.split(line)]


def parsed(options):
    """What the parser of `tfdist run` makes of the options; nothing is started."""
    known = {name for parameter in run.params for name in parameter.opts}
    if "--max" not in known:
        at = options.index("--max")
        options = options[:at] + options[at + 2 :]
    return run.make_context("tfdist run", list(options)).params


def all_commands():
    return [
        *[pytest.param(one, id=file) for file in manifests.JOBS for one in command_of_pods(file)],
        *[pytest.param(command_of_tasks(file), id=file) for file in _SCRIPTS],
    ]


def test_every_example_has_a_command():
    assert len(all_commands()) == 4 + 2


@pytest.mark.parametrize("options", all_commands())
def test_tfdist_accepts_the_command(options):
    found = parsed(options)
    assert (found["count"], found["least"]) == (2, 2)
    assert found["command"] == ("train.py",)
    address = found["rendezvous"]
    for variable, value in (("$(NAMESPACE)", "a"), ("$(JOB)", "b"), ("$host", "c")):
        address = address.replace(variable, value)
    assert split_address(address)[1] == 2222
    assert options[options.index("--max") + 1] == "8"


@pytest.mark.parametrize(("right", "wrong"), [("--min", "--mim"), ("2", "two"), ("100", "1 min")])
def test_a_command_with_a_mistake_is_refused(right, wrong):
    (options,) = command_of_pods("indexed-job.yaml")
    assert right in options
    with pytest.raises(click.UsageError):
        parsed([wrong if word == right else word for word in options])


@pytest.mark.parametrize("file", manifests.JOBS)
def test_ranks_have_time_to_leave_before_the_pod_is_killed(file):
    pods, commands = manifests.pods(file).values(), command_of_pods(file)
    for pod, options in zip(pods, commands, strict=True):
        assert parsed(options)["grace_period"] + 10 <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("file", _SCRIPTS)
def test_ranks_have_time_to_leave_before_slurm_ends_the_job(file):
    (seconds,) = re.findall(r"^#SBATCH --signal=\S+@(\d+)$", (_SLURM / file).read_text(), re.M)
    assert parsed(command_of_tasks(file))["grace_period"] + 10 <= int(seconds)


def host_of(container):
    return place_of(container)[0]


def place_of(container):
    """The host and the port of the rendezvous."""
    options = container["command"]
    host, _, port = options[options.index("--rendezvous") + 1].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("file", manifests.JOBS)
def test_the_port_of_the_rendezvous_is_that_of_the_container(file):
    for container in manifests.containers(file).values():
        (port,) = container["ports"]
        assert port["containerPort"] == place_of(container)[1]


def test_the_host_of_an_indexed_job_is_its_first_pod():
    service = manifests.one("indexed-job.yaml", "Service")
    job = manifests.one("indexed-job.yaml", "Job")
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert host_of(pod["containers"][0]) == f"{name}-0.{pod['subdomain']}.{_NAMESPACE}"
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"


def test_the_host_of_a_jobset_is_the_pod_of_its_first_job():
    jobset = manifests.one("jobset.yaml", "JobSet")
    name, network = jobset["metadata"]["name"], jobset["spec"]["network"]
    first = jobset["spec"]["replicatedJobs"][0]["name"]
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == [first]
    for container in manifests.containers("jobset.yaml").values():
        assert host_of(container) == f"{name}-{first}-0-0.{network['subdomain']}.{_NAMESPACE}"


def test_the_host_of_a_trainjob_is_the_first_pod_of_the_trainer():
    ((name, container),) = manifests.containers("trainjob.yaml").items()
    assert host_of(container) == f"$(JOB)-{name}-0-0.$(JOB).{_NAMESPACE}"
    runtime = manifests.one("trainjob.yaml", "TrainingRuntime")
    job = manifests.one("trainjob.yaml", "TrainJob")["spec"]
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]


@pytest.mark.parametrize("file", manifests.JOBS)
def test_all_pods_together_have_as_many_ranks_as_there_may_be(file):
    jobs = [job["spec"] for job in manifests.jobs(file).values()]
    pods = sum(job.get("completions", 0) for job in jobs)
    if file == "trainjob.yaml":
        assert pods == 0
        pods = manifests.one(file, "TrainJob")["spec"]["trainer"]["numNodes"]
    for options in command_of_pods(file):
        assert pods * parsed(options)["count"] == int(options[options.index("--max") + 1])


@pytest.mark.parametrize("file", manifests.JOBS)
def test_each_rank_uses_its_part_of_the_processors(file):
    for container in manifests.containers(file).values():
        owner = container
        if file == "trainjob.yaml":
            trainer = manifests.one(file, "TrainJob")["spec"]["trainer"]
            owner = {"resources": trainer["resourcesPerNode"]}
        processors = int(owner["resources"]["limits"]["cpu"])
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            assert int(manifests.variable(container, name)) * 2 == processors


@pytest.mark.parametrize("file", manifests.JOBS)
def test_pods_have_the_label_and_the_folder_of_the_shared_objects(file):
    policy = manifests.one("shared.yaml", "NetworkPolicy")["spec"]
    claim = manifests.one("shared.yaml", "PersistentVolumeClaim")["metadata"]["name"]
    label = policy["podSelector"]["matchLabels"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}]
    for job in manifests.jobs(file).values():
        pod = job["spec"]["template"]
        assert label.items() <= pod["metadata"]["labels"].items()
        (volume,) = pod["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim


@pytest.mark.parametrize("file", manifests.JOBS)
def test_rules_name_the_container_that_there_is(file):
    for name, job in manifests.jobs(file).items():
        rules = job["spec"]["podFailurePolicy"]["rules"]
        codes = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
        assert [code["values"] for code in codes] == [[143]]
        assert codes[0]["containerName"] == manifests.containers(file)[name]["name"]


def test_the_image_has_what_is_installed_for_the_tests():
    steps = image.instructions()
    (installed,) = [rest for instruction, rest in steps if instruction == "RUN"]
    assert installed == f'pip install --no-cache-dir ".${{EXTRA}}" {image.PINS_OF_MAKE}'


def test_the_image_is_made_of_files_that_exist(tmp_path):
    places = []
    folder, _, _ = image.make(tmp_path, lambda step, place: places.append(place))
    assert [(place / "tfdist" / "__init__.py").exists() for place in places] == [True]
    assert (folder / "train.py").exists()


def test_the_user_of_the_image_may_write_backups():
    """The user is not root, to whom the folder of the job belongs."""
    steps = dict(image.instructions())
    assert steps["USER"] == "1000" and steps["ENV"].startswith("BACKUP=/tmp/")
    for file in manifests.JOBS:
        for container in manifests.containers(file).values():
            folder = manifests.variable(container, "BACKUP")
            assert folder in {volume["mountPath"] for volume in container["volumeMounts"]}
