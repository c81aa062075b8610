"""What the tests of each file cost: their tier."""

from __future__ import annotations

import pathlib

TIERS = ("pure", "graph", "job", "page", "bench")
ROOT = pathlib.Path(__file__).parent

# By folder or file, the longer path first. A file with several tiers marks the tests that are not
# of its first one, such as `pytest.mark.job`. Folders with files of several tiers are not named, so
# that a new file in them must choose.
_OF_PATH = {
    "balance": "graph",
    "balance/test_policy.py": "pure",
    "benchmarks": "bench",
    "benchmarks/test_algorithms_report.py": "graph",
    "benchmarks/test_algorithms_results.py": "graph",
    "benchmarks/test_all_reduce_schedules.py": "graph",
    "benchmarks/test_largest_model.py": "pure bench",
    "benchmarks/test_local_steps.py": "pure bench",
    "benchmarks/test_sharding.py": "graph",
    "callbacks": "graph",
    "callbacks/test_ranks.py": "job",
    "callbacks/test_timeline_ranks.py": "job",
    "checkup": "job",
    "checkup/test_features.py": "graph",
    "checkup/test_found.py": "graph",
    "checkup/test_judging.py": "pure",
    "checkup/test_links.py": "graph",
    "checkup/test_machine.py": "pure",
    "cli": "job",
    "cli/test_doctor.py": "pure job",
    "cli/test_examples.py": "pure",
    "cli/test_quantities.py": "pure",
    "cli/test_run_elastic_options.py": "pure",
    "cluster/test_addresses.py": "graph",
    "cluster/test_chief.py": "job",
    "cluster/test_config.py": "pure graph",
    "cluster/test_environments.py": "pure job",
    "cluster/test_examples.py": "graph",
    "cluster/test_parameter_server.py": "pure",
    "cluster/test_peers.py": "job",
    "cluster/test_server.py": "job",
    "cluster/test_slurm.py": "pure graph",
    "cluster/test_vanishing.py": "pure job",
    "compat": "graph",
    "compression": "graph",
    "docs": "page",
    "docs/test_commands.py": "pure",
    "docs/test_references.py": "pure",
    "elastic": "job",
    "elastic/test_group.py": "pure",
    "elastic/test_handover.py": "graph",
    "elastic/test_journal.py": "pure",
    "elastic/test_journal_copy.py": "pure",
    "elastic/test_recent.py": "pure",
    "elastic/test_serving_group.py": "pure",
    "equivalence/test_balance.py": "graph job",
    "equivalence/test_cells.py": "graph",
    "equivalence/test_compression.py": "graph job",
    "equivalence/test_compiled.py": "graph job",
    "equivalence/test_elastic.py": "job",
    "equivalence/test_equivalence.py": "graph job",
    "equivalence/test_job.py": "job",
    "equivalence/test_launchers.py": "job",
    "equivalence/test_reducers.py": "job",
    "equivalence/test_reducers_by_launchers.py": "job",
    "equivalence/test_sharding.py": "graph job",
    "examples": "page",
    "examples/test_manifest_schemas.py": "pure",
    "examples/test_manifests.py": "pure",
    "faults": "job",
    "faults/test_table.py": "pure",
    "integrations": "job",
    "local_steps": "graph",
    "memory": "graph",
    "multi_process": "job",
    "optimizer": "graph",
    "own_loops": "graph",
    "parameter_server": "job",
    "parameter_server/test_connecting.py": "graph",
    "parameter_server/test_dropping.py": "graph",
    "parameter_server/test_flat.py": "graph",
    "parameter_server/test_lost.py": "graph",
    "parameter_server/test_notes.py": "graph",
    "parameter_server/test_pace.py": "graph",
    "parameter_server/test_pipelines.py": "graph",
    "parameter_server/test_snapshot_options.py": "graph",
    "parameter_server/test_sources.py": "graph",
    "parameter_server/test_together.py": "graph",
    "parameter_server/test_turns.py": "graph",
    "parameter_server/test_scheduler.py": "graph",
    "partitioned": "job",
    "pipeline": "graph",
    "plan": "graph",
    "plan/test_accuracy.py": "bench",
    "plan/test_codecs.py": "pure",
    "plan/test_command.py": "job",
    "plan/test_decisions.py": "pure",
    "plan/test_in_turn.py": "pure",
    "plan/test_machine.py": "pure",
    "plan/test_parts_one_by_one.py": "pure",
    "plan/test_simulation.py": "pure",
    "processes": "graph",
    "processes/test_backups.py": "pure",
    "rendezvous": "pure",
    "replay/test_damage.py": "pure",
    "replay/test_exit.py": "graph",
    "replay/test_log.py": "pure",
    "replay/test_replay.py": "job",
    "replay/test_sums.py": "graph",
    "side_by_side": "bench",
    "sharding": "graph",
    "sharding/test_first_values.py": "graph job",
    "sharding/test_jobs.py": "job",
    "staleness": "graph",
    "step": "graph",
    "strategies": "graph",
    "strategies/test_horovods_optimizer.py": "job",
    "tensor_parallel": "job",
    "test_clocks.py": "graph",
    "test_files_to_write.py": "pure",
    "test_arguments.py": "graph",
    "test_control_groups.py": "pure",
    "test_benchmarks.py": "bench",
    "test_docstrings.py": "page",
    "test_dropout.py": "graph",
    "test_install_horovod.py": "pure",
    "test_interrupts.py": "graph",
    "test_layers.py": "pure",
    "test_loss_scale_optimizer.py": "graph",
    "test_optimizer.py": "graph",
    "test_release.py": "job",
    "test_running_again.py": "job",
    "test_saving.py": "graph",
    "test_testing.py": "job",
    "test_tiers.py": "pure",
    "test_validation.py": "graph",
    "test_versions.py": "pure graph job",
    "test_workflow.py": "pure",
    "traffic": "job",
    "watch/test_browser.py": "job",
    "watch/test_charts.py": "pure",
    "watch/test_counted_steps.py": "graph",
    "watch/test_live.py": "graph",
    "watch/test_page.py": "pure",
    "watch/test_ranks.py": "job",
    "watch/test_reported_runs.py": "graph",
    "watch/test_run_report.py": "graph",
    "watch/test_watching.py": "pure",
}


def of_path(path: pathlib.Path) -> tuple[str, ...]:
    """The tiers that the tests in `path`, a file, may have: the first one unless they are marked.

    Raises:
        LookupError: when `tiers.py` says nothing about it.
    """
    inside = path.relative_to(ROOT)
    for place in (inside, *inside.parents):
        if tiers := _OF_PATH.get(place.as_posix()):
            return tuple(tiers.split())
    raise LookupError(f"tests/tiers.py names no tier for tests/{inside}: add one of {TIERS}")


def of_item(item) -> str:
    """The tier of a test.

    Raises:
        LookupError: when it has none, or a mark that `tiers.py` does not allow in its file.
    """
    allowed = of_path(item.path)
    marked = {mark.name for mark in item.iter_markers() if mark.name in TIERS} or {allowed[0]}
    if len(marked) != 1 or not marked <= set(allowed):
        raise LookupError(
            f"tests/tiers.py allows one tier of {allowed}. Received: {sorted(marked)} as marks "
            f"of {item.nodeid}"
        )
    return marked.pop()


def unused_paths() -> list[str]:
    """What `tiers.py` names and is not there any more."""
    return [path for path in _OF_PATH if not (ROOT / path).exists()]
