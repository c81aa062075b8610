"""The manifests in examples/kubernetes, as lists and dictionaries."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
JOBS = ("indexed-job.yaml", "jobset.yaml", "trainjob.yaml")


def read(file):
    """The objects of a file."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def one(file, kind):
    """The only object of this kind in a file."""
    (found,) = [manifest for manifest in read(file) if manifest["kind"] == kind]
    return found


def jobs(file):
    """The templates of all Jobs that a file makes, by name, each with its `spec`."""
    found = {}
    for manifest in read(file):
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Job":
            found[manifest["metadata"]["name"]] = manifest
        spec = spec["template"]["spec"] if manifest["kind"] == "TrainingRuntime" else spec
        found.update({job["name"]: job["template"] for job in spec.get("replicatedJobs", [])})
    return found


def pods(file):
    """The `spec` of the pods of each Job."""
    return {name: job["spec"]["template"]["spec"] for name, job in jobs(file).items()}


def containers(file):
    """The only container of the pods of each Job."""
    found = {}
    for name, pod in pods(file).items():
        (found[name],) = pod["containers"]
    return found


def variable(container, name):
    """The value of an environment variable."""
    (found,) = [one for one in container["env"] if one["name"] == name]
    return found["value"]
