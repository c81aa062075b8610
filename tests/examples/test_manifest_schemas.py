"""The manifests are valid by the schemas of Kubernetes, JobSet and Kubeflow Trainer."""

import copy

import pytest

from tests.examples import manifests

_MODELS = {
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("v1", "PersistentVolumeClaim"): "IoK8sApiCoreV1PersistentVolumeClaim",
    ("batch/v1", "Job"): "IoK8sApiBatchV1Job",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "TrainerV1alpha1TrainingRuntime",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
}
_KINDS = [
    ("indexed-job.yaml", "Service"),
    ("indexed-job.yaml", "Job"),
    ("jobset.yaml", "JobSet"),
    ("shared.yaml", "PersistentVolumeClaim"),
    ("trainjob.yaml", "TrainingRuntime"),
    ("trainjob.yaml", "TrainJob"),
]
_RELEASES = ("1.33", "1.37")


def check(manifest):
    """Fails if `manifest` is not valid by the models of Kubeflow Trainer's package.

    The models drop fields that they do not know, so these are missing in what comes back.
    """
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
    )
    model = getattr(models, _MODELS[manifest["apiVersion"], manifest["kind"]])
    assert model.from_dict(manifest).to_dict() == manifest


def schemas_of_kubernetes():
    """The package that has the schemas of Kubernetes' releases."""
    return pytest.importorskip(
        "kubernetes_validate",
        reason="needs kubernetes-validate (108 MB), which `make integrations` installs",
    )


def check_core(manifest, release):
    """Fails if `manifest` is not valid by the schema of a release of Kubernetes."""
    schemas_of_kubernetes().validate(manifest, release, strict=True)


def test_every_manifest_is_checked():
    found = [(file, one["kind"]) for file in manifests.FILES for one in manifests.read(file)]
    assert set(found) - set(_KINDS) == {("shared.yaml", "NetworkPolicy")}
    assert len(found) == len(_KINDS) + 1


@pytest.mark.parametrize(("file", "kind"), _KINDS)
def test_a_manifest_is_valid(file, kind):
    check(manifests.one(file, kind))


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("file", ["indexed-job.yaml", "shared.yaml"])
def test_objects_of_kubernetes_are_valid_by_its_own_schemas(file, release):
    for manifest in manifests.read(file):
        check_core(manifest, release)


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("file", ["jobset.yaml", "trainjob.yaml"])
def test_jobs_in_other_objects_are_valid_by_the_schema_of_jobs(file, release):
    for job in manifests.jobs(file).values():
        check_core({"apiVersion": "batch/v1", "kind": "Job", **job}, release)


_WRONG = {
    "an unknown field": lambda job, pod: job.update(backoffLimitPerIdx=1),
    "an unknown field of the pod": lambda job, pod: pod.update(gracePeriod=1),
    "a text for a number": lambda job, pod: job.update(completions="4"),
    "a text for a list": lambda job, pod: pod["containers"][0].update(command="tfdist"),
    "a number for a text": lambda job, pod: pod["containers"][0]["env"][2].update(value=2),
    "a field that is missing": lambda job, pod: pod["containers"][0].pop("name"),
}
_NOT_A_CHOICE = {
    "restartPolicy": lambda job, pod: pod.update(restartPolicy="Nevr"),
    "action": lambda job, pod: job["podFailurePolicy"]["rules"][0].update(action="Ignor"),
}


def broken(file, kind, mistake):
    """A manifest with a mistake in its first Job, and that Job alone."""
    manifest = copy.deepcopy(manifests.one(file, kind))
    spec = manifest["spec"]
    spec = spec["template"]["spec"] if kind == "TrainingRuntime" else spec
    job = spec["replicatedJobs"][0]["template"] if "replicatedJobs" in spec else manifest
    mistake(job["spec"], job["spec"]["template"]["spec"])
    return manifest, {"apiVersion": "batch/v1", "kind": "Job", **job}


@pytest.mark.parametrize("what", [*_WRONG, *_NOT_A_CHOICE])
@pytest.mark.parametrize(
    ("file", "kind"),
    [("indexed-job.yaml", "Job"), ("jobset.yaml", "JobSet"), ("trainjob.yaml", "TrainingRuntime")],
)
def test_a_mistake_is_found(file, kind, what):
    manifest, _ = broken(file, kind, {**_WRONG, **_NOT_A_CHOICE}[what])
    with pytest.raises((ValueError, AssertionError)):
        check(manifest)


@pytest.mark.parametrize("what", _WRONG)
def test_a_mistake_is_found_by_the_schemas_of_kubernetes(what):
    _, job = broken("jobset.yaml", "JobSet", _WRONG[what])
    kubernetes = schemas_of_kubernetes()
    with pytest.raises(kubernetes.ValidationError):
        check_core(job, _RELEASES[-1])


def test_a_mistake_in_a_trainjob_is_found():
    manifest = manifests.one("trainjob.yaml", "TrainJob")
    for wrong in ({"numNode": 4}, {"numNodes": "4"}, {"args": "train.py"}):
        changed = copy.deepcopy(manifest)
        changed["spec"]["trainer"].update(wrong)
        with pytest.raises((ValueError, AssertionError)):
            check(changed)
