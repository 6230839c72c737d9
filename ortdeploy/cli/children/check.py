"""The child of `ortdeploy check`: runs golden checks and reports how each ends.

A provider that aborts ends only this process. The parent counts the sessions that reported, and so knows which one it
was.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import to_builtins

from ortdeploy.checks.run import CheckResult, run_check
from ortdeploy.cli.output.streams import private_streams
from ortdeploy.jobs.pinned_files import hold_for_check
from ortdeploy.jobs.pinned_runtime import PinnedRuntime
from ortdeploy.plan.plan_file import decode
from ortdeploy.plan.steps import PlannedCheck
from ortdeploy.process.child import Asked
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.sessions.opening import ModelOpener


def main(asked: Asked) -> None:
    """Run the checks of the request."""
    native = asked.native_output()
    with private_streams(), native.taking():
        for ended, request in enumerate(asked.request, start=1):
            check = decode(PlannedCheck, request["check"])
            for result in _run(check, Path(request["state_dir"]), request["roots"], native):
                asked.say(result=to_builtins(result))
            asked.say(ended=ended)


def _run(check: PlannedCheck, state_dir: Path, roots: Sequence[str], native: NativeOutput) -> Iterator[CheckResult]:
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  importing may print

    with hold_for_check(check, state_dir) as files:
        runtime = PinnedRuntime(OrtRuntime(), files)
        opener = ModelOpener(
            runtime=runtime,
            on_native_call=lambda _doing: None,
            native_text=lambda: files.with_manifest_paths(native.take()),
        )
        yield from run_check(check, opener, roots)
