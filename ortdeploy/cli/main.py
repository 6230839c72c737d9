"""The front door: which command, and what each way of ending means. Commands are modules of `commands/`."""

import importlib
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortdeploy.cli.arguments import COMMANDS, build_parser
from ortdeploy.cli.exit_codes import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_LOCKED,
    EXIT_OK,
    EXIT_REJECTED,
    EXIT_USAGE,
)
from ortdeploy.cli.faults import fault_of_the_machine
from ortdeploy.cli.streams import failure_of, open_missing, private_streams
from ortdeploy.diagnostics import LockedError, OrtdeployError, UsageError, did_you_mean
from ortdeploy.redaction import without_secrets

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing that a user can cause ends in a traceback."""
    open_missing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with private_streams():
        code, unwritten = _run(argv), _unwritten()
        return code or unwritten


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parse(sys.argv[1:] if argv is None else list(argv))
        command = importlib.import_module(f"ortdeploy.cli.commands.{arguments.command}")
        from ortdeploy.cli.commands.shared import logged_warnings  # noqa: PLC0415  not where the arguments are wrong

        with logged_warnings(arguments):
            return int(command.run(arguments))
    except SystemExit as exit_:  # argparse after --help
        return int(exit_.code or 0)
    except UsageError as error:
        return _complain(f"ortdeploy: {error}", EXIT_USAGE)
    except LockedError as error:
        return _complain(f"ortdeploy: {error}.", EXIT_LOCKED)
    except OrtdeployError as error:
        return _complain(f"ortdeploy: {error}.", EXIT_REJECTED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  the front door: anything else is our bug
        reason = fault_of_the_machine(error)
        return _report_bug(error) if reason is None else _complain(f"ortdeploy: {reason}.", EXIT_REJECTED)


def run() -> None:
    """Be the program. Threads that hang in native code or on a file are left behind, and the exit does not wait."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own allocator keeps what was freed
    code = main()
    if any(thread.name.startswith("ortdeploy-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _parse(argv: list[str]) -> "argparse.Namespace":
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise UsageError(f'there is no command "{argv[0]}". {did_you_mean(argv[0], COMMANDS, len(COMMANDS))}')
    return build_parser(only=argv[0] if argv and argv[0] in COMMANDS else None).parse_args(argv)


def _unwritten() -> int:
    """Say that results are not where they were sent, and return the exit code; whoever stopped to read knows it."""
    sys.stdout.flush()
    failure = failure_of(sys.stdout)
    if failure is None or isinstance(failure, BrokenPipeError):
        return EXIT_OK
    return _complain(f"ortdeploy: standard output cannot be written: {failure.strerror}.", EXIT_REJECTED)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"{without_secrets(message)}\n")
    return code


def _report_bug(error: Exception) -> int:
    import traceback  # noqa: PLC0415  only when something is wrong

    from ortdeploy.versions import versions  # noqa: PLC0415

    facts = "".join(f"  {name}: {value}\n" for name, value in versions().items())
    trace = without_secrets("".join(traceback.format_exception(error)))
    sys.stderr.write(
        f"ortdeploy: this is a bug of ortdeploy, not of your manifest. Please report it with this:\n{facts}{trace}"
    )
    return EXIT_BUG
