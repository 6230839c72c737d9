"""What several commands share: options of manifests, diagnostics in the chosen format, logs."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.output.streams import failure_of, lasting
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, has_errors
from ortdeploy.events import log
from ortdeploy.files.listing import expand, has_magic
from ortdeploy.files.names import is_there
from ortdeploy.files.urls import path_from_here
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.terminal_text import safe
from ortdeploy.views import github, sarif, text

if TYPE_CHECKING:
    from ortdeploy.cli.output.log import KeptLog
    from ortdeploy.facts.models import ModelFacts
    from ortdeploy.manifest.spec import JobSpec, Spec
    from ortdeploy.plan.steps import Plan
    from ortdeploy.results.results import JobResult
    from ortdeploy.views.live_line import Piece


_LOG_OPTIONS = ("log_format", "log_file", "color")


def device_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that --device names, each once; one that matches none is named as it is."""
    found = (name for one in patterns for name in (sorted(expand(one)) if has_magic(one) else []) or [one])
    return list(dict.fromkeys(found))


def use_color(arguments: argparse.Namespace) -> bool:
    """Return whether stdout gets colors."""
    return wants_color(sys.stdout, arguments.color)


def wants_color(stream: TextIO, choice: str | None) -> bool:
    """Return whether to color a stream: by `choice`, by NO_COLOR or FORCE_COLOR, or if it is a capable terminal."""
    if choice in {"always", "never"}:
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb" and sys.platform != "win32"


def write_diagnostics(diagnostics: Sequence[Diagnostic], arguments: argparse.Namespace) -> None:
    """Print diagnostics as text, as GitHub annotations or as SARIF."""
    if arguments.format == "github":
        sys.stdout.write(github.render_diagnostics(diagnostics))
    elif arguments.format == "sarif":
        from ortdeploy.rules.pages import page_of  # noqa: PLC0415  only if asked for
        from ortdeploy.versions import package_version  # noqa: PLC0415

        version = package_version("ortdeploy")
        sys.stdout.write(sarif.render_diagnostics(diagnostics, lambda rule: page_of(rule) or rule, version))
    else:
        write_findings(diagnostics, arguments, sys.stdout)


def write_findings(diagnostics: Sequence[Diagnostic], arguments: argparse.Namespace, stream: TextIO) -> None:
    """Print diagnostics as text, with the lines that they are about."""
    stream.write(findings_text(diagnostics, arguments, stream))


def findings_text(diagnostics: Sequence[Diagnostic], arguments: argparse.Namespace, stream: TextIO) -> str:
    """Return diagnostics as text, with the lines that they are about, to be written to the stream."""
    if not diagnostics:
        return ""
    from ortdeploy.cli.output.source_lines import SourceLines  # noqa: PLC0415  only where something is wrong

    color = wants_color(stream, arguments.color)
    width, lines = terminal_width(stream), SourceLines(getattr(arguments, "texts", {}))
    shown = text.render_diagnostics(diagnostics, color=color, line_of=lines, width=width)
    return shown if width is None else f"{shown}\n"  # a table, a plan or a summary follows


def chosen_jobs(arguments: argparse.Namespace) -> "tuple[list[tuple[Spec, JobSpec]], bool]":
    """Return the jobs that the command line chooses, and whether a manifest was refused, which is then reported.

    A manifest that is refused keeps no other from the command.
    """
    from ortdeploy.planning.devices.variants import as_last_chosen  # noqa: PLC0415  as below
    from ortdeploy.planning.job_names import select_jobs  # noqa: PLC0415  brings all that planning does
    from ortdeploy.planning.validation import validate  # noqa: PLC0415  brings all that planning does

    choose = as_last_chosen(arguments.state_dir)
    validated = validate(arguments.paths, load_options(arguments), choose=choose)
    rejected = has_errors(validated.diagnostics)
    write_findings(validated.diagnostics if rejected else (), arguments, sys.stderr)
    jobs = [(spec, job) for spec in validated.specs for job in spec.jobs]
    wanted = select_jobs(arguments.jobs, arguments.excluded, [job.name for _, job in jobs]) if jobs else ()
    return [(spec, job) for spec, job in jobs if job.name in wanted], rejected


def write_plan(plans: Sequence["Plan"], arguments: argparse.Namespace) -> None:
    """Print plans as trees, broken to the width of the terminal."""
    from ortdeploy.views.plan_tree import render_plan  # noqa: PLC0415  only for plans

    color, width = use_color(arguments), terminal_width(sys.stdout)
    shown = render_plan(plans, color=color, verbose=arguments.verbose, width=width, found_at=path_from_here)
    sys.stdout.write(shown)


def result_from_here(plan: "Plan", result: "JobResult") -> "JobResult":
    """Return the result of a plan's job with its output as a path from the current folder."""
    return replace(result, output=path_from_here(plan.folder, result.output))


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of a terminal, at least forty; None if the stream is none."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return max(int(told), _NARROWEST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or _USUAL, _NARROWEST)
    except OSError:
        return _USUAL


_NARROWEST, _USUAL = 40, 80


def can_move(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can write over what it shows."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def live_line(arguments: argparse.Namespace, pieces: "Callable[[bool], Iterable[Piece]]") -> Iterator[None]:
    """Show a live line inside the block, if stderr is a terminal that can show one and -q is not given."""
    if arguments.quiet or not can_move(sys.stderr):
        yield
        return
    from ortdeploy.views.live_line import Line  # noqa: PLC0415  brings rich

    line = Line(sys.stderr, pieces, color=wants_color(sys.stderr, arguments.color))
    try:
        yield
    finally:
        line.close()


@contextmanager
def planning(arguments: argparse.Namespace) -> Iterator[None]:
    """Say on a terminal that the block plans, if it takes a while."""
    if arguments.quiet or not can_move(sys.stderr):
        yield
        return
    from ortdeploy.views.live_line import Notice  # noqa: PLC0415  only on a terminal

    with Notice(sys.stderr, "planning \u2026"):
        yield


def start_logging(arguments: argparse.Namespace, stack: ExitStack) -> "KeptLog | None":
    """Send logs to stderr or to --log-file, in the chosen format.

    On a terminal without such flags, only warnings and errors are shown. Then return a KeptLog, which takes all events
    until the command knows in which file to keep them.
    """
    from ortdeploy.cli.output.log import KeptLog, configure_logging  # noqa: PLC0415  validate does without
    from ortdeploy.views.live_line import AboveLine  # noqa: PLC0415

    level = log_level(arguments)
    if arguments.log_file:
        from ortdeploy.cli.command_line.targets import Target, check_target  # noqa: PLC0415  few logs go to a file

        check_target("--log-file", arguments.log_file, Target.LOG, arguments)
        try:
            stream = lasting(Path(arguments.log_file).open("ab", buffering=0))  # noqa: SIM115  the stack closes it
        except OSError as error:
            raise OrtdeployError(f"the log file {arguments.log_file} cannot be written: {error.strerror}") from error
        stack.callback(_close_log, stream, arguments.log_file)
    else:
        stream = sys.stderr
    color = wants_color(stream, arguments.color)
    shows_warnings = stream.isatty() and arguments.log_format is None and level == "info" and not arguments.log_file
    kept = KeptLog() if shows_warnings else None
    if kept is not None:
        stack.callback(kept.close)
    configure_logging(form=arguments.log_format, stream=AboveLine(stream), level=level, color=color, kept=kept)
    return kept


def log_level(arguments: argparse.Namespace) -> str:
    """Return the least level of the events that a command logs."""
    return "warning" if arguments.quiet else "debug" if arguments.verbose else "info"


@contextmanager
def logged_warnings(arguments: argparse.Namespace) -> Iterator[None]:
    """Log Python's warnings inside the block; the first one starts logging if the command has not."""
    options = _log_options(arguments)
    with ExitStack() as stack:

        def emit(category: str, text: str, place: str) -> None:
            from ortdeploy.cli.output.log import log_warning  # noqa: PLC0415  only where something warns

            if not log.is_sent:
                start_logging(options, stack)
                stack.callback(log.send_to, None)
            log_warning(category, text, place)

        stack.enter_context(warnings_to(emit))
        yield


def _log_options(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return a command's arguments with all that say how it logs, which some commands do not have."""
    return argparse.Namespace(**{**dict.fromkeys(("quiet", "verbose", *_LOG_OPTIONS)), **vars(arguments)})


def _close_log(stream: TextIO, path: str) -> None:
    """Close a log file, and report if it is incomplete."""
    stream.close()
    failure = failure_of(stream)
    if failure is not None:
        why = f"ortdeploy: the log file {path} could not be written: {failure.strerror}. Its end is lost.\n"
        sys.stderr.write(safe(why))


def log_outcome(arguments: argparse.Namespace, event: str, **fields: object) -> None:
    """Log one event of a command whose result is on stdout, if a log flag is given."""
    if not (arguments.log_file or arguments.log_format):
        return
    with ExitStack() as stack:
        start_logging(arguments, stack)
        log.info(event, **fields)


def log_here(arguments: argparse.Namespace, tell: "Callable[..., None]", event: str, **fields: object) -> None:
    """Log one event outside of what a command logs; a person at a terminal has been told already."""
    options = _log_options(arguments)
    if sys.stderr.isatty() and not (options.log_file or options.log_format):
        return
    with ExitStack() as stack:
        start_logging(options, stack)
        stack.callback(log.send_to, None)
        tell(event, **fields)


def named_model(path: str) -> "ModelFacts":
    """Return the facts of a model that the command line names. Raises OrtdeployError."""
    from ortdeploy.graph.model import read_model  # noqa: PLC0415  validate does not need onnx

    need_file(path)
    facts = read_model(Path(path), path)
    if facts.problem is not None:
        raise OrtdeployError(facts.problem.detail.rstrip("."))
    return facts


def write_file(path: str | Path, text: str, *, errors: str = "surrogateescape") -> None:
    """Write what the command line asked for; nothing is left if that fails. Raises OrtdeployError."""
    from ortdeploy.files.atomic import open_whole  # noqa: PLC0415  most commands print

    try:
        with open_whole(Path(path)) as file:
            file.write(text.encode(errors=errors))
    except OSError as error:
        raise OrtdeployError(f"{path} cannot be written: {error.strerror}") from error


def need_file(path: str) -> None:
    """Raise OrtdeployError if a file that the command line names is not there."""
    if not is_there(path):
        raise OrtdeployError(f"there is no file {path}")
