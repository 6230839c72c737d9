"""Entry of the program: runs a command from `commands/`, and turns every ending into an exit code."""

import atexit
import gc
import importlib
import io
import os
import sys
import threading
from contextlib import ExitStack, suppress

from ortdeploy.cli.command_line.arguments import COMMANDS, build_parser
from ortdeploy.cli.exit_codes import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_LOCKED,
    EXIT_OK,
    EXIT_REJECTED,
    EXIT_USAGE,
)
from ortdeploy.cli.os_errors import fault_of_the_machine
from ortdeploy.cli.output.ascii_fallback import ERRORS
from ortdeploy.cli.output.streams import failure_of, open_missing, private_streams
from ortdeploy.files import names
from ortdeploy.process import last_words
from ortdeploy.process.held_signals import interrupt_again
from ortdeploy.process.libraries import set_up_libraries
from ortdeploy.process.without_pandas import spare_pandas

_ALLOCATIONS = 150_000
"""New objects before Python searches for cycles; its default causes hundreds of searches during imports."""

MEANT = {
    **dict.fromkeys(("deploy", "exec", "execute", "infer", "install", "predict", "run", "start"), "apply"),
    **dict.fromkeys(("bench", "benchmark", "optimize", "profile"), "tune"),
    **dict.fromkeys(("create", "new"), "init"),
    **dict.fromkeys(("info", "list", "ls", "ps", "report", "show"), "status"),
    **dict.fromkeys(("lint", "test"), "validate"),
    **dict.fromkeys(("dry-run", "dryrun", "preview"), "plan"),
    "help": "--help",
    "version": "--version",
}
"""What other programs call what a command does."""
_FOR_FILES = {".onnx": "init", ".tar": "apply", ".yaml": "apply", ".yml": "apply"}
"""The command that somebody means who names a file alone."""

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import NoReturn


def main(argv: "Sequence[str] | None" = None, begin: "Callable[[str], None] | None" = None) -> int:
    """Run one command and return its exit code. Nothing that a user can cause ends in a traceback.

    `begin` is called with the command's name before it is loaded, if its answer is not known already.
    """
    open_missing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)
    with ExitStack() as streams:
        try:
            streams.enter_context(private_streams())
        except OSError as error:  # as if a process may open no more files
            return _fail(error)
        code, unwritten = _run(argv, begin), _unwritten()
        return code or unwritten


def _run(argv: "Sequence[str] | None", begin: "Callable[[str], None] | None") -> int:
    try:
        arguments = _parse(sys.argv[1:] if argv is None else list(argv))
        bundled = _concerns_bundles(arguments)
        answer = None if bundled else _answer_before_planning(arguments)
        if answer is not None:
            sys.stdout.write(answer)
            return EXIT_OK
        if begin is not None:
            begin(arguments.command)
        command = importlib.import_module(f"ortdeploy.cli.commands.{arguments.command}")
        from ortdeploy.cli.commands.shared import logged_warnings  # noqa: PLC0415  not where the arguments are wrong

        with logged_warnings(arguments):
            if bundled:
                from ortdeploy.cli.bundles.bundled import run_bundled  # noqa: PLC0415  only for bundles, and under a policy

                return run_bundled(arguments, command.run)
            return int(command.run(arguments))
    except SystemExit as exit_:  # argparse after --help
        return int(exit_.code or 0)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  the front door: what is not expected is our bug
        return EXIT_INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else _fail(error)


def _concerns_bundles(arguments: "argparse.Namespace") -> bool:
    """Return whether a command line names a bundle or an installed one, or a policy is in force.

    What is not there may be a bundle that was.
    """
    if getattr(arguments, "policy", None) is not None:
        return True
    try:
        os.lstat(names.POLICY)
    except (FileNotFoundError, NotADirectoryError):
        given = getattr(arguments, "paths", ())
        return any(names.names_bundle(path) or not os.path.lexists(path) for path in given)
    except OSError:  # whoever reads it says what is wrong
        pass
    return True


def _answer_before_planning(arguments: "argparse.Namespace") -> str | None:
    """Return the output if it is known before planning: of an apply with nothing to do, or a status without changes."""
    if arguments.command not in {"apply", "status"}:
        return None
    from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo  # noqa: PLC0415  only if there may be nothing to do

    return AnswerMemo(arguments).answer()


def _fail(error: Exception) -> int:
    diagnostics = sys.modules.get("ortdeploy.diagnostics")  # where it is not loaded, nothing has raised its errors
    if diagnostics is not None and isinstance(error, diagnostics.OrtdeployError):
        if isinstance(error, diagnostics.UsageError):
            named = str(error).startswith("ortdeploy ")  # the command, as it was typed
            return _complain(f"{error}" if named else f"ortdeploy: {error}", EXIT_USAGE)
        locked = isinstance(error, diagnostics.LockedError)
        return _complain(f"ortdeploy: {error}.", EXIT_LOCKED if locked else EXIT_REJECTED)
    reason = fault_of_the_machine(error)
    return _report_bug(error) if reason is None else _complain(f"ortdeploy: {reason}.", EXIT_REJECTED)


def run() -> None:
    """Be the program. The exit does not wait for threads that hang in native code or on a file."""
    try:
        set_up_libraries()
        spare_pandas()
        gc.set_threshold(_ALLOCATIONS)
        interrupt_again()
        code = main(begin=_be_watched)
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        if any(thread.name.startswith("ortdeploy-") for thread in others) or all(thread.daemon for thread in others):
            _end(code)
    except KeyboardInterrupt:  # before the command, or after it
        last_words.leave()
        os._exit(EXIT_INTERRUPTED)
    sys.exit(code)


def _be_watched(command: str) -> None:
    """Have a watcher say what ends this process before it has answered; one with nothing to do needs none."""
    last_words.begin(command)
    atexit.register(last_words.leave)


def _end(code: int) -> "NoReturn":
    """End the process with all that was written, and with what others have asked to be called at its end.

    Nothing is taken apart: Python would unload every module, and native libraries whatever they hold, which takes as
    long as a small job runs, and is when providers are known to crash.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  what Python itself calls then
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: was closed before the program began
        with suppress(OSError, ValueError):  # closed, or nobody reads it; `main` has said so
            stream.flush()
    os._exit(code)


def _parse(argv: list[str]) -> "argparse.Namespace":
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        from ortdeploy.diagnostics import UsageError, did_you_mean  # noqa: PLC0415  only when something is wrong

        meant = MEANT.get(argv[0].lower())
        command = _FOR_FILES.get(os.path.splitext(argv[0])[1].lower())  # noqa: PTH122  pathlib takes milliseconds to load
        meant = f"{command} {argv[0]}" if command else meant
        known = f'Did you mean "{meant}"?' if meant else did_you_mean(argv[0], COMMANDS, len(COMMANDS))
        raise UsageError(f'there is no command "{argv[0]}". {known}\nortdeploy --help says what each command does.')
    arguments = build_parser(only=argv[0] if argv and argv[0] in COMMANDS else None).parse_args(argv)
    arguments.words = argv
    return arguments


def _unwritten() -> int:
    """Report that results could not be written, and return the exit code; a reader who left knows it."""
    sys.stdout.flush()
    failure = failure_of(sys.stdout)
    if failure is None or isinstance(failure, BrokenPipeError):
        return EXIT_OK
    return _complain(f"ortdeploy: standard output cannot be written: {failure.strerror}.", EXIT_REJECTED)


def _complain(message: str, code: int) -> int:
    with suppress(OSError):  # no file may be left to load it from; then no secret was read either
        from ortdeploy.redaction import without_secrets  # noqa: PLC0415  only when something is wrong
        from ortdeploy.terminal_text import safe  # noqa: PLC0415

        message = safe(without_secrets(message))
    sys.stderr.write(f"{message}\n")
    return code


def _report_bug(error: Exception) -> int:
    import traceback  # noqa: PLC0415  only when something is wrong

    from ortdeploy.redaction import without_secrets  # noqa: PLC0415
    from ortdeploy.terminal_text import safe  # noqa: PLC0415
    from ortdeploy.versions import versions  # noqa: PLC0415

    facts = "".join(f"  {name}: {value}\n" for name, value in versions().items())
    trace = safe(without_secrets("".join(traceback.format_exception(error))))
    sys.stderr.write(
        f"ortdeploy: this is a bug of ortdeploy, not of your manifest. Please report it with this:\n{facts}{trace}"
    )
    return EXIT_BUG
