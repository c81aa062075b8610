"""Reads the text of TF_CONFIG, and says in one line what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

from tfdist.cluster.addresses import same_place

JOBS = ("chief", "worker", "ps", "evaluator", "reducer")

# Longer values are cut in messages.
_LONGEST_VALUE = 200


def parse(text: str) -> tuple[dict[str, tuple[str, ...]], str, int]:
    """Checks the text of TF_CONFIG.

    Args:
        text: a JSON object with the fields `cluster` and `task`. Other fields, such as the
            "environment" that Kubeflow sets, may be there too.

    Returns:
        The addresses of each job, the job of this process and its index in that job.

    Raises:
        ValueError: in one line, when there is a mistake; the line names the field and its value.

    Example:

    >>> from tfdist.cluster.tf_config import parse
    >>> parse('{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}')
    ({'worker': ('a:2222',)}, 'worker', 0)
    """
    config = _load(text)
    if not isinstance(config, dict):
        raise _mistake("must be a JSON object with `cluster` and `task`", None, text)
    for field in ("cluster", "task"):
        if field not in config:
            raise _mistake(f"`{field}` is missing", None, config)
        if not isinstance(config[field], dict):
            raise _mistake(f"{field} must be a JSON object", field, config[field])
    if not isinstance(config.get("rpc_layer"), (str, type(None))):
        raise _mistake("rpc_layer must be a string", "rpc_layer", config["rpc_layer"])
    jobs = _jobs(config["cluster"])
    return jobs, *_task(config["task"], jobs)


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except _RepeatedField as error:
        problem = str(error)
    except RecursionError:
        problem = "is nested too deeply"
    except ValueError:
        problem = "has a number with too many digits"
    raise _mistake(problem, None, text)


class _RepeatedField(ValueError):
    """A JSON object names a field twice; Python would silently take the last value."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _RepeatedField(f"has the field {_shown(repeated)} twice in one object")
    return fields


def _jobs(cluster: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    if not cluster:
        raise _mistake("cluster must name at least one worker", "cluster", cluster)
    seen: dict[tuple[str, int], str] = {}
    for job, addresses in cluster.items():
        if job not in JOBS:
            problem = f"cluster has an unknown job; the jobs are {', '.join(JOBS)}"
            raise _mistake(problem, "job", job)
        field = f"cluster.{job}"
        if not isinstance(addresses, list):
            raise _mistake(f"{field} must be a list of addresses", field, addresses)
        if not addresses:
            raise _mistake(f"{field} must have at least one address", field, addresses)
        if job in ("chief", "evaluator") and len(addresses) > 1:
            raise _mistake(f"{field} must have one address only", field, addresses)
        for index, address in enumerate(addresses):
            _check_address(f"{field}[{index}]", address, seen)
    if not {"chief", "worker"} & cluster.keys():
        raise _mistake("cluster must have a `worker` or `chief` job", "cluster", cluster)
    return {job: tuple(addresses) for job, addresses in cluster.items()}


def _check_address(field: str, address: Any, seen: dict[tuple[str, int], str]) -> None:
    try:
        place = same_place(address)
    except ValueError as error:
        problem = f"{field} must be host:port with a port from 1 to 65535"
        raise _mistake(problem, field, address) from error
    earlier = seen.setdefault(place, field)
    if earlier != field:
        raise _mistake(f"{field} is the same address as {earlier}", field, address)


def _task(task: dict[str, Any], jobs: dict[str, tuple[str, ...]]) -> tuple[str, int]:
    for field in ("type", "index"):
        if field not in task:
            raise _mistake(f"`task.{field}` is missing", "task", task)
    job, index = task["type"], task["index"]
    if job not in JOBS:
        raise _mistake(f"task.type must be one of {', '.join(JOBS)}", "task.type", job)
    # As in TensorFlow: the evaluator need not be in the cluster, because it does not train.
    if job not in jobs and job != "evaluator":
        problem = f"task.type must be one of the cluster's jobs, {', '.join(jobs)}"
        raise _mistake(problem, "task.type", job)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _mistake("task.index must be an integer", "task.index", index)
    last = len(jobs.get(job, ("evaluator",))) - 1
    if not 0 <= index <= last:
        allowed = "0" if last == 0 else f"from 0 to {last}"
        problem = f"task.index must be {allowed}, as cluster.{job} has {last + 1} address(es)"
        raise _mistake(problem, "task.index", index)
    return job, index


def _mistake(problem: str, field: str | None, value: object) -> ValueError:
    received = _shown(value) if field is None else f"{field}={_shown(value)}"
    separator = " " if problem.startswith(("is ", "has ", "must ")) else ": "
    return ValueError(f"TF_CONFIG{separator}{problem}. Received: {received}")


def _shown(value: object) -> str:
    """`value` in one line that is short enough to read."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
