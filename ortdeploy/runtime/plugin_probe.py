"""Asks one plugin library for its devices, in a process of its own: a library that aborts takes only that with it.

The parent calls `probe_plugin`; the child is `python -m ortdeploy.runtime.plugin_probe PROVIDER LIBRARY`. Its answer
goes to the standard output that it was started with; whatever the library prints goes to standard error.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict

from ortdeploy.facts import DeviceFacts

_SECONDS = 60


def probe_plugin(provider: str, library: str) -> tuple[tuple[DeviceFacts, ...], str | None]:
    """Return the devices of a plugin library, or a sentence that says why there are none to be had."""
    try:
        done = subprocess.run(  # noqa: S603  our own module
            _command(provider, library),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"Its library {library} gave no answer within {_SECONDS} s."
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        how = f"with signal {-done.returncode}" if done.returncode < 0 else f"with code {done.returncode}"
        return (
            (),
            f"Its library {library} ended the process that asked it {how}: {lines[-1] if lines else 'no message'}",
        )
    devices = tuple(DeviceFacts(**device) for device in json.loads(done.stdout))
    return devices, None if devices else f"Its library {library} was loaded and offers no device here."


def _command(provider: str, library: str) -> list[str]:
    return [sys.executable, "-m", "ortdeploy.runtime.plugin_probe", provider, library]


def main() -> None:
    """Be the child."""
    answer = os.dup(1)
    os.dup2(2, 1)
    from ortdeploy.runtime.plugins import describe, register  # noqa: PLC0415  importing may print

    provider, library = sys.argv[1:]
    register(provider, library)
    text = json.dumps([asdict(device) for device in describe(provider, library)])
    os.write(answer, text.encode())
    os._exit(0)  # without the library's own clean-up, which may print or abort


if __name__ == "__main__":
    main()
