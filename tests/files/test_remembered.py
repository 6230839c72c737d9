"""What was measured is remembered, of so many models and settings at most."""

from pathlib import Path

import pytest

from ortdeploy.files import remembered
from ortdeploy.files.remembered import TuningCache


def test_the_newest_choices_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST", 3)
    for key in "abacd":
        cache = TuningCache(tmp_path)
        cache.find(key)  # as everybody does who then keeps one
        cache.keep(key, ord(key))
        assert cache.find(key) == ord(key)
    assert [TuningCache(tmp_path).find(key) for key in "abcd"] == [97, None, 99, 100]
