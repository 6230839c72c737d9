"""Which files of a recurring input a run reads."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ortdeploy.facts.data import (
    NO_FILES,
    STRICT_ARRIVALS,
    ArrivalPolicy,
    DeclaredInput,
    FileState,
    FileStates,
    KnownFile,
    KnownFiles,
)
from ortdeploy.facts.problems import CHANGED, WAITING
from ortdeploy.files import compact_list
from ortdeploy.files.digests import boot_id
from ortdeploy.sources import file_selection, fitting_format, input_probe
from ortdeploy.sources import files as source_files
from ortdeploy.sources.file_selection import CLOCK, KIND, Progress, Settling, accounted_for, compare, sort_arrivals
from ortdeploy.sources.files import UnmountedFolders
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.state import memo

DONE = ArrivalPolicy(on_empty="done")
APPEND = ArrivalPolicy(on_change="append")


def state(path: str, version: int = 1) -> FileState:
    return FileState(path=path, size=version, mtime_ns=version)


def test_files_of_an_unfinished_run_come_first_in_their_order() -> None:
    known = [KnownFile(state=state("b"), done=False), KnownFile(state=state("a"), done=False)]
    found = sort_arrivals([state("a"), state("b"), state("c")], known, APPEND)
    assert found.read == (state("b"), state("a"), state("c"))


def underway(path: str, span: tuple[int, int] | None = None) -> KnownFile:
    return KnownFile(state=state(path), done=False, span=span)


def test_files_of_an_unfinished_run_may_change_and_go_unless_a_part_ends_within_them() -> None:
    known = [underway("c", (2, 2)), underway("b", (4, 3)), underway("a"), underway("z")]
    here = [state("a"), state("b"), state("c"), state("z")]
    five = Progress(first_row=2, rows=7)
    assert sort_arrivals([*here[:2], here[3]], known, APPEND, progress=five).gone == ("c",)
    found = sort_arrivals([state("a", 2), state("b"), state("c"), state("x")], known, APPEND, progress=five)
    assert (found.changed, found.gone) == ((), ())
    assert found.read == (state("b"), state("a", 2), state("x"))
    assert (found.first_row, found.rows_before) == (7, 3)
    assert sort_arrivals([state("a"), state("c"), state("z")], known, APPEND, progress=five).changed == ("b",)
    as_it_was = sort_arrivals(here, known, APPEND, progress=five)
    assert as_it_was.read == (state("c"), state("b"), state("a"), state("z"))
    assert (as_it_was.first_row, as_it_was.rows_before) == (2, 0)


def test_a_file_is_whole_if_a_later_one_has_begun_or_each_file_is_a_row() -> None:
    known = KnownFiles.of([underway("a", (0, 2)), underway("b", (2, 0))])
    assert accounted_for(known, Progress(rows=2)) == ("a",)
    known = KnownFiles.of([underway("a", (0, 1)), underway("b", (1, 1)), underway("c")])
    assert accounted_for(known, Progress(rows=2)) == ("a",)
    assert accounted_for(known, Progress(rows=2, by_file=True)) == ("a", "b")


def test_files_of_an_unfinished_run_must_be_what_they_were_if_it_is_not_noted_which_rows_they_have() -> None:
    known, two = [underway("b"), underway("a")], Progress(rows=2)
    assert sort_arrivals([state("a", 2), state("b")], known, APPEND, progress=two).changed == ("a",)
    assert sort_arrivals([state("a")], known, APPEND, progress=two).changed == ("b",)


def test_an_input_that_may_be_empty_is_refused_while_a_part_ends_within_a_file(tmp_path: Path) -> None:
    def facts(known: Sequence[KnownFile]) -> tuple[str, tuple[str, ...]]:
        npy = DeclaredInput(folder=str(tmp_path), patterns=("*.npy",), arrivals=DONE)
        found = probe_input(npy, frozenset(), known=known, progress=Progress(rows=2))
        assert found.problem is not None
        return found.problem.kind, found.changed

    assert facts([]) == (WAITING, ())
    assert facts([KnownFile(state=state("a.npy"), done=True)]) == (WAITING, ())
    assert facts([underway("a.npy", (0, 2))]) == (CHANGED, ("a.npy",))


def test_a_file_that_goes_while_an_input_is_looked_at_costs_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_files = source_files.list_files

    def list_and_withdraw(*arguments: Any) -> Sequence[str]:
        found = list_files(*arguments)
        (tmp_path / "a.npy").unlink()
        return found

    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((2, 3), dtype=np.float32))
    monkeypatch.setattr(input_probe, "list_files", list_and_withdraw)
    found = probe_input(DeclaredInput(folder=str(tmp_path), patterns=("*.npy",)), frozenset())
    assert ([one.path for one in found.states], found.rows, found.problem) == (["b.npy"], 2, None)


def test_a_file_that_goes_while_another_one_is_read_costs_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((2, 3), dtype=np.float32))
    mistaken = fitting_format.mistaken

    def withdraw_and_look(*arguments: Any, **more: Any) -> Any:
        (tmp_path / "a.npy").unlink(missing_ok=True)
        return mistaken(*arguments, **more)

    monkeypatch.setattr(input_probe, "mistaken", withdraw_and_look)
    found = probe_input(DeclaredInput(folder=str(tmp_path), patterns=("*.npy",)), frozenset())
    assert ([one.path for one in found.states], found.rows, found.problem) == (["b.npy"], 2, None)


@pytest.mark.parametrize("name", ["b.npy", "folder", "../b.npy"])
def test_each_file_and_folder_that_is_named_must_be_there_unless_its_rows_were_run(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), dtype=np.float32))
    path = name if name.endswith("b.npy") else f"{name}/b.npy"
    strict = DeclaredInput(folder=str(tmp_path), patterns=("a.npy", name))

    def problem(declared: DeclaredInput, *known: KnownFile) -> str | None:
        found = probe_input(declared, frozenset(), known=known).problem
        return None if found is None else found.detail

    told = f"No file matches {name} in {tmp_path}. Paths are relative to the manifest."
    assert (problem(strict) or "").startswith(told)
    assert (problem(strict, KnownFile(state=state(path), done=False)) or "").startswith(told)
    assert problem(strict, KnownFile(state=state(path), done=True)) is None
    assert problem(strict, KnownFile(state=state(path), done=False, span=(0, 2))) is None
    assert problem(replace(strict, arrivals=DONE)) is None
    assert problem(replace(strict, patterns=("a.npy", "b*.npy"))) is None


def test_a_file_that_went_is_told_once() -> None:
    known = KnownFile(state=state("a"), done=True)
    assert sort_arrivals([], [known], STRICT_ARRIVALS).gone == ("a",)
    assert sort_arrivals([], [replace(known, gone=True)], STRICT_ARRIVALS).gone == ()
    refusing = ArrivalPolicy(on_remove="refuse")
    for one in (known, replace(known, gone=True)):
        assert sort_arrivals([], [one], refusing).changed == ("a",)
        assert sort_arrivals([state("a")], [one], refusing).changed == ()


def test_of_a_plan_s_files_the_others_are_neither_read_nor_gone_nor_waited_for(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy", "c.npy"):
        np.save(tmp_path / name, np.zeros((2, 4), np.float32))
    known = [KnownFile(state=state("c.npy"), done=True)]  # a run that came later has read it
    hasty = ArrivalPolicy(on_empty="done", stable_for=3600.0)  # when the plan was made, its files were settled
    declared = DeclaredInput(folder=str(tmp_path), patterns=("*.npy",), arrivals=hasty, only=frozenset({"b.npy"}))
    found = probe_input(declared, frozenset(), known=known)
    assert [one.path for one in found.present] == ["b.npy"]
    assert (found.rows, found.gone, found.unsettled) == (2, (), 0)
    nothing = probe_input(replace(declared, only=frozenset()), frozenset(), known=known)
    assert (nothing.gone, nothing.problem and nothing.problem.kind) == ((), WAITING)


VERSIONS = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3), max_size=5)


@given(VERSIONS, VERSIONS, st.sets(st.sampled_from("abcde")), st.sampled_from([STRICT_ARRIVALS, APPEND]))
def test_a_content_is_read_once_or_refused(
    here: Mapping[str, int], before: Mapping[str, int], gone: set[str], policy: ArrivalPolicy
) -> None:
    states = [state(path, version) for path, version in sorted(here.items())]
    known = [KnownFile(state=state(path, version), done=True, gone=path in gone) for path, version in before.items()]
    found = sort_arrivals(states, known, policy)
    assert len(set(found.read)) == len(found.read)
    assert not {one.path for one in found.read} & set(found.changed)
    for one in states:
        is_same = before.get(one.path) == here[one.path]
        assert is_same == (one not in found.read and one.path not in found.changed)
    assert set(found.gone) == {path for path in before if path not in here and path not in gone}
    assert [one for one in states if one in found.read] == list(found.read)


def write(path: Path, age: float) -> None:
    np.save(path, np.zeros(1))
    now = path.stat().st_ctime - age
    os.utime(path, (now, now))


def test_the_later_of_both_times_decides_whether_a_file_is_settled(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", 10_000)
    path = str(tmp_path / "a.npy")
    assert Settling(3600).settled([path]) == ((), (path,))
    assert Settling(0).settled([path]) == ([path], ())


def test_a_file_that_goes_meanwhile_and_one_on_an_object_store(tmp_path: Path) -> None:
    assert Settling(1).settled([str(tmp_path / "gone"), "s3://bucket/a"]) == (("s3://bucket/a",), ())


def test_a_file_from_the_future_is_remembered_before_anything_has_run(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", -100_000)
    path, state = str(tmp_path / "a.npy"), tmp_path / "new/.ortdeploy"
    assert Settling(1, state).settled([path]) == ((), (path,))
    assert Settling(1, state).settled([path]) == ((path,), ())


def test_files_from_the_future_are_remembered_for_each_input_while_they_are_there(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.npy", "b.npy", "c.npy")]
    for path in paths:
        write(Path(path), -100_000)
        assert Settling(1, tmp_path).settled([path]) == ((), (path,))
    Path(paths[0]).unlink()
    for path in paths[1:]:
        assert Settling(1, tmp_path).settled([path]) == ((path,), ())
    write(Path(paths[2]), -200_000)
    assert Settling(1, tmp_path).settled([paths[2]]) == ((), (paths[2],))
    assert memo.get(tmp_path, KIND, "").keys() == {*paths[1:]}


def test_a_damaged_memory_of_future_files_lets_them_wait_once_more(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", -100_000)
    path = str(tmp_path / "a.npy")
    damages: tuple[object, ...] = ([], 3, {"a": 1}, {path: None}, "x")
    for damage in damages:
        memo.put(tmp_path, KIND, "", damage)
        assert Settling(1, tmp_path).settled([path]) == ((), (path,))
        assert Settling(1, tmp_path).settled([path]) == ((path,), ())


class Clocks:
    """A file that is being written, a clock that is set, and one that only goes on; a test turns both, in seconds."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        path = folder / "a.npy"
        path.touch()
        self.path, self.shown, self.uptime, self.asleep = str(path), path.stat().st_ctime + 1, 5.0, 0.0
        self.system = SimpleNamespace(
            CLOCK_BOOTTIME=7,
            time_ns=lambda: int(self.shown * 1e9),
            clock_gettime_ns=lambda kind: int((self.uptime + self.asleep) * 1e9) if kind == 7 else 0,
            monotonic_ns=lambda: int(self.uptime * 1e9),
        )
        patch.setattr(file_selection, "time", self.system)

    def go_on(self, seconds: float, *, set_by: float = 0.0) -> None:
        self.shown, self.uptime = self.shown + seconds + set_by, self.uptime + seconds

    def sleep(self, seconds: float) -> None:
        """Suspend the machine."""
        self.shown, self.asleep = self.shown + seconds, self.asleep + seconds


def test_nothing_is_settled_as_soon_as_a_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, settled = Clocks(tmp_path, monkeypatch), Settling(10, tmp_path).settled
    url = "s3://bucket/a"
    both, later = [clocks.path, url], ((url,), (clocks.path,))
    assert settled(both) == later
    clocks.go_on(1, set_by=56 * 365 * 86400)
    assert settled(both) == later
    clocks.go_on(9)
    assert settled(both) == later
    clocks.go_on(1)
    assert settled(both) == (tuple(both), ())
    clocks.go_on(1, set_by=-86400)
    assert settled(both) == later
    clocks.go_on(10)
    assert settled(both) == (tuple(both), ())


@pytest.mark.parametrize("is_told", [True, False])
def test_no_clock_was_set_while_a_machine_slept_if_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    clocks, settled = Clocks(tmp_path, monkeypatch), Settling(10, tmp_path).settled
    if not is_told:
        del clocks.system.CLOCK_BOOTTIME
    assert settled([clocks.path]) == ((), (clocks.path,))
    clocks.sleep(3600)
    assert settled([clocks.path]) == (((clocks.path,), ()) if is_told else ((), (clocks.path,)))
    clocks.go_on(10)
    assert settled([clocks.path]) == ((clocks.path,), ())


@pytest.mark.parametrize("known", ["", [], 3, ["another boot", 0, None], [boot_id(), "x", None]])
def test_a_clock_that_nobody_has_looked_at_was_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: object
) -> None:
    clocks, settling = Clocks(tmp_path, monkeypatch), Settling(10, tmp_path)
    memo.put(tmp_path, CLOCK, "", known)
    clocks.go_on(10)
    assert settling.settled([clocks.path]) == ((clocks.path,), ())
    clocks.go_on(10, set_by=0.9)
    assert settling.settled([clocks.path]) == ((clocks.path,), ())


def test_a_known_file_that_is_being_written_has_not_gone() -> None:
    known = [KnownFile(state=state("a"), done=True), KnownFile(state=state("b"), done=True)]
    for policy in (APPEND, ArrivalPolicy(on_change="rerun"), ArrivalPolicy(on_remove="refuse")):
        arrivals = sort_arrivals([state("b")], known, policy, unsettled={"a"})
        assert (arrivals.gone, arrivals.changed, arrivals.read) == ((), (), NO_FILES)
    assert sort_arrivals([state("b")], known, APPEND, unsettled={"c"}).gone == ("a",)


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9), unique=True), st.sets(st.integers(0, 9)))
def test_what_differs_is_found_wherever_lists_begin_to(here: list[int], known: list[int], changed: set[int]) -> None:
    present = [FileState(f"{name}", name, int(name in changed)) for name in here]
    before = [KnownFile(state=FileState(f"{name}", name, 0), done=True) for name in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_list, "OF_A_BLOCK", 2)
        found = compare(FileStates.of(present), KnownFiles.of(before), gone_again=True)
        new = list(found.new)
    states = {one.path: one for one in present}
    assert new == [one for one in present if int(one.path) not in known]
    assert found.known == tuple(one for one in before if states.get(one.state.path) != one.state)
    assert found.now == {one.state.path: states.get(one.state.path) for one in found.known}


@pytest.mark.parametrize(
    ("pattern", "path", "may_hold"),
    [
        ("full/*.png", "full/a.png", False),
        ("empty/*.png", "empty/a.png", True),
        ("empty", "empty/a.png", True),
        ("empty/a.png", "empty/a.png", True),
        ("away/*.png", "away/a.png", True),
        ("away", "away/a.png", True),
        ("away/a.png", "away/a.png", True),
        ("full/*/*.png", "full/monday/a.png", False),
        ("full/*/*.png", "full/empty/a.png", True),
        ("full/**/*.png", "full/monday/early/a.png", False),
        ("away/**/*.png", "away/monday/a.png", True),
        ("empty/*/*.png", "empty/monday/a.png", True),
        ("full/*.png", "away/a.png", False),
        ("full/*.png", "s3://empty/a.png", False),
        ("[a]way/*.png", "away/a.png", False),
        ("full/*.png", "seen/a.png", False),
    ],
)
def test_a_folder_that_is_missing_or_empty_may_not_be_mounted(
    tmp_path: Path, pattern: str, path: str, *, may_hold: bool
) -> None:
    for folder in ("full/empty", "empty", "seen"):
        (tmp_path / folder).mkdir(parents=True)
    assert UnmountedFolders(str(tmp_path), [pattern], ["seen/b.png"]).may_hold(path) == may_hold
