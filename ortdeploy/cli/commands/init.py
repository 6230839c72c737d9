"""`ortdeploy init MODEL.onnx`: write a manifest for a model, with its contract, its digest and a job that runs.

A model of a known family gets its whole pipeline. The first rows of each manifest run before `init` keeps it. Sample
rows are written beside the manifest, unless --from names the user's own.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.cli.commands.shared import findings_text, named_model, start_logging
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.tryouts import failed_rows, plan_tryout, run_tryout, tried_rows
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, errors_in, has_errors
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.names import is_folder, is_there
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.tryout import Tryout
from ortdeploy.results.results import JobResult, Status
from ortdeploy.shell import command
from ortdeploy.starters import magika
from ortdeploy.starters.catalogue import starters_for
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.open_sizes import run_on_synthetic
from ortdeploy.starters.output_sizes import sizes_of
from ortdeploy.starters.provenance import assumptions, smaller_batches
from ortdeploy.starters.user_data import look_at_data
from ortdeploy.terminal_text import safe
from ortdeploy.views.text import count
from ortdeploy.views.tryout import is_hollow, is_null, render_failed, render_hollow, result_names

_TRIED_ROWS = 8
_MOST_ACTIVATIONS = 1024**3
_TOO_LARGE = "over-memory-limit"
_FAILING = "failing-rows"
"""The warning about rows that planning has read and that cannot feed the model."""


def run(arguments: argparse.Namespace) -> int:
    """Write the first manifest whose rows run, and say what it is for, or which one thing is unknown."""
    model = Path(arguments.model)
    manifest = Path(arguments.output) if arguments.output else _default_place(model)
    _refuse_to_overwrite(manifest)
    subject = subject_of(model, manifest, arguments)
    first: _Tried | None = None
    for starter in starters_for(subject):
        tried = _try_smaller(starter, manifest, crashes=subject.ran.crashed, color=arguments.color)
        if tried.works:
            complete = tried.is_complete
            quiet = arguments.quiet and complete
            sys.stdout.write("" if quiet else _told(tried, manifest, subject, instead_of=first))
            return EXIT_OK if complete else EXIT_REJECTED
        first = first or tried
        _remove(tried.starter, manifest)
    if first is None:
        graphs = sorted(one.name for one in Path(model).glob("*.onnx"))
        here = f" It holds {', '.join(graphs[:5])}{', …' if graphs[5:] else ''}." if graphs else ""
        raise OrtdeployError(
            f"{model} is a folder without genai_config.json, and without text_encoder, unet and vae_decoder, each with "
            f"a model.onnx.{here} init takes a .onnx file, or the folder of a model that writes or of Stable Diffusion"
        )
    _write(first.starter, manifest)
    sys.stdout.write(_told(first, manifest, subject, instead_of=None))
    return EXIT_REJECTED


def _default_place(model: Path) -> Path:
    """Return a path for the manifest from which the model is inside of the tree: here, else beside the model."""
    here = Path.cwd()
    inside = model.resolve().is_relative_to(here) and model.resolve() != here
    folder = Path() if inside else model.resolve().parent if is_folder(str(model)) else model.parent
    return folder / f"{model.resolve().name if is_folder(str(model)) else model.stem}.yaml"


def _refuse_to_overwrite(path: Path) -> None:
    if is_there(path):
        raise OrtdeployError(f"{path} is there already and is not overwritten; choose another name with -o")


def subject_of(model: Path, manifest: Path, arguments: argparse.Namespace) -> Subject:
    """Inspect the model or folder, and the data for it. Raises OrtdeployError."""
    folder = manifest.absolute().parent
    in_folder = is_folder(str(model))
    facts = None if in_folder else named_model(arguments.model)
    try:
        path = model.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError as error:
        raise OrtdeployError(
            f"{model} must lie below the manifest's folder {folder}; choose another place with -o"
        ) from error
    subject = Subject(model=model.resolve(), folder=folder, path=path, stem=manifest.stem)
    if facts is not None:
        subject = replace(subject, facts=facts)
    if arguments.data:
        read_as = magika.FORMAT if magika.takes_files(subject) else None
        subject = replace(subject, data=look_at_data(Path(arguments.data), folder, read_as))
    if facts is None:
        return subject
    ran = run_on_synthetic(facts)
    return replace(subject, ran=ran, sizes=sizes_of(facts, ran.fed))


class _Tried(Struct, frozen=True, kw_only=True):
    """The result of a manifest's first rows.

    `findings` are the diagnostics with the lines that they are about, `failed` says why the first row has failed, and
    `rows` are those that its job has written.
    """

    starter: Starter
    diagnostics: tuple[Diagnostic, ...] = ()
    findings: str = ""
    failed: str = ""
    results: tuple[JobResult, ...] = ()
    rows: tuple[RunJob, list[dict[str, Any]]] | None = None
    heavy: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to write or to find out, and rows give results."""
        return not self.starter.needed and self.starter.unsaid is None and not self._gives_nothing()

    def _gives_nothing(self) -> bool:
        """Whether no result of any row is a number, or no row gives a line of its own to the output."""
        if self.rows is None:
            return False
        step, rows = self.rows
        names = result_names(rows, step.input.key)
        lines = self.starter.explodes and any(is_hollow(rows, name) for name in names)
        return lines or (bool(names) and all(is_null(rows, name) for name in names))

    def hollow(self, *, constant: bool) -> str:
        """Return what of the results holds nothing, or (`constant`) the same in all rows."""
        if self.rows is None:
            return ""
        step, rows = self.rows
        return render_hollow(step.job, rows, step.input.key, constant=constant)

    @property
    def is_too_large(self) -> bool:
        """Whether a smaller batch is to be tried: it takes much memory, or memory alone is against it."""
        errors = errors_in(self.diagnostics)
        return self.heavy or (bool(errors) and all(one.rule == _TOO_LARGE for one in errors))

    @property
    def works(self) -> bool:
        """Whether there is no diagnostic against it, and all rows gave a result."""
        ended_well = all(one.status is Status.DONE and not one.failed for one in self.results)
        enough = self.starter.takes_long or bool(self.results)
        fail = any(one.rule == _FAILING for one in self.diagnostics)
        return enough and ended_well and not fail and not has_errors(self.diagnostics)

    def trouble(self) -> str:
        """Return why it does not work."""
        ended = [one.reason for one in self.results if one.reason]
        return self.findings + "".join(f"  {reason}\n" for reason in ended) + self.failed


def _try_smaller(starter: Starter, manifest: Path, *, crashes: bool, color: str) -> _Tried:
    """Try a starter, with smaller batches for as long as memory alone is against it. Raises OrtdeployError."""
    tried = _try(starter, manifest, crashes=crashes, color=color)
    for size in smaller_batches(starter.page):
        if not tried.is_too_large:
            break
        _remove(tried.starter, manifest)
        tried = _try(replace(starter, page=size), manifest, crashes=crashes, color=color)
    return tried


def _try(starter: Starter, manifest: Path, *, crashes: bool, color: str) -> _Tried:
    """Write a manifest and run its first rows in a scratch folder. Raises OrtdeployError if it cannot be written.

    `crashes`: every invented input crashed the process that ran it, so nothing is run in this process.
    """
    _write(starter, manifest)
    try:
        with scratch_folder("init") as scratch:
            log_file = str(scratch.path / "log")
            flags = ["--format", "text", "--log-format", "json", "--log-file", log_file, "--quiet", "--color", color]
            arguments = build_parser("try").parse_args(["try", *flags, "--", str(manifest)])
            tryout = Tryout(folder=scratch.path, rows=_TRIED_ROWS)
            with ExitStack() as stack:
                start_logging(arguments, stack)
                planned = plan_tryout(tryout, arguments)
                heavy = _takes_much(planned) and next(smaller_batches(starter.page), None) is not None
                waits = starter.takes_long or crashes or heavy
                results = () if waits else run_tryout(tryout, planned, arguments)
            steps = [step for plan in planned.plans for step in run_jobs(plan)]
            failed = next((row for step in steps for row in failed_rows(step)), None)
            rows = (steps[0], tried_rows(steps[0])) if steps else None
    except BaseException:
        _remove(starter, manifest)
        raise
    findings = findings_text(planned.diagnostics, arguments, sys.stdout)
    why = render_failed([failed] if failed is not None else [])
    return _Tried(
        starter=starter,
        diagnostics=planned.diagnostics,
        findings=findings,
        failed=why,
        results=results,
        rows=rows,
        heavy=heavy,
    )


def _takes_much(planned: Planned) -> bool:
    """Return whether runs of the batch that is written would take more memory than many devices have to spare."""
    forecasts = (step.limits.forecast for plan in planned.plans for step in run_jobs(plan))
    parts = (part for one in forecasts if one is not None for part in one.parts)
    return any(part.size > _MOST_ACTIVATIONS for part in parts if part.what == "activations")


def _write(starter: Starter, manifest: Path) -> None:
    """Write the sample rows of a starter, then its manifest. Raises OrtdeployError."""
    for path in _files(starter, manifest):
        _refuse_to_overwrite(path)
    try:
        for path, content in _contents(starter, manifest):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_whole(path) as file:
                file.write(content)
    except OSError as error:
        _remove(starter, manifest)
        raise OrtdeployError(f"{error.filename or manifest} cannot be written: {error.strerror}") from error


def _contents(starter: Starter, manifest: Path) -> Iterator[tuple[Path, bytes]]:
    for name, content in starter.files.items():
        yield manifest.parent / name, content
    yield manifest, starter.text.encode()


def _files(starter: Starter, manifest: Path) -> list[Path]:
    return [path for path, _ in _contents(starter, manifest)]


def _remove(starter: Starter, manifest: Path) -> None:
    """Delete the files of a starter that does not run."""
    for path in _files(starter, manifest):
        path.unlink(missing_ok=True)
        if path.parent != manifest.parent:
            with suppress(OSError):  # what is in use by others stays
                path.parent.rmdir()


def _told(tried: _Tried, manifest: Path, subject: Subject, *, instead_of: _Tried | None) -> str:
    """Return the last words: what was written and what for, what is left out or unknown, and what comes next."""
    samples = [str(path) for path in _files(tried.starter, manifest) if path != manifest]
    beside = f", with {', '.join(samples)} beside it" if samples else ""
    ran = sum(one.committed for one in tried.results)
    long = " None of its rows ran: that takes long." if tried.starter.takes_long and tried.works else ""
    told = f" It ran {count(ran, 'row')}." if ran else long
    lines = [f"Wrote {manifest} for {tried.starter.family}{beside}.{told}"]
    if instead_of is not None and instead_of.starter.family != tried.starter.family:
        lines.append(
            f"It looked like {instead_of.starter.family}, whose manifest does not run:\n{instead_of.trouble()}"
        )
    if not tried.works:
        lines.append("The manifest does not run yet.")
        lines.append("" if has_errors(tried.diagnostics) else tried.starter.if_refused or "")
        lines.append(tried.starter.misfit or "")
    if subject.data is not None and subject.data.left_out:
        lines.append(f"It reads {subject.data.path}. Other files of that folder are left out: {subject.data.left_out}.")
    lines.append(f"{tried.starter.question}." if tried.starter.question else "")
    lines.append(f"The manifest cannot say {tried.starter.unsaid}." if tried.starter.unsaid else "")
    lines.append(tried.hollow(constant=subject.data is not None).rstrip())
    lines.append(tried.trouble().rstrip())
    named = os.path.join(".", manifest) if str(manifest).startswith("-") else str(manifest)  # noqa: PTH118  Path drops it
    lines.append(
        f"{'Next' if tried.works and tried.is_complete else 'After that'}: {command('ortdeploy', 'try', named)}"
    )
    lines += assumptions(tried.starter.page.written, str(manifest))
    return safe("\n".join(line for line in lines if line) + "\n")
