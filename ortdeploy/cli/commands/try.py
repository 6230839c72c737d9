"""`ortdeploy try`: run a few rows into a scratch folder and show the results.

No ledger and no output folder changes: everything goes into a temporary folder. Results are printed as tables. What a
model found in pictures is drawn on copies, and a capable terminal shows the first of them. Only a folder with pictures
is kept at the end, until the next try.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ortdeploy.cli.commands.shared import start_logging, use_color, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.tryouts import STATE, failed_rows, plan_tryout, run_tryout, tried_rows
from ortdeploy.diagnostics import has_errors
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.tryout import Tryout
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sinks.drawn import draw, drawing_of
from ortdeploy.sinks.row_files import IMAGES
from ortdeploy.sources.image import EXIF
from ortdeploy.terminal_text import printable, safe
from ortdeploy.transforms.sample_rates import RESAMPLE
from ortdeploy.views import json as json_view
from ortdeploy.views import text
from ortdeploy.views.terminal_pictures import protocol_of, render_picture, terminal_columns
from ortdeploy.views.tryout import render_failed, render_hollow, render_spans, render_texts, render_tryout

_DRAWN = "drawn"
_SHOWN_PICTURES = 3


def run(arguments: argparse.Namespace) -> int:
    """Plan, run the first rows, and show them. The folder stays if it has pictures."""
    with scratch_folder("try") as scratch:
        scratch.keep, code = _try(Tryout(folder=scratch.path, rows=arguments.rows), arguments)
        shutil.rmtree(scratch.path / STATE, ignore_errors=True)
    return code


def _try(tryout: Tryout, arguments: argparse.Namespace) -> tuple[bool, int]:
    """Return whether the folder has pictures, and the exit code."""
    wrong_alone = arguments.quiet
    arguments.quiet = arguments.quiet or not arguments.verbose  # what a row has done is in the table
    with ExitStack() as stack:
        start_logging(arguments, stack)
        planned = plan_tryout(tryout, arguments)
        if arguments.format == "text":
            write_diagnostics(planned.diagnostics, arguments)
        results = run_tryout(tryout, planned, arguments)
    shown = [_Shown(plan, step, tryout) for plan in planned.plans for step in run_jobs(plan)]
    pictures = [picture for one in shown for picture in one.pictures()] if not wrong_alone else []
    if arguments.format == "json":
        rows = {one.step.job: one.rows for one in shown}
        sys.stdout.write(json_view.render_tryout(planned.diagnostics, results, rows, [str(one) for one in pictures]))
    else:
        rejected = has_errors(planned.diagnostics)
        _print(shown, results, pictures, arguments, wrong_alone=wrong_alone, is_rejected=rejected)
    bad = has_errors(planned.diagnostics) or any(one.status is not Status.DONE or one.failed for one in results)
    return bool(pictures), EXIT_REJECTED if bad else EXIT_OK


def _print(
    shown: "Sequence[_Shown]",
    results: Sequence[JobResult],
    pictures: Sequence[Path],
    arguments: argparse.Namespace,
    *,
    wrong_alone: bool,
    is_rejected: bool,
) -> None:
    """Print the rows of each job; with `wrong_alone`, only what has failed."""
    color = use_color(arguments)
    for one in shown:
        if wrong_alone:
            sys.stdout.write(render_failed(one.failed))
            continue
        if one.step.writing is not None and {"text", "tokens", "finish_reason"} <= {*one.step.output.columns}:
            prompt = one.step.inputs[0].columns[0]
            sys.stdout.write(render_texts(one.step.job, prompt, one.rows, one.failed, color=color))
            continue
        sys.stdout.write(render_tryout(one.step.job, one.rows, one.failed, color=color))
        sys.stdout.write(render_spans(one.rows, _heard_rate(one.step)))
        sys.stdout.write(render_hollow(one.step.job, one.rows, one.step.input.key))
    if not shown and not is_rejected and not wrong_alone:
        sys.stdout.write("There is nothing to try: the manifest has no jobs:, or none that was chosen.\n")
    ended = [one for one in results if one.status is not Status.DONE]
    sys.stdout.write(text.render_results(ended, color=color))
    _show(pictures, color=color)
    if pictures:
        more = f" and {len(pictures) - 1} more" if pictures[1:] else ""
        sys.stdout.write(safe(f"Pictures, kept until the next try: {pictures[0]}{more}\n"))


def _heard_rate(step: RunJob) -> int | None:
    """Return how many samples a second the model hears: as the last step that resamples says, else the input."""
    rates = [one.options[RESAMPLE] for given in step.inputs for one in given.steps if one.name == RESAMPLE]
    rates += [one.options[RESAMPLE] for one in step.pipeline.steps if one.name == RESAMPLE] if step.pipeline else []
    return rates[-1] if rates else step.input.settings.get("rate")


def _show(pictures: Sequence[Path], *, color: bool) -> None:
    """Show the first pictures on a capable terminal, each below its name."""
    protocol = protocol_of(sys.stdout, os.environ) if color else None
    if protocol is None:
        return
    for picture in pictures[:_SHOWN_PICTURES]:
        sys.stdout.write(f"{printable(picture.name)}\n{render_picture(picture, protocol, terminal_columns())}")


class _Shown:
    """The results of one job."""

    def __init__(self, plan: Plan, step: RunJob, tryout: Tryout) -> None:
        """Read the rows that the job wrote."""
        self.step = step
        self._folder, self._pictures = Path(plan.folder), tryout.folder / _DRAWN / step.job
        self.rows, self.failed = tried_rows(step), list(failed_rows(step))

    def pictures(self) -> Iterator[Path]:
        """Yield the pictures that the model made, and the copies with drawings."""
        yield from sorted((Path(self.step.output.path) / IMAGES).glob("*.png"))
        yield from self._draw()

    def _draw(self) -> Iterator[Path]:
        if self.step.input.format != "image":
            return
        for number, row in enumerate(self.rows):
            drawing = drawing_of(row, self.step.output.columns)
            picture = self._folder / str(row.get("path", ""))
            if picture.is_file() and not drawing.is_empty:
                target = self._pictures / f"{number:04d}-{picture.stem}.png"
                draw(picture, drawing, target, upright=EXIF.of(self.step.input.settings))
                yield target
