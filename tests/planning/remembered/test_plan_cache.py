"""A plan that was checked is completed with other data, and made again wherever anything else may be another."""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from msgspec import Struct
from support.memo_files import memo_files, memo_values, rewrite
from support.models import lora_model, make_adapter
from support.remembered_plans import AROUND, BESIDE_DATA, Plans, everything_is_old, files_opened_by, make_files

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.cli.main import main
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import InputFacts, OutputFacts
from ortdeploy.facts.memory import MeasuredMemory
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.memory_notes import note_memory
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import JobInput, JobOutput, Plan, RunJob
from ortdeploy.planning.remembered import nothing_to_do, plan_cache
from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo
from ortdeploy.planning.remembered.plan_cache import KIND, recall_plan
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.state import memo

MANIFEST = """\
version: 1
name: demo
models:
  double: {path: models/double.onnx, checks: [checks/double], session: {intra_op_num_threads: 1}}
  tuned: {path: models/tuned.onnx, session: {intra_op_num_threads: 1}}
adapters:
  low: {path: adapters/low.onnx_adapter, model: tuned}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy}
    batch: {size: 2}
    postprocess: [{argmax: y, as: most}, {labels: most, from: labels.txt, as: name}]
    output: {path: outbox/run, format: jsonl, columns: [y, name], removable: true}
  tune:
    model: tuned
    adapter: low
    input: {path: inbox/*.npy}
    batch: {size: 2}
    output: {path: outbox/tune, format: npy}
"""


def prepare(folder: Path) -> None:
    make_files(folder)
    lora_model(folder / "models/tuned.onnx", required=True)
    (folder / "adapters").mkdir()
    arrays = {"lora_A": np.ones((4, 2), np.float32), "lora_B": np.ones((2, 4), np.float32)}
    make_adapter(folder / "adapters/low.onnx_adapter", **arrays)
    (folder / "m.yaml").write_text(MANIFEST)
    arrive(folder, "a")


def arrive(folder: Path, name: str, rows: int = 4) -> None:
    np.save(folder / f"inbox/{name}.npy", np.ones((rows, 4), np.float32))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    return Plans(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A deployment beside which nothing else changes."""
    prepare(tmp_path / "deployment")
    with everything_is_old():
        yield tmp_path / "deployment"


def rows_of(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in (folder / "outbox/run").glob("part-*"))


def test_new_files_are_run_without_making_the_plan_again(cli: Cli, folder: Path, plans: Plans) -> None:
    for number, name in enumerate("abc"):
        arrive(folder, name)
        assert cli("apply", folder / "m.yaml").code == 0
        assert (plans.made, rows_of(folder)) == (1, 4 * (number + 1))
        assert len(list((folder / "outbox/tune").glob("part-*.npy"))) == number + 1
    assert "nothing to do" in cli("apply", folder / "m.yaml").out
    assert plans.made == 2


@pytest.mark.slow
def test_a_number_of_rows_that_no_run_had_is_planned_once(cli: Cli, folder: Path, plans: Plans) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    made: list[int] = []
    for number, rows in enumerate([4, 1, 2, 1, 2, 4]):
        arrive(folder, f"c{number}", rows=rows)
        assert cli("apply", folder / "m.yaml").code == 0
        report = json.loads((folder / "outbox/run/_run.json").read_text())
        assert report["memory"]["predicted_bytes"] > 0
        made.append(plans.made)
    assert made == [1, 2, 2, 2, 2, 2]  # four rows are two runs of two, so only one row alone is new


@pytest.mark.slow
def test_what_is_shown_and_kept_is_what_a_whole_plan_shows_and_keeps(cli: Cli, folder: Path) -> None:
    other = Path(shutil.copytree(folder, folder.with_name("other")))
    shown: list[list[Any]] = []
    for at in (folder, other):
        assert cli("apply", at / "m.yaml").code == 0
        arrive(at, "b", rows=8)
        if at is other:
            shutil.rmtree(at / ".ortdeploy" / memo.FOLDER / KIND)
        lines = cli("apply", at / "m.yaml", "-v").out.replace(str(at), "").splitlines()
        shown.append([line for line in lines if "done in" not in line and "rests on inputs" not in line])
        texts = sorted((at / ".ortdeploy/manifests").glob("*.json"))
        shown.append([list(json.loads(text.read_text()).values()) for text in texts])
    assert shown[:2] == shown[2:]


@dataclass(frozen=True)
class Known:
    """A deployment whose plan is remembered, and into which a file has come."""

    folder: Path
    arguments: argparse.Namespace

    def recalled(self) -> Plan | None:
        asked = self.arguments
        planned = recall_plan(AnswerMemo(asked), asked.paths, asked.roots, asked.state_dir)
        return planned.plans[0] if planned else None

    def made(self) -> tuple[Plan | None, set[str]]:
        """Return the plan as it is made, and the rules that have objected or warned."""
        planned = plan_manifests(self.arguments.paths, LoadOptions(), state_dir=None)
        return next(iter(planned.plans), None), {one.rule for one in planned.diagnostics}


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A deployment that was applied, and what is remembered of its plan."""
    folder = tmp_path_factory.mktemp("applied") / "deployment"
    prepare(folder)
    with everything_is_old():
        assert main(["apply", str(folder / "m.yaml")]) == 0
    log.send_to(None)
    (entry,) = memo_values(folder / ".ortdeploy", KIND)
    return folder, entry


@pytest.fixture
def known(applied: tuple[Path, dict[str, object]], tmp_path: Path) -> Iterator[Known]:
    original, entry = applied
    folder = Path(shutil.copytree(original, tmp_path / "deployment"))
    entry = json.loads(json.dumps(entry).replace(str(original), str(folder)))
    arguments = build_parser("apply").parse_args(["apply", str(folder / "m.yaml")])
    with everything_is_old():
        recollection = AnswerMemo(arguments)
        told = {"told": entry["told"]}
        recollection.remember(KIND, recollection.look(entry["rests_on"]), str(folder / ".ortdeploy"), told)
        arrive(folder, "b")
        assert Known(folder, arguments).recalled() is not None
        yield Known(folder, arguments)


def _arrive_many(folder: Path) -> None:
    for name in "cdef":
        arrive(folder, name, rows=400)


def _take_away(folder: Path) -> None:
    shutil.rmtree(folder / "outbox/tune")


def _carry_away(folder: Path) -> None:
    for path in (folder / "outbox/run").glob("part-*"):
        path.unlink()


def _finish(folder: Path) -> None:
    (folder / "inbox/b.npy").unlink()


GOOD: dict[str, Callable[[Path], object]] = {
    "one file": lambda _: None,
    "several files, many rows": _arrive_many,
    "another order": lambda at: arrive(at, "Z"),
    "an output is taken away": _take_away,
    "rows are carried away": _carry_away,
    "a link to a file beside it": lambda at: (at / "inbox/c.npy").symlink_to(at / "inbox/b.npy"),
}
"""What may be of the data, and the plan needs no rule."""


@pytest.mark.slow
@pytest.mark.parametrize("case", GOOD)
def test_a_plan_with_other_data_is_the_one_that_would_be_made(known: Known, case: str) -> None:
    GOOD[case](known.folder)
    plan, rules = known.made()
    assert not rules
    assert plan is not None
    found = known.recalled()
    assert found is not None
    assert encode(found) == encode(plan)


def _save(array: np.ndarray) -> Callable[[Path], None]:
    return lambda at: np.save(at / "inbox/b.npy", array)


def _link(at: Path) -> None:
    (at.parent / "outside.npy").write_bytes((at / "inbox/b.npy").read_bytes())
    (at / "inbox/c.npy").symlink_to(at.parent / "outside.npy")


def _link_folder(at: Path) -> None:
    shutil.move(at / "outbox", at.parent / "moved")
    (at / "outbox").symlink_to(at.parent / "moved")


def _put_a_file(at: Path) -> None:
    shutil.rmtree(at / "outbox/tune")
    (at / "outbox/tune").write_text("")


def _lose_ledger(at: Path) -> None:
    (at / ".ortdeploy/state.db").unlink()


def _edit_ledger(statement: str) -> Callable[[Path], None]:
    def edit(at: Path) -> None:
        import sqlite3  # noqa: PLC0415  only here

        with closing(sqlite3.connect(at / ".ortdeploy/state.db")) as db, db:
            db.execute(statement)

    return edit


NOT_GOOD: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "another type": (_save(np.ones((4, 4), np.float64)), {"input-type-mismatch"}),
    "another width": (_save(np.ones((4, 5), np.float32)), {"input-shape-mismatch"}),
    "NaN": (_save(np.full((4, 4), np.nan, np.float32)), {"not-finite-rows"}),
    "no row": (_save(np.ones((0, 4), np.float32)), {"empty-input"}),
    "a short batch that was never tried": (_save(np.ones((5, 4), np.float32)), set()),
    "a file that is none": (lambda at: (at / "inbox/b.npy").write_bytes(b"no"), {"unreadable-input"}),
    "a link out": (_link, {"unreadable-input"}),
    "no file": (lambda at: shutil.rmtree(at / "inbox"), {"unmatched-input"}),
    "a known file changed": (lambda at: arrive(at, "a", rows=8), {"finished-output"}),
    "a known file is gone": (lambda at: (at / "inbox/a.npy").unlink(), set()),
    "nothing to do": (_finish, set()),
    "a part is damaged": (
        lambda at: os.truncate(next((at / "outbox/tune").glob("part-*")), 3),
        {"unwritable-output"},
    ),
    "the output is a file": (
        _put_a_file,
        {"unwritable-output"},
    ),
    "the output is a link out": (_link_folder, {"unwritable-output"}),
    "the output is a stranger's": (
        _lose_ledger,
        {"finished-output"},
    ),
    "results of another manifest": (
        _edit_ledger("""UPDATE outputs SET identity = replace(identity, '"batch": "', '"batch": "0')"""),
        {"finished-output"},
    ),
}
"""What may be of the data so that a rule objects or warns, or that makes it another kind of plan; and which rules."""


@pytest.mark.quick(
    "another type", "NaN", "a link out", "a known file changed", "nothing to do", "the output is a stranger's"
)
@pytest.mark.parametrize("case", NOT_GOOD)
def test_where_a_rule_might_object_the_plan_is_made(known: Known, case: str) -> None:
    change, rules = NOT_GOOD[case]
    change(known.folder)
    assert known.recalled() is None
    _, found = known.made()
    assert rules <= found


def test_an_output_with_another_thread_layout_needs_a_plan_of_its_own(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(known.folder, "b")
    assert known.recalled() is not None
    monkeypatch.setattr(OutputFacts, "layout_or", lambda _output, _first: "2 sessions of 1 thread")
    assert known.recalled() is None


def test_rows_that_go_beyond_the_disk_limit_are_refused(cli: Cli, folder: Path) -> None:
    text = MANIFEST.replace("format: npy}", "format: npy}\n    limits: {disk: 4KiB}")
    (folder / "m.yaml").write_text(text)
    assert cli("apply", folder / "m.yaml").code == 0
    assert memo_files(folder / ".ortdeploy", KIND)
    arrive(folder, "b", rows=4000)
    refused = cli("apply", folder / "m.yaml")
    assert (refused.code, "error[over-disk-limit]" in refused.out) == (1, True)


@pytest.mark.parametrize(("size", "fits"), [(100, True), (300, False)])
def test_a_job_that_took_more_memory_than_there_is_needs_a_rule(known: Known, size: int, *, fits: bool) -> None:
    plan = known.recalled()
    assert plan is not None
    state = known.folder / ".ortdeploy"
    for step in run_jobs(plan):
        assert step.limits.forecast is not None
        for way in step.limits.forecast.ways:
            note_memory(state, step.limits.forecast.key, MeasuredMemory(way=way, size=size, rows=4))
    entry = memo_values(state, KIND)[-1]
    told: Any = entry["told"]
    for job in told["jobs"]:
        for one in job["forecasts"]:
            one["forecast"]["bound"] = 200
    rewrite(_kept(known), entry)
    assert (known.recalled() is not None) == fits


CHANGES: dict[str, Callable[[Path], object]] = {
    **BESIDE_DATA,
    "an adapter's bytes": lambda at: make_adapter(
        at / "adapters/low.onnx_adapter", lora_A=np.zeros((4, 2), np.float32), lora_B=np.zeros((2, 4), np.float32)
    ),
    "an adapter is gone": lambda at: (at / "adapters/low.onnx_adapter").unlink(),
}


@pytest.mark.quick("the manifest's text", "a model's bytes", "a model is a link", "an adapter's bytes", "golden data")
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_beside_data_the_plan_is_made(known: Known, change: str) -> None:
    CHANGES[change](known.folder)
    assert known.recalled() is None


@pytest.mark.quick("an environment variable", "the group's memory", "a package", "the clock was set back")
@pytest.mark.parametrize("change", AROUND)
def test_whatever_changes_around_it_the_plan_is_made(
    known: Known, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    AROUND[change](monkeypatch, known.folder)
    assert known.recalled() is None


@pytest.mark.quick(0, 3, 6)
@pytest.mark.parametrize(
    "options",
    [
        ["--set", "jobs.run.batch.size=4"],
        ["--new-run"],
        ["--job", "run"],
        ["--state-dir", "x"],
        ["--log-file", "x"],
        ["--allow-root", "x"],
        ["--overlay", "x.yaml"],
        ["--profile", "none"],
    ],
)
def test_another_command_line_has_its_own_plan(known: Known, options: list[str]) -> None:
    arguments = build_parser("apply").parse_args(["apply", str(known.folder / "m.yaml"), *options])
    assert Known(known.folder, arguments).recalled() is None


@pytest.mark.slow
def test_code_that_is_another_makes_the_plan(
    cli: Cli, folder: Path, plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    monkeypatch.setattr(nothing_to_do, "code_files", lambda: [str(module)])
    assert cli("apply", folder / "m.yaml").code == 0
    module.write_text("x = 2\n")
    arrive(folder, "b")
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 2


def _kept(known: Known) -> Path:
    """The file in which the plan is remembered."""
    return memo_files(known.folder / ".ortdeploy", KIND)[-1]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_record_that_is_cut_is_none(known: Known, share: float) -> None:
    path = _kept(known)
    os.truncate(path, int(path.stat().st_size * share))
    assert known.recalled() is None


def test_a_record_without_its_seal_is_none(known: Known) -> None:
    path = _kept(known)
    path.write_text(path.read_text().replace("outbox/run", "outbox/ruin"))
    assert known.recalled() is None


FOREIGN: dict[str, Callable[[Any], object]] = {
    "nothing": lambda told: told.clear(),
    "no plan": lambda told: told.update(plan=None),
    "a number": lambda told: told.update(jobs=3),
    "another folder": lambda told: told["plan"].update(folder="/"),
    "another manifest": lambda told: told["plan"].update(manifest="/etc/m.yaml"),
    "more roots": lambda told: told["plan"].update(roots=["/"]),
    "roots of a job": lambda told: told["jobs"][0]["places"]["input"].update(roots=["/"]),
    "fields of another version": lambda told: told["jobs"][0].pop("run_sizes"),
    "a job that is not there": lambda told: told["jobs"][0]["places"].update(job="x"),
}


@pytest.mark.quick("nothing", "more roots", "fields of another version")
@pytest.mark.parametrize("change", FOREIGN)
def test_a_record_of_a_stranger_is_none(known: Known, change: str) -> None:
    entry = memo_values(known.folder / ".ortdeploy", KIND)[-1]
    rewrite(_kept(known), entry)
    assert known.recalled() is not None
    FOREIGN[change](entry["told"])
    rewrite(_kept(known), entry)
    assert known.recalled() is None


def _edited(before: str, after: str) -> Callable[[Path], None]:
    def edit(at: Path) -> None:
        assert before in MANIFEST
        (at / "m.yaml").write_text(MANIFEST.replace(before, after))

    return edit


NOT_KEPT: dict[str, Callable[[Path], object]] = {
    "a warning": lambda at: np.save(at / "inbox/a.npy", np.full((4, 4), np.nan, np.float32)),
    "layouts to measure": _edited("[checks/double], session: {intra_op_num_threads: 1}", "[checks/double], threads: auto"),
    "a step that is an operator": _edited("{argmax: y, as: most}", "{op: Neg, in: {X: $y}, out: z}, {argmax: z, as: most}"),
    "a job that reads another one": _edited("adapter: low\n    input: {path: inbox/*.npy}", "adapter: low\n    input: {job: run, columns: {x: y}}"),
    "a pause": _edited("removable: true}\n", "removable: true}\n    pause: {below: {battery: 20%}}\n"),
    "somebody to tell": _edited("version: 1\n", "version: 1\non_end: {command: [/bin/true]}\n"),
}  # fmt: skip
"""Deployments whose plans follow from more than their files, or show more than steps."""


@pytest.mark.quick("a warning", "a job that reads another one", "a pause", "somebody to tell")
@pytest.mark.parametrize("case", NOT_KEPT)
def test_what_follows_from_more_than_files_is_not_kept(cli: Cli, folder: Path, case: str) -> None:
    NOT_KEPT[case](folder)
    cli("apply", folder / "m.yaml")
    assert memo_files(folder / ".ortdeploy", KIND) == []


def test_a_run_that_fails_keeps_nothing(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.cli.applying.runner.run_plan", lambda *_, **__: 1 / 0)
    assert cli("apply", folder / "m.yaml").code == 3
    assert memo_files(folder / ".ortdeploy", KIND) == []


def test_a_plan_with_which_a_job_failed_is_made_again(cli: Cli, folder: Path, plans: Plans) -> None:
    """What it failed by may be nothing that is looked at: a device is broken, and another provider would do."""
    assert cli("apply", folder / "m.yaml").code == 0
    arrive(folder, "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ortdeploy.cli.applying.runner.run_plan", _broken)
        assert cli("apply", folder / "m.yaml").code == 1
    assert plans.made == 1
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 2


def _broken(*_: object, **__: object) -> None:
    raise OrtdeployError("the device is lost")


@pytest.mark.slow
def test_what_has_only_just_changed_is_not_kept(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", 10**12)
    assert cli("apply", folder / "m.yaml").code == 0
    assert memo_files(folder / ".ortdeploy", KIND) == []


def test_whatever_a_plan_opens_beside_data_is_looked_at_again(cli: Cli, folder: Path) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    (entry,) = memo_values(folder / ".ortdeploy", KIND)
    rests_on = entry["rests_on"]
    assert isinstance(rests_on, dict)
    arrive(folder, "b")
    _, files = files_opened_by(folder, "plan", "-q", "m.yaml")
    data = (folder / ".ortdeploy", folder / "inbox", folder / "outbox")
    opened = {str(file) for file in files if not any(map(file.is_relative_to, data))}
    trees = tuple(rests_on["trees"])
    assert {path for path in opened if not path.startswith(trees)} <= set(rests_on["files"])
    assert str(folder / "m.yaml") in opened


def test_what_data_decides_is_known_here() -> None:
    """A new fact of data is part of `digest_of_input`, or completes a plan; then it is added here."""
    assert _fields(InputFacts) == (
        "beside carried changed columns dialect differing digest files first_row format gone held_bytes "
        "memory_limit missing_package moved names present problem rates repairable repeated rerun rerun_rows "
        "restarted row_type rows rows_before settings states superseded types unreadable unseekable unsettled"
    )
    assert _fields(OutputFacts) == (
        "aside committed failed free_bytes identity layout ledger left_over made missing_package problem read_only rows "
        "run shards skipped state threads"
    )
    assert _fields(JobInput) == (
        "dialect elsewhere files first_row format gone key missing on_change patterns rerun rerun_rows row_type rows "
        "rows_before settings types unreadable upstream"
    )
    assert _fields(JobOutput) == (
        "aside changed columns committed_rows dtypes explode format images keep on_upgrade path readers recordings removable "
        "replaces reports row_shapes settled types upgraded_at upload"
    )
    assert _fields(RunJob) == (
        "adapters batching errors expect fetch identity input inputs job letters limits model output pipeline postprocess "
        "retry row_axes row_check session thread_layout timing trim values"
    )


def _fields(kind: type[Struct]) -> str:
    return " ".join(sorted(kind.__struct_fields__))


def test_another_plan_is_no_fault() -> None:
    """What makes a plan another one must not look like a fault of the user's or of ours."""
    assert not issubclass(plan_cache.PlanMismatchError, OSError | ValueError)
