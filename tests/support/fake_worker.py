"""A child for WorkerProcess that does with each part what the request's `parts` says of it."""

import os
import signal
import time

from ortdeploy.process.child import Asked
from ortdeploy.streaming.crashed_runs import decode_crashed_runs

_CRASHING = ([4, 5], [5])
"""The rows that crash, one after the other, until they are known."""


def main(asked: Asked) -> None:
    request, say = asked.request, asked.say
    if request.get("begin", "ready") != "ready":
        say(kind=request["begin"], reason="not here")
        return
    say(kind="log", line="opened")
    fatal = [(sorted(one.rows), one.crash) for one in decode_crashed_runs(request["fatal"]).get("j", ())]
    say(kind="ready", facts={"fatal": fatal, "closely": request["closely"]})
    for message in asked.told():
        part = message["make"]
        match request["parts"].get(str(part), "decide"):
            case "abort":
                os.write(asked.native_output().descriptor, b"assertion failed: x > 0\n")
                os.kill(os.getpid(), signal.SIGABRT)
            case "crash" | "crash-again" as how if how == "crash-again" or len(fatal) < len(_CRASHING):
                if request["closely"]:
                    say(kind="running", rows=_CRASHING[len(fatal) if how == "crash" else 0])
                os.kill(os.getpid(), signal.SIGSEGV)
            case "stick" if not fatal:
                say(kind="result", result={"status": "failed", "reason": "rows hang", "stuck": [part]})
                return
            case "stick-again":
                say(kind="result", result={"status": "failed", "reason": "rows hang", "stuck": [part]})
                return
            case "fail" | "pause" | "close" as how:
                status = {"fail": "failed", "pause": "paused", "close": "done"}[how]
                say(kind="result", result={"status": status, "reason": f"{how} it", "stuck": []})
                return
            case "hang":
                time.sleep(60)
            case _:
                say(kind="log", line=f"made {part}")
                say(kind="decided", part=part, rows=8, failed=0)
