"""A child that shows how it talks: the request names what it does."""

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence

from ortdeploy.process.child import Asked
from ortdeploy.redaction import known_secrets


def main(asked: Asked) -> None:
    match asked.request:
        case "print":
            _print(asked)
        case "echo", value:
            asked.say(value=value, secrets=known_secrets(), path=sys.path)
        case "fail", text:
            raise ValueError(text)
        case "fail-in-thread", text:
            _fail_in_thread(text)
        case "warn":
            warnings.warn("an odd file", UserWarning, stacklevel=1)
            asked.say(done=True)
        case "bytes", sizes:
            _send_bytes(asked, sizes)
        case "listen":
            _listen(asked)
        case "hang":
            asked.say(begun=True)
            time.sleep(60)
        case "exit", code:
            asked.say(begun=True)
            sys.stderr.write("first\nlast\n")
            sys.stderr.flush()
            os._exit(code)


def _print(asked: Asked) -> None:
    os.write(1, b"a library prints\n")
    ctypes.CDLL(None).puts(b"so does C")
    sys.stdout.write("and Python\n")
    asked.say(done=True)


def _fail_in_thread(text: str) -> None:
    def fail() -> None:
        raise ValueError(text)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def _send_bytes(asked: Asked, sizes: Sequence[int]) -> None:
    for size in sizes:
        asked.say(bytes(range(256)) * (size // 256) + bytes(size % 256), size=size)
    asked.say(done=True)


def _listen(asked: Asked) -> None:
    for message in asked.told():
        asked.say(heard=message)
    asked.say(silence=True)
