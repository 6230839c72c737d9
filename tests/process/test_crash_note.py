"""A crash of native code leaves a note, and neither a kill nor a good end does."""

import faulthandler
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ortdeploy.process.crash_note import crashes_noted_in

PROGRAM = """
import os, sys, threading
from pathlib import Path
from ortdeploy.process.crash_note import crashes_noted_in
threading.Thread(target=threading.Event().wait, daemon=True, name="another").start()
with crashes_noted_in(Path(sys.argv[1])):
    os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("number", "first"), [("SIGSEGV", "Fatal Python error: Segmentation fault"), ("SIGKILL", None)]
)
def test_a_crash_is_noted_behind_what_the_file_holds(tmp_path: Path, number: str, first: str | None) -> None:
    note = tmp_path / "note"
    note.write_text("before\n")
    code = getattr(signal, number)
    done = subprocess.run([sys.executable, "-c", PROGRAM, note, str(int(code))], check=False)
    assert done.returncode == -code
    lines = note.read_text().splitlines()
    assert lines[:2] == (["before"] if first is None else ["before", first])
    # Other threads run on while their stacks are read: one crash in twenty became another one so.
    assert not [line for line in lines if "threading.py" in line]


def test_a_good_end_leaves_nothing_and_the_fault_handler_as_it_was(tmp_path: Path) -> None:
    before = faulthandler.is_enabled()
    note = tmp_path / "note"
    for path in (note, None):
        with crashes_noted_in(path):
            assert faulthandler.is_enabled() or path is None
    assert note.read_bytes() == b""
    assert faulthandler.is_enabled() == before
