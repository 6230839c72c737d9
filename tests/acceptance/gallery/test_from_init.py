"""Every manifest of the gallery starts from what `init` writes for its model: at most ten lines differ."""

import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import yaml
from conftest import Cli
from support.gallery import GALLERY, deployed

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that fit and convert

MOST = 10
_COMMENT = re.compile(r"\s+# .*")


def said(manifest: str) -> list[str]:
    """Return the lines of a manifest that say something, without comments."""
    lines = [_COMMENT.sub("", line).rstrip() for line in manifest.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def lines_that_differ(written: str, committed: str) -> int:
    """Return how many lines were changed, added or taken away: a changed line counts once."""
    blocks = SequenceMatcher(None, said(written), said(committed), autojunk=False).get_opcodes()
    return sum(max(a - b, c - d) for kind, b, a, d, c in blocks if kind != "equal")


def test_changed_added_and_removed_lines_count_once_and_comments_do_not() -> None:
    assert lines_that_differ("# no\na: 1  # one\nb: 2\n", "# yes\na: 1\nb: 2\n") == 0
    assert lines_that_differ("a: 1\nb: 2\nc: 3\n", "a: 1\nb: 4\nc: 3\nd: 5\n") == 2
    assert lines_that_differ("a: 1\nb: 2\nc: 3\n", "a: 1\nc: 3\n") == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in GALLERY.glob("*.yaml")))
def test_a_manifest_is_what_init_wrote_but_for_ten_lines(cli: Cli, tmp_path: Path, name: str) -> None:
    manifest, inbox = deployed(name, tmp_path)
    committed = manifest.read_text(encoding="utf-8")
    first = next(iter(yaml.safe_load(committed)["models"].values()))["path"]
    manifest.unlink()
    given = ["--from", inbox] if any(inbox.iterdir()) else []
    done = cli("init", tmp_path / first, "-o", manifest, *given)
    assert done.code == 0, done.out + done.err
    assert lines_that_differ(manifest.read_text(encoding="utf-8"), committed) <= MOST
