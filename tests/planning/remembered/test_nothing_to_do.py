"""An apply that had nothing to do says so again without planning, while nothing at all has changed; and only then."""

import argparse
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Cli
from msgspec.structs import replace
from support.memo_files import memo_files, memo_values, rewrite
from support.plugins import needs_qnn
from support.remembered_plans import (
    AROUND,
    BESIDE_DATA,
    Plans,
    everything_is_old,
    files_opened_by,
    link_to_moved,
    make_files,
    replace_file,
)

from ortdeploy.cli import plans as plans_of_commands
from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.cli.commands import status
from ortdeploy.cli.main import main
from ortdeploy.events import log
from ortdeploy.facts.data import ArrivalPolicy
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import DeviceFacts
from ortdeploy.files.names import names_aside
from ortdeploy.ledger import opening
from ortdeploy.manifest.spec import InputSpec, JobSpec, OutputSpec
from ortdeploy.planning import workflow
from ortdeploy.planning.remembered import dependencies, nothing_to_do
from ortdeploy.planning.remembered.nothing_to_do import code_files
from ortdeploy.runtime import probe

MANIFEST = """\
version: 1
name: demo
models:
  double: {path: models/double.onnx, checks: [checks/double]}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy}
    postprocess: [{argmax: y, as: most}, {labels: most, from: labels.txt, as: name}]
    output: {path: outbox/run, format: jsonl, columns: [y, name]}
"""


def prepare(folder: Path) -> None:
    make_files(folder)
    for name in ("a", "b"):
        np.save(folder / f"inbox/{name}.npy", np.ones((4, 4), np.float32))
    (folder / "m.yaml").write_text(MANIFEST)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A deployment beside which nothing else changes."""
    prepare(tmp_path / "deployment")
    with everything_is_old():
        yield tmp_path / "deployment"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    return Plans(monkeypatch)


@pytest.fixture
def remembered(cli: Cli, folder: Path, plans: Plans) -> str:
    """What an apply prints that has nothing to do, and that is remembered."""
    assert cli("apply", folder / "m.yaml").code == 0
    found = cli("apply", folder / "m.yaml")
    assert (found.code, plans.made) == (0, 2)
    assert "nothing to do" in found.out
    return found.out


def test_the_answer_is_the_same_and_no_plan_is_made(cli: Cli, folder: Path, plans: Plans, remembered: str) -> None:
    again = [cli("apply", folder / "m.yaml") for _ in range(2)]
    assert [(one.code, one.out, one.err) for one in again] == [(0, remembered, "")] * 2
    assert plans.made == 2


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-q"], ["-v"], ["--format", "json"], ["--format", "sarif"], ["--job", "run"]])
def test_each_way_to_ask_has_its_own_answer(
    cli: Cli, folder: Path, plans: Plans, remembered: str, options: list[str]
) -> None:
    found = [cli("apply", folder / "m.yaml", *options) for _ in range(2)]
    assert (found[0].out, found[0].code) == (found[1].out, found[1].code)
    assert plans.made == 3
    assert cli("apply", folder / "m.yaml").out == remembered
    assert plans.made == 3


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _ledger(folder: Path) -> Path:
    return folder / ".ortdeploy/state.db"


def _edit_ledger(folder: Path) -> None:
    with closing(sqlite3.connect(_ledger(folder))) as db, db:
        db.execute("UPDATE outputs SET reason = 'x'")


def _begin_rewrite(folder: Path) -> None:
    with closing(sqlite3.connect(_ledger(folder))) as db, db:
        db.execute("INSERT INTO rewrites (output, part, entry) VALUES ('../outbox/run', 0, '{}')")


CHANGES: dict[str, Callable[[Path], object]] = {
    **BESIDE_DATA,
    "the manifest's time": lambda at: _touch(at / "m.yaml"),
    "an input's bytes": lambda at: np.save(at / "inbox/a.npy", np.ones((5, 4), np.float32)),
    "an input's time": lambda at: _touch(at / "inbox/a.npy"),
    "an input's file": lambda at: replace_file(at / "inbox/a.npy"),
    "one input more": lambda at: np.save(at / "inbox/c.npy", np.ones((5, 4), np.float32)),
    "one input less": lambda at: (at / "inbox/a.npy").unlink(),
    "a folder like an input": lambda at: (at / "inbox/c.npy").mkdir(),
    "an input's name": lambda at: (at / "inbox/a.npy").rename(at / "inbox/c.npy"),
    "the inputs' folder is a link out": lambda at: link_to_moved(at / "inbox"),
    "an input is a link": lambda at: link_to_moved(at / "inbox/a.npy"),
    "a part is gone": lambda at: next((at / "outbox/run").glob("part-*")).unlink(),
    "a part is cut": lambda at: os.truncate(next((at / "outbox/run").glob("part-*")), 3),
    "a part's time": lambda at: _touch(next((at / "outbox/run").glob("part-*"))),
    "the output is gone": lambda at: shutil.rmtree(at / "outbox/run"),
    "the output's folder is a link out": lambda at: link_to_moved(at / "outbox"),
    "the ledger is gone": lambda at: _ledger(at).unlink(),
    "the ledger was written": _edit_ledger,
    "a rewrite was begun": _begin_rewrite,
    "a transaction was cut off": lambda at: Path(f"{_ledger(at)}-journal").write_bytes(b"\xd9"),
}


@dataclass(frozen=True)
class Finished:
    """A deployment that was applied, and what its plan rests on."""

    folder: Path
    rests_on: str
    printed: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished") / "deployment"
    prepare(folder)
    with everything_is_old():
        for _ in range(2):
            assert main(["apply", str(folder / "m.yaml")]) == 0
    log.send_to(None)
    entry = next(_entries(folder))
    return Finished(folder, json.dumps(entry["rests_on"]), str(entry["printed"]))


@dataclass(frozen=True)
class Known:
    """A copy of that deployment, whose answer is remembered as if it had been applied there."""

    folder: Path
    arguments: argparse.Namespace

    def answer(self) -> str | None:
        return nothing_to_do.AnswerMemo(self.arguments).answer()


@pytest.fixture
def known(finished: Finished, tmp_path: Path) -> Iterator[Known]:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "deployment"))
    rests_on = json.loads(finished.rests_on.replace(str(finished.folder), str(folder)))
    arguments = build_parser("apply").parse_args(["apply", str(folder / "m.yaml")])
    known = Known(folder, arguments)
    with everything_is_old():
        nothing_to_do.AnswerMemo(arguments).keep(rests_on, str(folder / ".ortdeploy"), finished.printed)
        assert known.answer() == finished.printed
        yield known


@pytest.mark.quick(
    "the manifest's text",
    "a model's bytes",
    "a file of a step",
    "golden data",
    "an input's time",
    "one input more",
    "an input is a link",
    "a part is cut",
    "the output is gone",
    "the ledger was written",
    "a transaction was cut off",
)
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_in_the_tree_there_is_no_answer(known: Known, change: str) -> None:
    CHANGES[change](known.folder)
    assert known.answer() is None


def _read_only(patch: pytest.MonkeyPatch, _: Path) -> None:
    access = os.access
    patch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))


@pytest.mark.quick("an environment variable", "the group's memory", "a package", "Python")
@pytest.mark.parametrize("change", [*AROUND, "a disk that is read-only"])
def test_whatever_changes_around_it_there_is_no_answer(
    known: Known, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    AROUND.get(change, _read_only)(monkeypatch, known.folder)
    assert known.answer() is None


DRIVER_CHANGES: dict[str, Callable[[Path], object]] = {
    "another driver": lambda at: (at / "modules/npu/srcversion").write_text("2"),
    "a driver more": lambda at: (at / "modules/gpu").mkdir(),
    "a driver less": lambda at: shutil.rmtree(at / "modules/npu"),
    "another library": lambda at: (at / "ld.so.cache").write_text("2"),
    "a library more in a folder for them": lambda at: (at / "libraries/libnpu.so").write_text("2"),
    "another driver of Vulkan": lambda at: (at / "icd.json").write_text("23"),
}


NPU = ("/dev/accel/accel0", 66816, True, 0)

DEVICES = {
    "a device less": [],
    "a device more": [NPU, ("/dev/accel/accel1", 66817, True, 0)],
    "another device": [("/dev/accel/accel0", 66817, True, 0)],
    "a device that may not be used": [("/dev/accel/accel0", 66816, False, 0)],
}


@dataclass(frozen=True)
class Machine:
    """A machine with a neural processor and its driver, in place of this one."""

    folder: Path
    devices: list[tuple[str, int, bool, int]]


def remember_with_devices(known: Known) -> None:
    """Remember an answer that rests on the devices too."""
    recollection, state_dir = nothing_to_do.AnswerMemo(known.arguments), str(known.folder / ".ortdeploy")
    rests_on = next(_entries(known.folder))["rests_on"]
    assert isinstance(rests_on, dict)
    recollection.keep({**rests_on, "devices": True}, state_dir, "all done\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "modules/npu").mkdir(parents=True)
    (tmp_path / "modules/npu/srcversion").write_text("1")
    (tmp_path / "ld.so.cache").write_text("1")
    (tmp_path / "libraries").mkdir()
    (tmp_path / "icd.json").write_text("1")
    devices = [NPU]
    monkeypatch.setattr(nothing_to_do, "_DRIVERS", str(tmp_path / "modules"))
    monkeypatch.setattr(nothing_to_do, "_OF_DRIVERS", (str(tmp_path / "ld.so.cache"),))
    monkeypatch.setattr(nothing_to_do, "_devices", lambda: iter(devices))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'libraries'}:")
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "icd.json"))
    return Machine(tmp_path, devices)


@pytest.mark.parametrize("change", [*DEVICES, *DRIVER_CHANGES])
def test_where_an_accelerator_is_used_its_device_and_driver_are_looked_at(
    known: Known, machine: Machine, change: str
) -> None:
    remember_with_devices(known)
    assert known.answer() == "all done\n"
    if change in DRIVER_CHANGES:
        DRIVER_CHANGES[change](machine.folder)
    else:
        machine.devices[:] = DEVICES[change]
    assert known.answer() is None


def test_a_device_that_came_while_the_command_looked_is_not_remembered(known: Known, machine: Machine) -> None:
    """Else a plan that was made without it would stay."""
    machine.devices[:] = [(*NPU[:3], time.time_ns() - 2 * nothing_to_do.RACY_NS)]
    remember_with_devices(known)
    assert known.answer() != "all done\n"


def test_a_device_stays_the_same_while_others_come_and_go(known: Known, machine: Machine) -> None:
    """They change the time of its folder, as a disk does that is plugged in."""
    remember_with_devices(known)
    machine.devices[:] = [(*NPU[:3], NPU[3] + 1)]
    assert known.answer() == "all done\n"


@pytest.mark.parametrize("hidden", ["_DEVICES", "_DRIVERS"])
def test_where_devices_or_drivers_are_not_shown_nothing_is_remembered(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    monkeypatch.setattr(nothing_to_do, hidden, str(tmp_path / "nowhere"))
    remember_with_devices(known)
    assert known.answer() != "all done\n"


@pytest.mark.skipif(sys.platform != "linux", reason="devices are in /dev on Linux")
def test_devices_are_the_character_devices_of_the_system() -> None:
    found = {path: rest for path, *rest in nothing_to_do._devices()}  # noqa: SLF001  what answers rest on
    assert found["/dev/null"] == [Path("/dev/null").stat().st_rdev, True, Path("/dev").stat().st_mtime_ns]
    assert "/dev/pts/0" not in found
    assert "/dev/stdin" not in found


def test_without_an_accelerator_no_device_is_looked_at(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing_to_do, "_devices", pytest.fail)
    assert known.answer() is not None


def test_what_is_loaded_is_the_code_but_for_python_itself() -> None:
    files = code_files()
    assert {nothing_to_do.__file__, np.__file__} <= set(files)
    assert json.__file__ not in files


@pytest.mark.slow
def test_code_that_is_another_makes_a_plan(
    cli: Cli, folder: Path, plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    monkeypatch.setattr(nothing_to_do, "code_files", lambda: [str(module)])
    for _ in range(3):
        cli("apply", folder / "m.yaml")
    assert plans.made == 2
    module.write_text("x = 2\n")
    cli("apply", folder / "m.yaml")
    assert plans.made == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "jobs.run.batch.size=2"],
        ["--new-run"],
        ["--job", "run"],
        ["-v"],
        ["--state-dir", "x"],
        ["--log-file", "x"],
    ],
)
def test_another_command_line_has_no_answer(known: Known, options: list[str]) -> None:
    arguments = build_parser("apply").parse_args(["apply", str(known.folder / "m.yaml"), *options])
    assert nothing_to_do.AnswerMemo(arguments).answer() is None


def test_a_terminal_of_another_width_has_no_answer(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known.answer() is not None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1)
    widths: list[int] = []
    for width in (100, 60):
        monkeypatch.setattr("os.get_terminal_size", lambda _, width=width: os.terminal_size((width, 24)))
        widths.append(nothing_to_do._terminal() or 0)  # noqa: SLF001  what the answer depends on
    assert widths == [100, 60]
    assert known.answer() is None


def test_another_folder_of_the_process_has_no_answer(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(known.folder)
    assert known.answer() is None


def test_a_copy_has_no_answer(known: Known) -> None:
    shutil.copytree(known.folder, known.folder.with_name("copy"), symlinks=True)
    known.folder.rename(known.folder.with_name("old"))
    known.folder.with_name("copy").rename(known.folder)
    assert known.answer() is None


@pytest.mark.slow
def test_an_overlay_counts(cli: Cli, folder: Path, plans: Plans) -> None:
    overlay = folder / "overlay.yaml"
    overlay.write_text("jobs: {run: {retries: 1}}\n".replace("retries: 1", "errors: {retries: 1}"))
    for _ in range(3):
        assert cli("apply", folder / "m.yaml", "--overlay", overlay).code == 0
    assert plans.made == 2
    overlay.write_text("jobs: {run: {errors: {retries: 3}}}\n")
    cli("apply", folder / "m.yaml", "--overlay", overlay)
    assert plans.made == 3


def test_a_folder_of_manifests_counts_whole(cli: Cli, folder: Path, plans: Plans) -> None:
    for _ in range(3):
        assert cli("apply", folder).code == 0
    assert plans.made == 2
    (folder / ".more.yaml").write_text(
        MANIFEST.replace("outbox/run", "outbox/more").replace("name: demo", "name: more")
    )
    assert "done" in cli("apply", folder).out
    assert plans.made == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is remembered of accelerators")
def test_a_provider_that_is_not_installed_is_looked_for_in_the_packages(
    cli: Cli, folder: Path, plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "m.yaml").write_text(ACCELERATED.replace("CHAIN]", "CUDA, CPU], on_unavailable: next"))
    for _ in range(3):
        assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 2
    monkeypatch.syspath_prepend(tmp_path)
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 3


def test_an_input_that_waits_is_not_remembered(cli: Cli, folder: Path, plans: Plans) -> None:
    path = "{path: inbox/*.npy, stable_for: 1h}"
    (folder / "m.yaml").write_text(MANIFEST.replace("{path: inbox/*.npy}", path))
    found = [cli("apply", folder / "m.yaml") for _ in range(3)]
    assert [(one.code, "nothing to do" in one.out) for one in found] == [(0, True)] * 3
    assert plans.made == 3


@pytest.mark.slow
def test_of_jobs_that_pause_by_sensors_nothing_is_remembered(cli: Cli, folder: Path, plans: Plans) -> None:
    (folder / "m.yaml").write_text(f"{MANIFEST}    pause: {{below: {{free_disk: 1B}}}}\n")
    for _ in range(3):
        assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 3


def test_an_output_that_cannot_be_made_any_more_is_looked_at(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (folder / "inbox").iterdir():
        file.unlink()
    path = "{path: inbox/*.npy, on_empty: done}"
    (folder / "m.yaml").write_text(MANIFEST.replace("{path: inbox/*.npy}", path))
    (folder / ".ortdeploy").mkdir()
    for _ in range(3):
        assert "nothing to do" in cli("apply", folder / "m.yaml").out
    assert plans.made == 1
    _read_only(monkeypatch, folder)
    cli("apply", folder / "m.yaml")
    assert plans.made == 2


def test_an_input_that_is_gone_is_noted_before_it_is_remembered(cli: Cli, folder: Path, plans: Plans) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    (folder / "inbox/a.npy").unlink()
    for _ in range(4):
        assert "nothing to do" in cli("apply", folder / "m.yaml").out
    assert plans.made == 3
    np.save(folder / "inbox/a.npy", np.ones((3, 4), np.float32))
    assert "1 job to run" in cli("apply", folder / "m.yaml").out


@pytest.mark.slow
def test_what_has_only_just_changed_is_not_remembered(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", 10**12)
    for _ in range(3):
        assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 3


@pytest.mark.slow
def test_a_folder_that_is_exchanged_meanwhile_is_not_remembered(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    plan_manifests = workflow.plan_manifests

    def exchange(*arguments: object, **settings: object) -> object:
        planned = plan_manifests(*arguments, **settings)  # type: ignore[arg-type]  # as it was called
        shutil.copytree(folder, folder.with_name("other"))
        folder.rename(folder.with_name("old"))
        folder.with_name("other").rename(folder)
        return planned

    with monkeypatch.context() as patch:
        patch.setattr(plans_of_commands, "plan_manifests", exchange)
        assert "nothing to do" in cli("apply", folder / "m.yaml").out
    cli("apply", folder / "m.yaml")
    assert plans.made == 2


def test_where_a_file_has_come_the_others_are_not_looked_at(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    (known.folder / "inbox/new.npy").touch()
    monkeypatch.setattr(nothing_to_do, "_Look", lambda *_: pytest.fail("files were looked at"))
    assert known.answer() is None


def _entries(folder: Path) -> Iterator[dict[str, object]]:
    yield from memo_values(folder / ".ortdeploy", "answer")


def _kept(known: Known) -> Path:
    """The file in which the answer is remembered."""
    return memo_files(known.folder / ".ortdeploy", "answer")[-1]


@pytest.mark.parametrize("entry", [[], 3, {}, {"printed": "all done"}, {"since": 0, "folders": [], "rests_on": []}])
def test_a_record_of_another_form_is_none(known: Known, entry: object) -> None:
    rewrite(_kept(known), entry)
    assert known.answer() is None


def test_a_record_that_says_something_else_is_none(known: Known) -> None:
    path = _kept(known)
    path.write_text(path.read_text().replace("nothing to do", "everything done"))
    assert known.answer() is None


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("printed", ["all done\n", "\x1b]0;title\x07", "\x1b[2J", "a\rb", "\x9b1m"])
def test_a_terminal_gets_no_control_characters_of_a_stranger(known: Known, printed: str) -> None:
    rewrite(_kept(known), {**[*_entries(known.folder)][-1], "printed": printed})
    assert known.answer() == (printed if printed.startswith("all") else None)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-v"], ["--format", "json"]])
def test_a_status_is_said_again_until_the_ledger_is_written(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    looked: list[object] = []
    read_ledger = opening.read_ledger

    def counted(state_dir: Path) -> object:
        looked.append(state_dir)
        return read_ledger(state_dir)

    monkeypatch.setattr(status, "read_ledger", counted)
    assert cli("apply", folder / "m.yaml").code == 0
    first, again = (cli("status", folder / "m.yaml", *options) for _ in range(2))
    assert (again.code, again.out) == (first.code, first.out)
    assert len(looked) == 1
    _edit_ledger(folder)
    cli("status", folder / "m.yaml", *options)
    (folder / "m.yaml").write_text(MANIFEST.replace("run:", "walk:"))
    assert "walk" in cli("status", folder / "m.yaml", *options).out
    assert len(looked) == 3


def test_a_status_counts_no_rows_of_an_output_that_a_killed_run_has_put_aside(cli: Cli, folder: Path) -> None:
    """The folder gets its new name first, and the kill comes before the ledger knows that."""
    assert cli("apply", folder / "m.yaml").code == 0
    shown = "status", folder / "m.yaml", "--format", "json"
    before = [cli(*shown).json["jobs"][0] for _ in range(2)]
    assert [one["committed"] for one in before] == [8, 8]
    output = folder / "outbox/run"
    output.rename(next(names_aside(output, before[0]["started"])))
    (after,) = cli(*shown).json["jobs"]
    assert (after["status"], "committed" in after) == ("never-run", False)


def test_a_status_of_a_job_that_was_stopped_is_not_remembered(cli: Cli, folder: Path) -> None:
    assert cli("apply", folder / "m.yaml").code == 0
    with closing(sqlite3.connect(_ledger(folder))) as db, db:
        db.execute("UPDATE outputs SET status = 'running'")
    assert "stopped" in cli("status", folder / "m.yaml").out
    assert memo_files(folder / ".ortdeploy", "answer") == []


def test_whatever_a_plan_opens_is_looked_at_again(folder: Path, remembered: str) -> None:
    code, files = files_opened_by(folder, "apply", "-q", "m.yaml")
    assert code == 0, remembered
    entry = next(_entries(folder))
    rests_on = entry["rests_on"]
    assert isinstance(rests_on, dict)
    looked_at = {*rests_on["files"], *map(str, (folder / "inbox").iterdir())}
    opened = {str(file) for file in files if not file.is_relative_to(folder / ".ortdeploy")}
    trees = tuple(rests_on["trees"])
    assert {path for path in opened if not path.startswith(trees)} <= looked_at
    assert len(opened) >= 4


def test_what_plans_rest_on_is_known_here() -> None:
    """A new field is looked at by rests_on, or its jobs are left out there; then it is added here."""
    fields = {kind: " ".join(sorted(kind.__struct_fields__)) for kind in (Facts, *_NAMING)}
    assert fields == {
        Facts: "adapters diffusion gate_problems inputs labels links_out machine models option_files outputs "
        "path_problems resources runtime",
        ArrivalPolicy: "on_change on_empty on_remove stable_for",
        InputSpec: "arrivals at columns dialect format jobs key missing paths row_type settings values",
        JobSpec: "adapters at attempts batch expect has_pipeline_and_model input limits max_consecutive max_failed model name "
        "on_nan output pipeline postprocess prepare progress_timeout reports retries run_timeout timing",
        OutputSpec: "at columns explode format images keep on_upgrade path recordings removable rows_per_part types url",
    }


_NAMING = (ArrivalPolicy, InputSpec, JobSpec, OutputSpec)


FIXED = "double.onnx, session: {free_dimension_overrides: {batch: 4}},"

ACCELERATED = """\
version: 1
models:
  double: {path: models/double.onnx, providers: [CHAIN]}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy}
    output: {path: outbox/run}
"""


def test_of_a_library_beside_the_manifest_only_libraries_are_looked_at(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its folder are inputs, outputs and the state, which every command changes."""
    (folder / "m.yaml").write_text(ACCELERATED.replace("CHAIN]", "CUDA, CPU], on_unavailable: next"))
    (folder / "libep.so").write_text("1")
    (folder / "libdependent.so.2").write_text("1")
    library = str(folder / "libep.so")
    device = DeviceFacts(provider="OtherExecutionProvider", index=0, kind="GPU", vendor="x", name="x", library=library)
    find = probe.probe_runtime
    monkeypatch.setattr(probe, "probe_runtime", lambda *asked: replace(find(*asked), devices=(device,)))
    monkeypatch.setattr(dependencies, "sys", SimpleNamespace(platform="linux", modules=sys.modules))
    for made in (1, 2, 2):
        assert cli("apply", folder / "m.yaml").code == 0
        assert plans.made == made
    (folder / "libdependent.so.2").write_text("23")
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 3


@needs_qnn
def test_an_accelerator_is_asked_for_once(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files are run on it with the plan that was made, and where nothing is to be done nobody asks at all."""
    chain = "{provider: QNN, options: {backend_type: htp}}"
    (folder / "m.yaml").write_text(ACCELERATED.replace("CHAIN", chain).replace("double.onnx,", FIXED))
    for made in (1, 2, 2):
        assert cli("apply", folder / "m.yaml").code == 0
        assert plans.made == made
    np.save(folder / "inbox/c.npy", np.ones((8, 4), np.float32))
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 2
    assert json.loads((folder / "outbox/run/_run.json").read_text())["placement"] == {"QNNExecutionProvider": 1}
    devices = [*nothing_to_do._devices()]  # noqa: SLF001  what answers rest on
    monkeypatch.setattr(nothing_to_do, "_devices", lambda: iter(devices[1:]))
    assert cli("apply", folder / "m.yaml").code == 0
    assert plans.made == 3


@pytest.mark.slow
@pytest.mark.parametrize("problems", [{"CUDAExecutionProvider": "No libcublasLt.so.13."}, {}])
def test_an_accelerator_that_cannot_be_used_is_asked_for_each_time(
    cli: Cli, folder: Path, plans: Plans, monkeypatch: pytest.MonkeyPatch, problems: dict[str, str]
) -> None:
    """Someone may mend it in a way that no file shows; and only Linux shows all devices and drivers in folders."""
    (folder / "m.yaml").write_text(ACCELERATED.replace("CHAIN]", "CUDA, CPU], on_unavailable: next"))
    find = probe.probe_runtime
    monkeypatch.setattr(probe, "probe_runtime", lambda *asked: replace(find(*asked), plugin_problems=problems))
    monkeypatch.setattr(
        dependencies, "sys", SimpleNamespace(platform="linux" if problems else "win32", modules=sys.modules)
    )
    for made in (1, 2, 3):
        assert cli("apply", folder / "m.yaml").code == 0
        assert plans.made == made
