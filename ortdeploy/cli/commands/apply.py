"""`ortdeploy apply`: plan a manifest and run the plan; a saved plan is planned again and must be the same."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np  # noqa: F401  here and not deeper: where Python's stack is about to grow, each call maps a new piece
from msgspec import Struct

from ortdeploy.cli.applying.outcomes import about_to_run, note_refusals, outcomes_of, tell_others
from ortdeploy.cli.applying.runner import Ended, Runner, with_kept_choices
from ortdeploy.cli.commands.shared import (
    planning,
    result_from_here,
    start_logging,
    terminal_width,
    use_color,
    write_diagnostics,
    write_plan,
)
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED, EXIT_USAGE, worst_of
from ortdeploy.cli.output.self_report import SelfReport
from ortdeploy.cli.output.streams import overheard
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import OrtdeployError, has_errors
from ortdeploy.fleet.this_device import files_of_commit
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo
from ortdeploy.planning.remembered.plan_cache import KIND, recall_plan
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.redaction import without_secrets
from ortdeploy.results.results import Status
from ortdeploy.state import memo
from ortdeploy.terminal_text import safe
from ortdeploy.views import text

if TYPE_CHECKING:
    from ortdeploy.cli.engines import Engine
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.planning.remembered.keep_checked import ToKeep

_BAD = (Status.FAILED, Status.INTERRUPTED)


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, and show how each job ended; if there was nothing to do, remember that.

    A manifest that is refused does not stop the others.
    """
    recollection = AnswerMemo(arguments)
    with overheard() as said:
        applied = _run(arguments, recollection)
    planned, to_keep = applied.planned, applied.to_keep
    if applied.code == EXIT_OK and planned.deployments:
        from ortdeploy.planning.remembered.dependencies import rests_on  # noqa: PLC0415

        with suppress(OrtdeployError):  # a state folder that has come to lead elsewhere keeps nothing
            state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
            memo.put_waiting(state_dir)
            if to_keep is not None:
                to_keep.keep()
            if applied.documents is not None and not any(plan.steps for plan in planned.plans):
                rested_on = rests_on(planned.deployments, arguments.paths, state_dir)
                if rested_on is not None:  # and what is said of this device rests on the commit
                    commit = files_of_commit(Path(planned.plans[0].folder))
                    rested_on = {**rested_on, "files": sorted({*rested_on["files"], *commit})}
                recollection.keep(rested_on, str(state_dir), said.text(), applied.documents)
    return applied.code


class _Applied(Struct, frozen=True, kw_only=True):
    """What was planned, the exit code, what is to be remembered, and the files that say how the device is.

    `documents` are None if one could not be written.
    """

    planned: Planned
    code: int
    to_keep: "ToKeep | None"
    documents: list[str] | None


def _run(arguments: argparse.Namespace, recollection: AnswerMemo) -> _Applied:
    with ExitStack() as stack:
        kept = start_logging(arguments, stack)
        engine = _engine_of(arguments)
        shard = _shard_of(arguments)
        in_shards = shard is not None or engine is not None
        planned, to_keep = _recall_or_plan(arguments, recollection, in_shards=in_shards)
        rejected = has_errors(planned.diagnostics)
        _show(planned, arguments)
        ended: list[Ended] = []
        stopped = StopFlag()
        if kept is not None and any(plan.steps for plan in planned.plans):
            kept.keep_in(state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots))
        reports = arguments.command == "apply" and not in_shards  # the workers of a cluster are no devices
        said = SelfReport(arguments)
        if reports:
            said.write(about_to_run(planned))
        if planned.plans or planned.stand_ins:
            with stopped.installed():
                runner = Runner(planned=planned, arguments=arguments, stopped=stopped, shard=shard, engine=engine)
                ended = list(runner.run())
        results = tuple(result for one in ended for result in one.results)
        documents: list[str] | None = []
        if arguments.command == "apply":
            outcomes = tuple(outcomes_of(planned, ended, arguments))
            tell_others(planned, outcomes, ended, arguments.state_dir)
            note_refusals(planned, ended, arguments)
            documents = said.write(outcomes if reports else ())
    if results or all(one.error is None for one in ended):
        _tell(planned, ended, arguments)
    _complain(ended)
    _forget_failed(planned, ended, recollection)
    bug = next((one.error for one in ended if one.error is not None and one.why is None), None)
    if bug is not None:
        raise bug
    codes = [code for one in ended for code in one.codes(stopped)]
    if rejected:
        codes.append(EXIT_REJECTED)
    lasting = all(one.error is None for one in ended) and all(one.refused for one in results if one.status in _BAD)
    if shard is not None and lasting:
        codes = [EXIT_USAGE if code == EXIT_REJECTED else code for code in codes]  # running it again changes nothing
    code = worst_of(codes)
    return _Applied(planned=planned, code=code, to_keep=to_keep if code == EXIT_OK else None, documents=documents)


def _show(planned: Planned, arguments: argparse.Namespace) -> None:
    """Print what was found, and the plans."""
    if arguments.format != "json":
        write_diagnostics(planned.diagnostics, arguments)
    is_shown = planned.plans or not has_errors(planned.diagnostics)
    if arguments.format == "text" and is_shown and not arguments.quiet:
        write_plan(planned.plans, arguments)
        sys.stdout.flush()


def _tell(planned: Planned, ended: "Sequence[Ended]", arguments: argparse.Namespace) -> None:
    """Print how the jobs ended: a table on a terminal, else a line for each job; with -q, only what went wrong."""
    results = [result for one in ended for result in one.results]
    if arguments.format == "json":
        from ortdeploy.views import json  # noqa: PLC0415  only if asked for

        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
        return
    if arguments.format == "sarif":
        return
    here = [result_from_here(one.plan, result) for one in ended for result in one.results]
    told = [one for one in here if not arguments.quiet or one.status in _BAD]
    width = terminal_width(sys.stdout)
    if width is not None:
        from ortdeploy.views.summary_table import render_table  # noqa: PLC0415  only on a terminal

        before = "" if arguments.quiet or not told else "\n"  # the plan stands above it
        sys.stdout.write(before + render_table(told, color=use_color(arguments), width=width))
    else:
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))


def _shard_of(arguments: argparse.Namespace) -> "Shard | None":
    said = getattr(arguments, "shard", None)
    if said is None:
        return None
    from ortdeploy.cli.command_line.shards import parse_shard  # noqa: PLC0415  only if asked for

    return parse_shard(said, os.environ)


def _engine_of(arguments: argparse.Namespace) -> "Engine | None":
    if getattr(arguments, "engine", None) is None and getattr(arguments, "workers", None) is None:
        return None
    from ortdeploy.cli.engines import engine_of  # noqa: PLC0415  only for a cluster

    return engine_of(arguments)


def _recall_or_plan(
    arguments: argparse.Namespace, recollection: AnswerMemo, *, in_shards: bool
) -> "tuple[Planned, ToKeep | None]":
    """Return the plan, and what is to be remembered of it. If it is remembered already, look at the data alone."""
    if arguments.command != "apply" or in_shards or arguments.last_good or arguments.root is not None:
        planned = _plan(arguments, in_shards=in_shards)
        return planned if in_shards else with_kept_choices(planned, arguments), None  # workers take the plan's
    recalled = recall_plan(recollection, arguments.paths, arguments.roots, arguments.state_dir)
    if recalled is not None:
        return with_kept_choices(recalled, arguments), None
    planned = with_kept_choices(_plan(arguments, in_shards=False), arguments)
    if not planned.deployments or not any(plan.steps for plan in planned.plans):
        return planned, None
    from ortdeploy.planning.remembered.keep_checked import ToKeep  # noqa: PLC0415  only if it was planned

    with suppress(OrtdeployError):
        state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
        return planned, ToKeep(recollection, planned, arguments.paths, state_dir)
    return planned, None


def _plan(arguments: argparse.Namespace, *, in_shards: bool) -> Planned:
    from ortdeploy.cli.plans import load_or_plan  # noqa: PLC0415  not where the plan is remembered

    computes = getattr(arguments, "engine", None) is None  # else its workers do
    with planning(arguments):
        return load_or_plan(arguments, in_shards=in_shards, computes=computes)


def _complain(ended: Sequence[Ended]) -> None:
    """Say which errors kept plans or jobs from running; name the manifest if there are several."""
    is_alone = len({one.plan.manifest for one in ended}) == 1
    for one in ended:
        if one.why is not None:
            which = "" if is_alone else f"{one.plan.manifest}: "
            sys.stderr.write(safe(without_secrets(f"ortdeploy: {which}{one.why}.\n")))


def _forget_failed(planned: Planned, ended: Sequence[Ended], recollection: AnswerMemo) -> None:
    """Let a remembered plan that has failed be made again: a broken device shows in nothing that is compared."""
    if planned.documents and any(one.has_failed for one in ended):
        recollection.forget(KIND)
