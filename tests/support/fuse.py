"""Kills a run within this process, after a number of steps that anything else may see."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.ledger.ledger import Ledger
from support.jobs import Killed


class Fuse:
    """Ends a run before or after its nth step that anything else may see."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """Kill what runs inside after so many commits, renames and deletions, if it makes so many."""
    fuse, transaction = Fuse(steps), Ledger._transaction  # noqa: SLF001
    rename, delete = Path.replace, Path.unlink

    @contextmanager
    def burning(self: Ledger) -> Iterator[Any]:
        fuse.burn()
        with transaction(self) as db:
            yield db
        fuse.burn()

    def replace(self: Path, target: Path) -> Path:
        fuse.burn()
        done = rename(self, target)
        fuse.burn()
        return done

    def unlink(self: Path, *, missing_ok: bool = False) -> None:
        is_there = self.exists()
        if is_there:
            fuse.burn()
        delete(self, missing_ok=missing_ok)
        if is_there:
            fuse.burn()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_transaction", burning)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        try:
            yield
        except Killed:
            return
