"""The child process of a worker, which the engine's own process on that machine starts, gives parts and restarts.

A provider that aborts, or a lack of memory, ends only the child: the engine's process survives and reports what
happened. If native code crashed, the next child is watched closely, as by `Supervisor`: it says which rows it runs, and
those that crash it alone become failed rows. It stays so, for rows that crash seldom come alone.
"""

import json
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ortdeploy.process.child import CRASHES, Child, how_it_ended
from ortdeploy.process.native_output import last_error_line
from ortdeploy.results.results import Status
from ortdeploy.streaming.crashed_runs import CrashedRun, encode_crashed_runs

_MOST_LINES = 1000
"""Log lines that are held until the next answer; the oldest are dropped."""

Said = Mapping[str, Any]
"""An answer to the driver, as JSON. `kind` is one of:

`ready`: the sessions are open (`facts` of the machine); `decided`: a part is (`part`, `rows`, `failed`, `seconds`);
`failed`: a part could not be made (`reason`); `paused`: the job must pause; `closed`: every part is in the ledger;
`refused`: this machine cannot work on the plan (`reason`); `bug`: of ortdeploy. `log` has lines of JSON.
"""


class WorkerProcess:
    """One process at a time that makes parts of one job. `module` runs in it, `request` is its input."""

    def __init__(self, module: str, request: Mapping[str, Any]) -> None:
        """Take what to start; nothing is started yet."""
        self._module = module
        self._request = request
        self._fatal: list[CrashedRun] = []
        self._rows: list[int] = []
        self._closely = False
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self._child: Child | None = None
        self._stack = ExitStack()

    def begin(self) -> Said:
        """Start the process if there is none; return whether its sessions are open, or why they are not."""
        if self._child is not None:
            return self._with_log({"kind": "ready", "facts": None})
        said = self._start()
        return self._with_log(said if said["kind"] == "ready" else self._refusal(said))

    def make(self, part: int) -> Said:
        """Have a part made, and return the answer. Rows that ended the process together do not run together again."""
        while True:
            if self._child is None:
                said = self._start()
                if said["kind"] != "ready":
                    return self._with_log(_failure(said))
            child = self._running()
            child.tell(make=part)
            said = self._next(child)
            if said["kind"] not in _ENDED or not self._may_go_on(said):
                return self._with_log(_failure(said))

    def end(self) -> None:
        """End the process, if there is one."""
        self._child = None
        self._stack.close()

    def _start(self) -> Said:
        fatal = encode_crashed_runs({self._request["job"]: self._fatal})
        request = {**self._request, "fatal": fatal, "closely": self._closely}
        self._rows = []
        child = Child(self._module, request, keeps_stderr=True, own_session=True, listens=True)
        self._child = self._stack.enter_context(child)
        return self._next(child)

    def _running(self) -> Child:
        if self._child is None:
            raise AssertionError("the process was started")
        return self._child

    def _next(self, child: Child) -> Said:
        """Return the next answer, or why the process has ended."""
        for message in child.messages():
            match message["kind"]:
                case "log":
                    self._log.append(message["line"])
                case "running":
                    self._rows = message["rows"]
                case "ready" | "decided":
                    return message
                case "result":
                    said = _ending(message["result"])
                    break
                case kind:
                    said = {"kind": kind, "reason": message["reason"]}
                    break
        else:
            code = child.wait()
            how = how_it_ended(code)
            reason = f"its process {how}.{last_error_line(child.printed())}"
            said = {
                "kind": "crashed" if code in CRASHES else "failed",
                "reason": reason,
                "how": how,
                "rows": self._rows,
            }
        self.end()
        return said

    def _may_go_on(self, said: Said) -> bool:
        """Note the rows that ended the process; return whether another one finds, or can do without, these rows."""
        has_crashed = said["kind"] == "crashed"
        if has_crashed and not self._closely:
            self._closely = True
            self._warn("run.watched", reason=said["reason"])
            return True
        if not said["rows"]:
            return False
        if has_crashed:
            self._warn("run.crashed", first=said["rows"][0], last=said["rows"][-1], reason=said["reason"])
        run = CrashedRun(rows=frozenset(said["rows"]), crash=said["how"] if has_crashed else None)
        is_new = run.rows not in {one.rows for one in self._fatal}
        self._fatal.append(run)
        return is_new

    def _warn(self, event: str, **fields: Any) -> None:
        """Log as the process does, in lines for the driver."""
        self._log.append(json.dumps({"level": "warning", "event": event, **fields}))

    @staticmethod
    def _refusal(said: Said) -> Said:
        """Return the answer for a worker that did not get ready."""
        failure = _failure(said)
        return {**failure, "kind": "refused"} if failure["kind"] == "failed" else failure

    def _with_log(self, said: Said) -> Said:
        lines = list(self._log)
        self._log.clear()
        return {**said, "log": lines}


_ENDED = frozenset({"crashed", "stuck"})
"""How a process can end with rows that another one may do without."""


def _failure(said: Said) -> Said:
    """Return the answer to the driver, who need not know in which way a process ended."""
    return {"kind": "failed", "reason": said["reason"]} if said["kind"] in {*_ENDED, "failed"} else said


def _ending(result: Mapping[str, Any]) -> Said:
    """Return the answer for the end of a job."""
    if result["stuck"]:
        return {"kind": "stuck", "reason": result["reason"], "rows": result["stuck"]}
    kinds = {Status.DONE: "closed", Status.NOTHING_TO_DO: "closed", Status.PAUSED: "paused"}
    return {"kind": kinds.get(Status(result["status"]), "failed"), "reason": result["reason"]}
