"""A child for Supervisor that does what the request's `script` says, one list for each time it is started."""

import json
import os
import signal
import time
from pathlib import Path

from ortdeploy.process.child import Asked


def main(asked: Asked) -> None:
    request = asked.request
    counter = Path(request["counter"])
    start = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("." * (start + 1))
    Path(f"{counter}.{start}").write_text(
        json.dumps({name: request[name] for name in ("plan", "skipped", "fatal", "closely", "began", "unproven")})
    )
    for action, value in request["script"][start]:
        if action == "say":
            asked.say(**value)
        elif action == "print":
            os.write(asked.native_output().descriptor, value.encode())
        elif action == "kill":
            os.kill(os.getpid(), value)
        elif action == "wait":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            asked.say(kind="doing", model="m", job="run")
            time.sleep(60)
        else:
            os._exit(value)
