"""The child process of a worker, which the engine's own process on that machine starts, gives parts and restarts.

A provider that aborts, or a lack of memory, ends only the child: the engine's process survives and reports what
happened.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ortdeploy.process.child import Child, how_it_ended
from ortdeploy.process.native_output import explain
from ortdeploy.results.results import Status

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
        self._stuck: list[list[int]] = []
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
        """Have a part made, and return the answer. Rows of a run that ended only with the process are left out."""
        while True:
            if self._child is None:
                said = self._start()
                if said["kind"] != "ready":
                    return self._with_log(said)
            child = self._running()
            child.tell(make=part)
            said = self._next(child)
            if said["kind"] != "stuck":
                return self._with_log(said)
            if said["rows"] in self._stuck:
                return self._with_log({"kind": "failed", "reason": said["reason"]})
            self._stuck.append(said["rows"])

    def end(self) -> None:
        """End the process, if there is one."""
        self._child = None
        self._stack.close()

    def _start(self) -> Said:
        request = {**self._request, "stuck": self._stuck}
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
            said = {"kind": "failed", "reason": f"its process {how_it_ended(code)}.{explain(child.printed())}"}
        self.end()
        return said

    @staticmethod
    def _refusal(said: Said) -> Said:
        """Return the answer for a worker that did not get ready."""
        return {**said, "kind": "refused"} if said["kind"] in {"failed", "stuck"} else said

    def _with_log(self, said: Said) -> Said:
        lines = list(self._log)
        self._log.clear()
        return {**said, "log": lines}


def _ending(result: Mapping[str, Any]) -> Said:
    """Return the answer for the end of a job."""
    if result["stuck"]:
        return {"kind": "stuck", "reason": result["reason"], "rows": result["stuck"]}
    kinds = {Status.DONE: "closed", Status.NOTHING_TO_DO: "closed", Status.PAUSED: "paused"}
    return {"kind": kinds.get(Status(result["status"]), "failed"), "reason": result["reason"]}
