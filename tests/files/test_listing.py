"""Files by pattern are those that Python's glob finds."""

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.files.listing import expand

_NAMES = ("a.npy", "b.npy", ".a.npy", "B.NPY", "a[1].npy", "sub", "é.npy", "a\nb.npy")
_PATTERNS = (
    "*",
    "*.npy",
    "?.npy",
    "a*",
    ".*",
    "[ab].npy",
    "[!a]*",
    "a[[]1].npy",
    "**",
    "*/x.npy",
    "s*/*.npy",
    "**/*.npy",
    "no/*.npy",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listing")
    for name in _NAMES:
        (folder / name).mkdir() if name == "sub" else (folder / name).touch()
    (folder / "sub/x.npy").touch()
    (folder / "link.npy").symlink_to(folder / "a.npy")
    (folder / "broken.npy").symlink_to(folder / "nowhere")
    return folder


def found_by_glob(full: str) -> list[str]:
    return sorted(path for path in glob.glob(full, recursive=True) if os.path.isfile(path))  # noqa: PTH113, PTH207


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_patterns_are_globs(folder: Path, pattern: str) -> None:
    assert expand(f"{folder}/{pattern}") == found_by_glob(f"{folder}/{pattern}")


@given(
    pattern=st.text(st.sampled_from("ab*?[]!.né-1"), min_size=1, max_size=6).filter(lambda text: set(text) & set("*?["))
)
def test_any_pattern_is_a_glob(folder: Path, pattern: str) -> None:
    full = f"{folder}/{pattern}"
    assert expand(full) == ([full] if os.path.isfile(full) else found_by_glob(full))  # noqa: PTH113


def test_a_folder_stands_for_its_files(folder: Path) -> None:
    assert [Path(path).name for path in expand(str(folder))] == sorted(
        ["a.npy", "b.npy", "B.NPY", "a[1].npy", "é.npy", "a\nb.npy", "link.npy"]
    )


def test_what_has_no_sign_is_a_name(folder: Path) -> None:
    assert expand(f"{folder}/a[1].npy") == [f"{folder}/a[1].npy"]
    assert expand(f"{folder}/none.npy") == []
