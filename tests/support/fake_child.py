"""A child for Supervisor that does what the request's `script` says, one list for each time it is started."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    request = json.load(sys.stdin)
    counter = Path(request["counter"])
    start = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("." * (start + 1))
    Path(f"{counter}.{start}").write_text(json.dumps({"plan": request["plan"], "tried": request["tried"]}))
    with os.fdopen(request["messages"], "w", buffering=1) as messages:
        for action, value in request["script"][start]:
            if action == "say":
                messages.write(json.dumps(value) + "\n")
            elif action == "print":
                os.write(request["native"], value.encode())
            elif action == "kill":
                os.kill(os.getpid(), value)
            elif action == "wait":
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                messages.write(json.dumps({"kind": "doing", "model": "m", "job": "run"}) + "\n")
                time.sleep(60)
            else:
                os._exit(value)


if __name__ == "__main__":
    main()
