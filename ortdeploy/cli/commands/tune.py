"""`ortdeploy tune`: try settings of a job on its own rows, and write the best as an overlay file to commit."""

import argparse
import json as json_module
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.command_line.targets import Target, check_target
from ortdeploy.cli.commands.shared import (
    live_line,
    log_outcome,
    terminal_width,
    use_color,
    write_file,
    write_findings,
)
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError, UsageError, has_errors
from ortdeploy.files.disk import make_folders
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.manifest.write import block
from ortdeploy.planning.devices.variants import on_this_machine
from ortdeploy.planning.job_names import check_job_name
from ortdeploy.planning.overlay_search import Bounds, Search, Setting, Trial, overlay_of
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.process.child import ask, how_it_ended
from ortdeploy.process.cores import usable_cores
from ortdeploy.process.native_output import appended_reason
from ortdeploy.shell import command
from ortdeploy.state import memo
from ortdeploy.units import parse_size
from ortdeploy.views import json, tuning
from ortdeploy.views.live_line import AboveLine

_KIND = "trials"
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s)\Z")


def run(arguments: argparse.Namespace) -> int:
    """Search, show the trials, and write the overlay."""
    bounds = _bounds(arguments.limits)
    options = load_options(arguments)
    validated = validate(arguments.paths, options, choose=on_this_machine(options, arguments.state_dir))
    if validated.specs:
        check_job_name(arguments.job, [job.name for spec in validated.specs for job in spec.jobs])
    if has_errors(validated.diagnostics) or not validated.specs:
        write_findings(validated.diagnostics, arguments, sys.stderr)
        return EXIT_REJECTED
    spec, job = _only_job(validated.specs, arguments.job)
    path = Path(arguments.output or _default_path(spec, job))
    check_target("--output", str(path), Target.OVERLAY, arguments)
    if arguments.report:
        check_target("--report", arguments.report, Target.PAGE, arguments)
    search, best = _search(spec, job, bounds, arguments)
    trials = list(search.trials.values())
    before = search.trials[Setting()]
    is_written = best is not None and best.setting != Setting() and best.surely_beats(before)
    if best is not None and is_written:
        _write(path, best, before, spec, job)
    if arguments.report:
        page = tuning.render_html(spec.name, job.name, trials, best if is_written else None)
        write_file(arguments.report, page, errors="backslashreplace")
    _show(trials, best, str(path) if is_written else None, bounds, arguments)
    log_outcome(arguments, "job.tuned", job=job.name, trials=len(trials))
    return EXIT_OK if best is not None else EXIT_REJECTED


def _only_job(specs: Sequence[Spec], name: str) -> tuple[Spec, JobSpec]:
    """Return the job to tune, with its manifest. Raises UsageError if it cannot be tuned."""
    if len(specs) > 1:
        raise UsageError("tune searches the settings of one job of one manifest")
    job = next(job for job in specs[0].jobs if job.name == name)
    if job.input.job is not None:
        raise UsageError(
            f'tune runs jobs that read files, and job "{job.name}" reads the rows of job "{job.input.job}". Tune a '
            "copy of the job that reads copies of its parts"
        )
    return specs[0], job


def _show(
    trials: Sequence[Trial], best: Trial | None, written: str | None, bounds: Bounds, arguments: argparse.Namespace
) -> None:
    """Write the trials as a table or as JSON; `written`: the path of the overlay."""
    if arguments.format == "json":
        plain = [to_builtins(one) for one in trials]
        sys.stdout.write(json.render_tuning(plain, to_builtins(best) if best else None, written))
        return
    sys.stdout.write(
        tuning.render_table(
            trials,
            best,
            written,
            color=use_color(arguments),
            quiet=arguments.quiet,
            width=terminal_width(sys.stdout),
            bounds=bounds,
        )
    )


def _search(spec: Spec, job: JobSpec, bounds: Bounds, arguments: argparse.Namespace) -> tuple[Search, Trial | None]:
    """Search with a live line, and print a line for each trial; return the search and its best trial."""
    kept = _Kept(state_folder(spec.folder, arguments.state_dir, spec.roots), spec, job, arguments)
    line = tuning.SearchLine(job.name, kept.trials.values())

    def once(setting: Setting) -> Trial:
        line.begin(setting)
        return _try(setting, spec, job, arguments)

    def told(trial: Trial) -> Trial:
        line.end(trial)
        if not arguments.quiet:
            AboveLine(sys.stderr).write(tuning.render_numbered(line.number, trial, terminal_width(sys.stderr)))
            sys.stderr.flush()
        return kept.note(trial)

    search = Search(
        spec=spec,
        job=job,
        bounds=bounds,
        cores=usable_cores(),
        run=lambda setting: told(once(setting)),
        trials=kept.trials,
        repeat=lambda trial: told(_repeated(trial, once(trial.setting))),
    )
    with live_line(arguments, line.pieces):
        return search, search.best()


def _bounds(limits: Sequence[str]) -> Bounds:
    """Read --limit. Raises UsageError."""
    memory: int | None = None
    p99: float | None = None
    for limit in limits:
        key, _, value = limit.partition("=")
        if key == "memory" and (memory := parse_size(value)) is not None:
            continue
        found = _SECONDS.match(value)
        if key == "p99" and found:
            p99 = float(found[1]) * (0.001 if found[2] == "ms" else 1.0)
            continue
        raise UsageError(f"--limit {limit}: write memory=512MiB or p99=50ms")
    return Bounds(memory=memory, p99=p99)


def _default_path(spec: Spec, job: JobSpec) -> Path:
    return Path(spec.path).parent / "overlays" / f"{Path(spec.path).stem}.{quote(job.name, safe=' ')}.yaml"


def _write(path: Path, best: Trial, before: Trial, spec: Spec, job: JobSpec) -> None:
    """Write the overlay, with the gain in a comment. Raises OSError, OrtdeployError."""
    folder = Path(spec.path).parent
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    overlay = overlay_of(best.setting, job, spec.models_of(job))
    gained = f"{best.speed:,.0f} rows/s, before {before.speed:,.0f}"
    make_folders(path.parent)
    head = f"# Written by ortdeploy tune for job {job.name} of {Path(spec.path).name}: {gained}.\n"
    head += f"# {command('ortdeploy', 'apply', Path(spec.path).name, '--overlay', str(shown))}\n"
    write_file(path, head + block(overlay), errors="backslashreplace")


class _Kept:
    """The trials of a search, kept in the state folder, so that a stopped search can continue."""

    def __init__(self, state_dir: Path, spec: Spec, job: JobSpec, arguments: argparse.Namespace) -> None:
        self._state_dir = state_dir
        planned = plan_manifests(
            [spec.path], load_options(arguments), state_dir=arguments.state_dir, jobs=[job.name], new_run=True
        )
        facts = {f"{fact.kind} {fact.name}": fact.value for plan in planned.plans for fact in plan.facts}
        self._key = json_module.dumps([job.name, arguments.seconds, sorted(facts.items())])
        self.trials: dict[Setting, Trial] = {}
        with suppress(ValidationError):
            known = convert(memo.get(state_dir, _KIND, self._key) or (), tuple[Trial, ...])
            self.trials = {trial.setting: trial for trial in known}

    def note(self, trial: Trial) -> Trial:
        """Keep a trial."""
        self.trials[trial.setting] = trial
        with suppress(OSError):
            make_folders(self._state_dir)
        memo.put(self._state_dir, _KIND, self._key, [to_builtins(one) for one in self.trials.values()])
        return trial


def _repeated(trial: Trial, second: Trial) -> Trial:
    """Return a trial with the speed of a second try, or why that failed."""
    return replace(trial, repeated=second.rows_per_second, refused=second.refused)


def _try(setting: Setting, spec: Spec, job: JobSpec, arguments: argparse.Namespace) -> Trial:
    """Run the job with a setting in a child, so that its memory is its own, and a crash is a result."""
    with tempfile.TemporaryDirectory(prefix="ortdeploy-tune-") as folder:
        (Path(folder) / "overlay.yaml").write_text(block(overlay_of(setting, job, spec.models_of(job))) or "{}\n")
        request = {
            "manifest": spec.path,
            "job": job.name,
            "folder": folder,
            "seconds": arguments.seconds,
            "profile": spec.profile_to_ask_for,
            "sets": arguments.sets,
            "roots": arguments.roots,
            "overlays": arguments.overlays,
        }
        try:
            answer = ask("ortdeploy.cli.children.tune", request)
        except OSError as error:
            raise OrtdeployError(f"a trial cannot be started: {error.strerror}") from error
    if answer.code != 0 or not answer.messages:
        why = f"{how_it_ended(answer.code)}{appended_reason(answer.printed)}"
        return Trial(setting=setting, refused=f"the process that ran it {why}")
    return Trial(setting=setting, **answer.messages[-1])
