"""The child of `ortdeploy check`: runs golden checks and says on standard output how each ends, one JSON object a line.

A provider that aborts takes only this process with it; the parent knows from the number of sessions that have ended
which one that was.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import structlog

from ortdeploy.checks.run import run_check
from ortdeploy.cli.streams import private_streams
from ortdeploy.plan.plan_file import decode_check
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.sessions.opening import ModelOpener


def main() -> None:
    """Run the checks that stand on standard input."""
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  importing may print

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    native = NativeOutput()
    with private_streams(), native.taking(), warnings_to(lambda *warning: _say(warning=warning)):
        opener = ModelOpener(runtime=OrtRuntime(), announce=lambda _doing: None, printed=native.take)
        for ended, check in enumerate(map(decode_check, json.load(sys.stdin)), start=1):
            for result in run_check(check, opener):
                _say(result=asdict(result))
            _say(ended=ended)
    os._exit(0)  # without the native libraries' own clean-up, which may print or abort after all is done


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
