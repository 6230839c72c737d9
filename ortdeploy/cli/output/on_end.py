"""Tells how an apply of a manifest has ended, as its `on_end:` says: to a command, a server, or both.

Both get the same JSON: the command as its standard input, the server in a POST. The exit code of the apply stays the
same whatever happens. A bad ending that repeats, as with a timer every few minutes, is told once, until another one
follows.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.files import web
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.disk import make_folders
from ortdeploy.files.gate import Use, admit, require_inside
from ortdeploy.files.names import REPORT, TOLD
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.records import output_file
from ortdeploy.manifest.spec import OnEnd, Spec
from ortdeploy.plan.selection import output_paths
from ortdeploy.plan.steps import Plan
from ortdeploy.process.libraries import users_environment
from ortdeploy.redaction import without_secrets
from ortdeploy.results.results import JobResult, Status

FORMAT_VERSION = 1
_CODES = {"refused": EXIT_REJECTED, "failed": EXIT_REJECTED, "paused": EXIT_PAUSED}
_NUMBERS = re.compile(r"[0-9]+([.,:][0-9]+)*")
_MOST_WORDS = 500
"""Characters of a failed command's output that the log shows."""


def message(
    spec: Spec, ending: str, refusals: Sequence[str], ended: Sequence[tuple[Plan, Sequence[JobResult]]]
) -> dict[str, Any]:
    """Return the message: the ending, why the manifest was refused, and how each job ended, with its report."""
    return {
        "format_version": FORMAT_VERSION,
        "deployment": spec.name,
        "manifest": spec.path,
        "ending": ending,
        "exit_code": _CODES.get(ending, EXIT_OK),
        "refused": [without_secrets(one) for one in refusals],
        "jobs": [_job(plan, one) for plan, results in ended for one in results],
    }


def _job(plan: Plan, result: JobResult) -> dict[str, Any]:
    counts = {name: getattr(result, name) for name in ("committed", "failed", "skipped", "kept", "seconds", "reason")}
    more = {**counts, "memory": list(result.memory), "report": _report_of(plan, result.job)}
    return {"job": result.job, "status": result.status, "output": result.output, **more}


def _report_of(plan: Plan, job: str) -> str | None:
    """Return the full path of a job's report, if there is one."""
    report = Path(plan.folder) / output_paths(plan).get(job, "") / REPORT
    return str(report) if report.is_file() else None


def tell(spec: Spec, told: Mapping[str, Any], state_dir: Path) -> None:
    """Tell how an apply ended, if the manifest wants to tell of such an ending and it is news."""
    wanted, note = spec.on_end.when if spec.on_end else (), output_file(state_dir, TOLD, _full_path(spec), ".txt")
    if told["ending"] in _CODES:
        _tell_news(spec, told, note, is_wanted=told["ending"] in wanted)
        return
    if note.exists() and ("recovered" not in wanted or _tell(spec, {**told, "ending": "recovered"})):
        with suppress(OSError):
            note.unlink(missing_ok=True)
    if "ran" in wanted and any(one["status"] == Status.DONE for one in told["jobs"]):
        _tell(spec, {**told, "ending": "ran"})


def _tell_news(spec: Spec, told: Mapping[str, Any], note: Path, *, is_wanted: bool) -> None:
    """Tell of a bad ending, unless the apply before ended the same way and that was told; the note says that it was."""
    news = f"{_gist(told)}\n{_full_path(spec)}\n"
    with suppress(OSError):
        if read_whole(note) == os.fsencode(news):
            return
    if not is_wanted or _tell(spec, told):
        with suppress(OSError):
            make_folders(note.parent)
            with open_whole(note) as file:
                file.write(os.fsencode(news))


def _full_path(spec: Spec) -> str:
    return os.path.abspath(spec.path)  # noqa: PTH100  keeps links


def _gist(told: Mapping[str, Any]) -> str:
    """Return a digest of a message without its numbers, because a temperature differs each time."""
    words = [told["exit_code"], told["refused"], [[one["job"], one["status"], one["reason"]] for one in told["jobs"]]]
    return hashlib.sha256(_NUMBERS.sub("#", json.dumps(words)).encode()).hexdigest()


def _tell(spec: Spec, told: Mapping[str, Any]) -> bool:
    """Call the command and the server of a manifest, log the outcome, and return whether all calls succeeded."""
    on_end, well = spec.on_end, True
    if on_end is None:
        return well
    content = json.dumps(told).encode()
    for name, call in (("command", _run), ("url", _post)):
        if getattr(on_end, name) is None:
            continue
        try:
            call(spec, on_end, content)
        except (OrtdeployError, OSError) as error:
            well = False
            log.warning("on_end.failed", manifest=spec.path, by=name, reason=without_secrets(str(error)))
        else:
            log.info("on_end.called", manifest=spec.path, by=name)
    return well


def _run(spec: Spec, on_end: OnEnd, content: bytes) -> None:
    """Run the command in the manifest's folder, without a shell. Raises OrtdeployError, OSError."""
    program, *rest = on_end.command or ()
    if os.sep in program:
        program = str(Path(spec.folder) / program)
        require_inside([program], (spec.folder, *spec.roots))
    process = subprocess.Popen(  # noqa: S603  what the manifest names
        [program, *rest],
        cwd=spec.folder,
        env=users_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(content, timeout=on_end.timeout)
    except subprocess.TimeoutExpired:
        raise OrtdeployError(f"it took longer than {on_end.timeout:g} s and was ended") from None
    finally:
        _end(process)
    if process.returncode != 0:
        words = printed.decode(errors="replace").strip()[-_MOST_WORDS:]
        raise OrtdeployError(f"it ended with code {process.returncode}" + (f": {words}" if words else ""))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, with the processes that it has started."""
    if process.poll() is None:
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _post(_spec: Spec, on_end: OnEnd, content: bytes) -> None:
    """Send the message to the server. Raises OrtdeployError, OSError."""
    web.post(admit(on_end.url or "", Use.POST).full, content, seconds=on_end.timeout)
