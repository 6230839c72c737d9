"""A library that keeps Python's lock: its process is ended where another one would continue, and only there."""

import signal
import sys
from subprocess import run

import pytest

from ortdeploy.process.child import CRASHES, how_it_ended

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that ends a process")

WAITING = """
import re, sys, threading
from ortdeploy.process.held_process import ended_if_held, may_be_ended

sets, size = sys.argv[1] == "child", int(sys.argv[2])
if sets:
    may_be_ended()
thread = threading.Thread(target=re.match, args=("(a+)+$", "a" * size + "!"))  # which keeps the lock to its end
with ended_if_held(0.2):
    thread.start()
    thread.join()
for _ in range(1_000_000):  # behind it, no time is counted any more
    re.match("(a+)+$", "a")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("who", "size", "code"),
    [("child", 60, -signal.SIGVTALRM), ("child", 2, 0), ("another", 24, 0)],
    ids=["held", "not held", "nobody would continue"],
)
def test_a_process_is_ended_if_a_library_holds_it_and_another_one_would_continue(
    who: str, size: int, code: int
) -> None:
    assert run([sys.executable, "-c", WAITING, who, f"{size}"], check=False).returncode == code


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (-signal.SIGVTALRM, "longer than run_timeout or progress_timeout"),
        (-signal.SIGPROF, "the tokenizer came to no end"),
    ],
)
def test_it_counts_as_ended_by_native_code_and_says_why(code: int, why: str) -> None:
    assert code in CRASHES
    assert why in how_it_ended(code)
