"""What opening a model takes of memory, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

_OPEN = """\
import json, sys
from ortdeploy.process.memory import peak_memory, resident_memory
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.runtime.session import OrtRuntime
candidate = PlannedSession(name="m", providers=(PlannedProvider(name="CPUExecutionProvider", options={}),))
step = OpenSession(
    session="m", model="m", path=sys.argv[1], sha256="", candidates=(candidate,), use="first", on_unavailable="fail",
    cpu_fallback="warn", probe=None, options={"intra_op_num_threads": 1}, run_options={}, cache=False,
)
block = bytearray(int(sys.argv[2]))  # freed, it raises what glibc takes from its heap
del block
before = resident_memory()
session = OrtRuntime().open_session(step, candidate)
print(json.dumps([resident_memory() - before, peak_memory() - before]))
"""


def memory_of_opening(model: Path, *, freed: int = 0) -> tuple[int, int]:
    """Return the bytes that an open session keeps, and the most that opening it takes; `freed` bytes were before."""
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(model), str(freed)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    kept, peak = json.loads(done.stdout)
    return kept, peak
