"""`apply --new-run` over parts of a plan that shards cannot finish any more: the way out of `unfinished-shards`."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import MANIFEST, Cli, read_rows
from support import s3

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8")


def lose_the_plan(folder: Path, plan: Path) -> None:
    assert folder
    plan.unlink()


def change_the_model(folder: Path, plan: Path) -> None:
    assert plan
    model = onnx.load(folder / "double.onnx")
    model.doc_string = "trained again"
    onnx.save(model, folder / "double.onnx")


def change_the_manifest(folder: Path, plan: Path) -> None:
    assert plan
    (folder / "m.yaml").write_text((folder / "m.yaml").read_text().replace("size: 8", "size: 4"))


def saved(cli: Cli, folder: Path, *options: str) -> Path:
    made = cli("plan", folder / "m.yaml", "--out", folder / "plan.json", *options)
    assert made.code == 0, made.words
    return folder / "plan.json"


@pytest.mark.slow
@pytest.mark.parametrize("change", [lose_the_plan, change_the_model, change_the_manifest])
@pytest.mark.parametrize("known", [False, True], ids=["no ledger", "earlier plan"])
def test_a_new_run_puts_the_folder_aside_whole(cli: Cli, deployment: Path, change: object, *, known: bool) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(SMALL.replace("data.npy", "data*.npy"))
    plan = saved(cli, deployment)
    if known:
        assert cli("apply", plan, "--shard", "0/1").code == 0
        assert cli("finish", plan).code == 0
        np.save(deployment / "data-1.npy", np.ones((20, 4), np.float32))
        plan = saved(cli, deployment)
    assert cli("apply", plan, "--shard", "0/2").code == 0
    before = {path.name: path.read_bytes() for path in (deployment / "outbox/run").glob("part-*")}
    assert callable(change)
    change(deployment, plan)
    refused = cli("apply", manifest)
    assert (refused.code, "ortdeploy apply --new-run starts over" in refused.words) == (1, True)
    assert cli("plan", manifest, "--new-run").code == 0
    over = cli("apply", manifest, "--new-run")
    assert over.code == 0, over.words
    (aside,) = (one for one in (deployment / "outbox").iterdir() if one.name != "run")
    assert f"kept beside it as {aside.name}" in over.words
    assert {path.name: path.read_bytes() for path in aside.glob("part-*")} == before
    assert (aside / "_parts").is_dir()
    assert not (deployment / "outbox/run/_parts").exists()
    assert len(read_rows(deployment / "outbox/run")) == (40 if known else 20)
    assert "nothing to do" in cli("apply", manifest).out
    if plan.exists():
        assert cli("apply", plan, "--shard", "1/2").code in {0, 64}  # nothing is left to do, or it is another plan
        assert not (deployment / "outbox/run/_parts").exists()


@pytest.mark.slow
def test_a_saved_plan_starts_over_too_and_is_none_for_shards(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    assert cli("apply", saved(cli, deployment), "--shard", "0/2").code == 0
    plan = saved(cli, deployment, "--new-run")
    shared = cli("apply", plan, "--shard", "0/2")
    assert (shared.code, "make the plan without --new-run" in shared.words) == (64, True)
    assert cli("apply", plan).code == 0
    assert len(list((deployment / "outbox").iterdir())) == 2
    assert len(read_rows(deployment / "outbox/run")) == 20


@pytest.mark.slow
def test_parts_of_shards_whose_ledger_and_plan_are_lost_are_put_aside(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(SMALL)
    plan = saved(cli, deployment)
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert cli("finish", plan).code == 0
    shutil.rmtree(deployment / ".ortdeploy")
    refused = cli("apply", deployment / "m.yaml")
    assert (refused.code, "with ortdeploy finish and one of the plan files" in refused.words) == (1, True)
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    assert len(list((deployment / "outbox").iterdir())) == 2


@pytest.mark.process
def test_a_new_run_puts_the_objects_of_a_store_aside(cli: Cli, deployment: Path, bucket: s3.Store) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(SMALL.replace("outbox/run", f'"{bucket.url("out")}"'))
    plan = saved(cli, deployment)
    assert cli("apply", plan, "--shard", "0/2").code == 0
    before = bucket.parts("out")
    plan.unlink()
    refused = cli("apply", manifest)
    assert (refused.code, "Or start over with --new-run" in refused.words) == (1, True)
    over = cli("apply", manifest, "--new-run")
    assert over.code == 0, over.words
    assert not [name for name in bucket.names("out") if name.startswith("_parts/")]
    rows = [json.loads(line)["row"] for part in bucket.parts("out").values() for line in part.splitlines()]
    assert rows == list(range(20))
    (aside,) = {name.split("/")[0] for name in bucket.names("") if name.startswith("out.")}
    assert bucket.parts(aside) == before
    assert any(name.endswith("/bound.json") for name in bucket.names(aside))
    shutil.rmtree(deployment / ".ortdeploy")  # a worker of the old plan, on a machine that does not see the ledger
    late = cli("apply", saved(cli, deployment), "--shard", "0/2")
    assert (late.code, "a run on one machine has begun in" in late.words) == (64, True)
    left = [name for name in bucket.names("out") if name.startswith("_parts/")]
    assert left == ["_parts/from-0.json"]  # without bound.json it means nothing to the next plan, and to one machine
