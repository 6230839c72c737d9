"""How this program starts a module of its own in another process."""

import signal
import sys
from pathlib import Path

_ROOT = str(Path(__file__).parent.parent.parent)
_RUN = """
import runpy, sys
root, module = sys.argv[1:3]
del sys.argv[1:3]
sys.path.append(root)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command line. Modules are not looked for in the current folder (-P): it may hold anybody's files."""
    return [sys.executable, "-P", "-c", _RUN, _ROOT, module, *arguments]


def how_it_ended(code: int) -> str:
    """Say how a child that should have gone on was ended, from its exit status."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"was ended with code {code}"
