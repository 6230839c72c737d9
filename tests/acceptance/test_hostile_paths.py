"""No key of a manifest takes a path out of the tree: every key of the schemas, every kind of hostile path.

Which paths lead out is said by `realpath` alone. Nothing outside of the tree may be changed, whatever a command says.
"""

import json
import os
import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from support.effort import effort
from support.models import scale_model
from support.schema_paths import MARK, libraries, manifests, put

from ortdeploy.files.gate import leaves_as_text
from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.named_paths import named_paths
from ortdeploy.manifest.read_spec import build_spec
from ortdeploy.manifest.schema_check import check_document

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links take rights on Windows")

KEYS = {leaf: (document, at) for document, at, leaf in manifests()}
LIBRARIES = libraries()
HOSTILE = (
    "../root2/f", "../root2", "inside/../../root2/f", "./../root2/f", "{top}/root2/f", "{top}/root/../root2/f", "/etc/hostname", "..", "../", "../..", "../root/../root2/f",
    "away/f", "away/new", "away", "away/.", "away/../root2/f", "chain/f", "file", "deep/folder/f", "deep/folder/new", "loop", "dangling", "in/../../root2/f",
    "inside/f", "./inside/./f", "inside//f", "inside/../inside/f", "in/f", "in/new", "{top}/root/inside/f", "inside/gone", "INSIDE/F", "rooted", ".../f", "~", "~root/f", "$HOME/f",
    "inside/f\n", "inside/\n", "\n", "inside/f\r", "inside/\x1b[2J", "inside/\u202ef", "inside/\u2028", "inside/\x85", "inside/f\0", "\0", "inside/\0/../../../root2/f",
    "a" * 300, "d/" * 1500 + "f", "../" * 60 + "etc/hostname", "inside/" + "x" * 255 + "/../f", "inside/\udcff", "\udcff/../../root2/f", "away/\udcff",
    "C:\\f", "C:/f", "\\\\host\\share\\f", "..\\root2\\f", "inside\\..\\..\\root2\\f", "file:///etc/hostname", "local://f", "zip://f::file://g", "-", "-x", "inside/*/../../../root2/*", "[a-z]*",
)  # fmt: skip
WINDOWS = ("C:", "\\")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A manifest's folder with links in and out, beside a folder whose name begins like its own."""
    root, outside = tmp_path / "root", tmp_path / "root2"
    for folder in (root / "inside", root / "deep", outside):
        folder.mkdir(parents=True)
        (folder / "f").write_bytes(b"f")
    scale_model(root / "m.onnx")
    np.save(root / "x.npy", np.ones((2, 4), np.float32))
    for name, target in (
        ("away", "../root2"), ("chain", "away"), ("file", "../root2/f"), ("deep/folder", str(outside)), ("loop", "loop"),
        ("dangling", "../root2/gone"), ("in", "inside"), ("rooted", str(root / "inside/f")),
    ):  # fmt: skip
        (root / name).symlink_to(target)
    return root


def state(folder: Path) -> list[tuple[str, bytes | None]]:
    return [(str(path), path.read_bytes() if path.is_file() else None) for path in sorted(folder.rglob("*"))]


def leads_out(root: Path, path: str) -> bool:
    """The independent model: where a path leads, and whether that is below the root."""
    if "\0" in path:
        return False
    real = os.path.realpath(f"{path}" if path.startswith("/") else f"{root}/{path}")
    return not (real == str(root) or real.startswith(f"{root}/"))


def text_leads_out(root: Path, path: str) -> bool:
    full = os.path.normpath(path if path.startswith("/") else f"{root}/{path}")
    return not (full == str(root) or full.startswith(f"{root}/"))


def written(root: Path, key: str, path: str) -> str:
    """Write a manifest that names a path, and return the path: a document's ends as a file of it does."""
    document, at = KEYS[key]
    (root / "h.yaml").write_text(json.dumps(put(document, at, path)))
    return path + (".json" if f'"{MARK}.json"' in json.dumps(document) else "")


def compare(cli: Cli, root: Path, key: str, template: str, command: str) -> None:
    """Run a command on a manifest with a hostile path, and compare what it says with the model."""
    path = written(root, key, template.replace("{top}", str(root.parent)))
    before = state(root.parent / "root2")
    answer = cli(command, root / "h.yaml")
    said = f"{key} {path!r}: {answer.out}{answer.err}"
    assert state(root.parent / "root2") == before, said
    assert answer.code in {0, 1}, said
    assert "Traceback" not in answer.out + answer.err, said
    if key in LIBRARIES and not set(path) & set("/\\\0"):
        return
    is_out = leads_out(root, path) if command == "plan" else text_leads_out(root, path)
    if is_out or "\0" in path:
        assert answer.code == 1, said
    elif not path.startswith(WINDOWS) and "\\" not in path and "://" not in path:
        for words in ("[path-outside-tree]", "out of the manifest's folder tree", "[link-out-of-tree]"):
            assert words not in answer.words, said


def test_every_key_that_takes_a_path_is_looked_at(tree: Path) -> None:
    """What the schemas call a path is found in the spec, at its place, so that no key is forgotten."""
    assert len(KEYS) > 55
    for key, (document, at) in KEYS.items():
        parsed, _ = parse_document(json.dumps(document).encode(), "m.yaml")
        assert parsed is not None
        assert check_document(parsed) == (), key
        spec = build_spec(parsed, name="m", folder=str(tree), roots=(), sha256="f" * 64, profile=None, sets=())
        found = [one for one in named_paths(spec) if MARK in one.path]
        assert found, key
        assert all(one.at[:2] == at[:2] for one in found), key


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path)[:30])
def test_a_sibling_folder_and_other_ways_out_are_outside_as_text(path: str, tree: Path) -> None:
    path = path.replace("{top}", str(tree.parent))
    if "\0" not in path and "\\" not in path and not path.startswith("C:"):
        assert leaves_as_text(path, str(tree), ()) == text_leads_out(tree, path)
        assert not leaves_as_text(path, str(tree), (str(tree.parent), "/etc", "/")) or path == ""


def test_some_hostile_paths_in_every_key_are_judged_by_text(tree: Path, cli: Cli) -> None:
    pick = random.Random(7)  # noqa: S311
    for key in KEYS:
        for path in ("../root2/f", *pick.sample(HOSTILE, effort(2, 20))):
            compare(cli, tree, key, path, "validate")


@pytest.mark.parametrize(
    "key",
    ["models path", "models checks", "models optimized_model_filepath", "jobs path", "Tensorrt.trt_engine_cache_path"],
)
@pytest.mark.parametrize("path", ["away/f", "away/new", "deep/folder", "in/f", "dangling"])
def test_links_in_a_path_are_followed_when_planning(tree: Path, cli: Cli, key: str, path: str) -> None:
    compare(cli, tree, key, path, "plan")


@pytest.mark.slow
def test_many_hostile_paths_in_every_key(tree: Path, cli: Cli) -> None:
    """`ORTDEPLOY_PATHS` says how many."""
    count = int(os.environ.get("ORTDEPLOY_PATHS", "150"))
    every: list[Any] = list(product(KEYS, HOSTILE, ("plan", "validate")))
    random.Random(os.environ.get("ORTDEPLOY_PATHS_SEED", "1")).shuffle(every)  # noqa: S311
    for key, path, command in every[:count]:
        compare(cli, tree, key, path, command)
    print(f"{min(count, len(every))} of {len(every)} hostile paths")  # noqa: T201
