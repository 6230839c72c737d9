"""The draw of mutations: each is one change of a file, which is still Python, and does something else."""

from pathlib import Path

import pytest
from support import mutations

SOURCE = """\
import os
from typing import TYPE_CHECKING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import never

LIMIT = 64

class One(Struct, frozen=True): ...

def take(rows: "list[1]", most: int = 3) -> bool:
    if len(rows) < most and not rows[0]:
        return True
    os.fsync(1)
    os.rename("a", "b")
    return False
"""


CALL = "os.rename('a', 'b')"


def test_every_kind_of_change_is_drawn_once_for_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "REPOSITORY", tmp_path)
    path = tmp_path / "m.py"
    path.write_text(SOURCE)
    found = {str(one): one.made_in(SOURCE.encode()).decode() for one in mutations.mutations(path)}
    for source in found.values():
        compile(source, "m.py", "exec")
        assert source != SOURCE
    assert {one.removeprefix("m.py:") for one in found} == {
        "8 64 -> 640", "8 64 -> 6",
        "12 3 -> 4", "12 3 -> 2",
        "13 len(rows) < most -> len(rows) <= most",
        "13 len(rows) < most and (not rows[0]) -> len(rows) < most or not rows[0]",
        "13 without not: not rows[0]", "13 0 -> 1", "13 0 -> -1",
        "14 True -> False", "14 without the branch of if len(rows) < most and (not rows[0])",
        "15 without os.fsync(1)", "15 1 -> 2", "15 1 -> 0",
        f"15 swapped: {['os.fsync(1)', CALL]}",
        "16 without os.rename('a', 'b')",
        "17 False -> True",
    }  # fmt: skip
