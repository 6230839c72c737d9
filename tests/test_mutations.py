"""The draw of mutations: each is one change of a file, which is still Python, and does something else."""

from pathlib import Path

import pytest
from support import mutations

SOURCE = """\
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import never

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
        "7 3 -> 4", "7 3 -> 2",
        "8 len(rows) < most -> len(rows) <= most",
        "8 len(rows) < most and (not rows[0]) -> len(rows) < most or not rows[0]",
        "8 without not: not rows[0]", "8 0 -> 1", "8 0 -> -1",
        "9 True -> False", "9 without the branch of if len(rows) < most and (not rows[0])",
        "10 without os.fsync(1)", "10 1 -> 2", "10 1 -> 0",
        f"10 swapped: {['os.fsync(1)', CALL]}",
        "11 without os.rename('a', 'b')",
        "12 False -> True",
    }  # fmt: skip
