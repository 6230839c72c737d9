"""Folders inside of outputs that are links: followed where they stay below a root, and nowhere else."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import Shape, save_model

from ortdeploy.cli.children import apply
from ortdeploy.jobs.executor import Execution

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links take rights on Windows")

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
jobs:
  run:
    model: m
    input: {path: x.npy}
    batch: {size: 4}
    output: {path: out, format: jsonl, images: [y], rows_per_part: 4}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A job that makes eight pictures, beside a folder whose name begins like that of the tree."""
    site = tmp_path / "site"
    shape: Shape = ["batch", 4, 4]
    save_model(
        site / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.UINT8, shape)},
        {"y": (TensorProto.UINT8, shape)},
    )
    np.save(site / "x.npy", np.zeros((8, 4, 4), np.uint8))
    (site / "m.yaml").write_text(MANIFEST)
    (site / "out").mkdir()
    (tmp_path / "site2").mkdir()
    return site


def is_untouched(folder: Path) -> bool:
    return [path.name for path in folder.rglob("*")] == []


def applied(cli: Cli, site: Path, *flags: Any) -> Any:
    return cli("apply", site / "m.yaml", *flags)


def shared(cli: Cli, site: Path, *flags: Any) -> Any:
    planned = cli("plan", site / "m.yaml", "--out", site / "p.json", *flags)
    return planned if planned.code else cli("apply", site / "p.json", "--shard", "0/1", *flags)


@pytest.mark.parametrize(
    ("run", "name"), [(applied, "images"), (shared, "images"), (shared, "_parts")], ids=["job", "shard", "parts"]
)
def test_a_folder_of_an_output_that_leads_out_is_refused_and_nothing_is_written_there(
    cli: Cli, site: Path, run: Callable[..., Any], name: str
) -> None:
    outside = site.parent / "site2"
    (site / "out" / name).symlink_to("../../site2")
    refused = run(cli, site)
    assert refused.code == 1
    assert f"out/{name} is a link out of the manifest's folder tree" in refused.words
    assert is_untouched(outside)
    if name == "images":
        (site / "out/images").unlink()
        (site / "out").rmdir()
        assert run(cli, site, "--new-run" if run is applied else "-q").code == 0


@pytest.mark.parametrize("place", ["site2", "site/disk"])
def test_pictures_go_through_a_link_that_stays_below_an_allowed_root(cli: Cli, site: Path, place: str) -> None:
    (site / "m.yaml").write_text(MANIFEST.replace("x.npy", '"x*.npy"'))
    assert cli("apply", site / "m.yaml").code == 0
    disk = site.parent / place / "pictures"
    disk.parent.mkdir(exist_ok=True)
    (site / "out/images").rename(disk)
    (site / "out/images").symlink_to(disk)
    np.save(site / "x2.npy", np.zeros((8, 4, 4), np.uint8))
    ended = cli("apply", site / "m.yaml", "--allow-root", disk)
    assert ended.code == 0, ended.out + ended.err
    assert len(list(disk.glob("y-*.png"))) == 16
    assert (site / "out/images").is_symlink()


@pytest.mark.parametrize(("run", "name"), [(applied, "images"), (shared, "images"), (shared, "_parts")])
def test_a_folder_that_is_exchanged_for_a_link_after_planning_leads_nowhere(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], name: str
) -> None:
    outside = site.parent / "site2"

    def execution(*arguments: Any, **more: Any) -> Any:
        if not (site / "out" / name).is_symlink():
            (site / "out" / name).symlink_to(outside)
        return Execution(*arguments, **more)

    monkeypatch.setattr(apply, "Execution", execution)
    ended = run(cli, site)
    assert is_untouched(outside)
    assert ended.code == 1
    assert "a link on the way leads out of the manifest's folder tree" in ended.out + ended.err
