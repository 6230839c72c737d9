"""The child of `ortdeploy check`: runs golden checks and says on standard output how each ends, one JSON object a line.

A provider that aborts takes only this process with it; the parent knows from the number of sessions that have ended
which one that was.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from ortdeploy.checks.run import CheckResult, run_check
from ortdeploy.cli.streams import private_streams
from ortdeploy.plan.plan_file import decode_check
from ortdeploy.plan.steps import PlannedCheck
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.running.held_files import hold_for_check
from ortdeploy.running.held_runtime import HeldRuntime
from ortdeploy.sessions.opening import ModelOpener


def main() -> None:
    """Run the checks that stand on standard input."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    native = NativeOutput()
    with private_streams(), native.taking(), warnings_to(lambda *warning: _say(warning=warning)):
        for ended, request in enumerate(json.load(sys.stdin), start=1):
            for result in _run(decode_check(request["check"]), Path(request["state_dir"]), native):
                _say(result=asdict(result))
            _say(ended=ended)
    os._exit(0)  # without the native libraries' own clean-up, which may print or abort after all is done


def _run(check: PlannedCheck, state_dir: Path, native: NativeOutput) -> Iterator[CheckResult]:
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  importing may print

    with hold_for_check(check, state_dir) as files:
        runtime = HeldRuntime(OrtRuntime(), files)
        opener = ModelOpener(
            runtime=runtime, announce=lambda _doing: None, printed=lambda: files.in_own_words(native.take())
        )
        yield from run_check(check, opener)


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
