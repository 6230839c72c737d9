"""Runs within the machine of `.ci/machine`: takes commands from a virtio port and answers how they ended.

A request is a line of JSON, {"command": TEXT}; so is the answer, {"code": NUMBER, "out": TEXT}.
"""

import json
import subprocess
import time
from pathlib import Path

PORT = Path("/dev/virtio-ports/ortdeploy")


def main() -> None:
    """Serve until the power goes."""
    while not PORT.exists():
        time.sleep(0.1)
    with PORT.open("r+b", buffering=0) as port:
        left = b""
        while True:
            got = port.read(1 << 16)
            if not got:  # nobody is connected
                time.sleep(0.1)
                continue
            *lines, left = (left + got).split(b"\n")
            for line in lines:
                answer = json.dumps(run(json.loads(line)["command"])).encode() + b"\n"
                while answer:  # the port takes some kilobytes at once
                    answer = answer[port.write(answer) or 0 :]


def run(command: str) -> "dict[str, object]":
    """Run a command of the shell."""
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return {"code": done.returncode, "out": done.stdout.decode(errors="replace")}


if __name__ == "__main__":
    main()
