"""`--engine`: a saved plan whose parts the workers of a cluster make; this process gives them out and finishes."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from ortdeploy.application.driver import Driver
from ortdeploy.application.ray_workers import AUTO, check_address, hired, joined, needs_of
from ortdeploy.cli.children.apply import choose_progress
from ortdeploy.cli.commands.shared import log_level
from ortdeploy.diagnostics import UsageError
from ortdeploy.events import bound, log
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.output_lock import hold_outputs
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.part_table import bound_digest
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import JobResult

_WORKER = "ortdeploy.cli.children.worker"


class Engine(Struct, frozen=True, kw_only=True):
    """Ray, the address of its cluster, and how many workers are wanted; None: as many as there is room for."""

    address: str
    workers: int | None


def engine_of(arguments: argparse.Namespace) -> Engine | None:
    """Return the engine that the command line names. Raises UsageError."""
    said, workers = getattr(arguments, "engine", None), getattr(arguments, "workers", None)
    if said is None:
        if workers is not None:
            raise UsageError("--workers is for --engine")
        return None
    name, _, address = said.partition("=")
    if name != "ray" or said.endswith("="):
        raise UsageError(f"--engine {said}: write ray, ray=HOST:PORT of a cluster, or ray=local for one of this run")
    if arguments.shard is not None:
        raise UsageError(f"--engine gives out the parts itself; --shard {arguments.shard} says which to make")
    check_address(address or AUTO)
    return Engine(address=address or AUTO, workers=workers)


def run_on_engine(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    arguments: argparse.Namespace,
    stop: Callable[[], bool],
    engine: Engine,
) -> tuple[JobResult, ...]:
    """Run a plan's jobs, one after the other; return how each ended."""
    steps = run_jobs(plan)
    outputs = [output_key(Path(plan.folder) / step.output.path, state_dir) for step in steps]
    results = list(Execution.finished(plan))
    with bound(run=run_id, deployment=plan.deployment), hold_outputs(state_dir, outputs), joined(engine.address):
        log.info("run.started", manifest=plan.manifest)
        for step in steps:
            if stop():
                break
            with bound(job=step.job, model=step.model):
                hire = partial(
                    hired, engine.workers, needs_of(plan, step), _WORKER, _request(plan, step, run_id, arguments)
                )
                drive = Driver(
                    plan=plan,
                    step=step,
                    state_dir=state_dir,
                    run_id=run_id,
                    hire=hire,
                    observer=choose_progress(arguments),
                    stop=stop,
                )
                results.append(drive.run())
        log.info("run.finished", jobs={result.job: str(result.status) for result in results})
    return tuple(results)


def _request(plan: Plan, step: RunJob, run_id: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Return what a worker is asked: paths are those of this machine, and every node sees the same."""
    return {
        "plan_file": _full(arguments.paths[0]),
        "root": None if arguments.root is None else _full(arguments.root),
        "roots": [_full(root) for root in arguments.roots],
        "state_dir": None if arguments.state_dir is None else _full(arguments.state_dir),
        "job": step.job,
        "digest": bound_digest(plan, step),
        "run": run_id,
        "log_level": log_level(arguments),
    }


def _full(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  keeps links, which may lead elsewhere on another node
