"""What a job has committed is compared with the ledger, the files and the input, and counted on the disk."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fakes import FakeRuntime, double
from support.jobs import changed_job, execute, plan_for, save

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.parts import committed
from ortdeploy.parts.committed import TakenBytes, check_files, check_inputs, check_record, states_of, taken_bytes
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.plan.steps import RunJob


@pytest.fixture(name="job")
def with_output(tmp_path: Path) -> RunJob:
    """Three parts of eight rows."""
    save(tmp_path, range(24))
    execute(tmp_path, plan_for(tmp_path, 24), FakeRuntime(double))
    (job,) = (one for one in plan_for(tmp_path, 24).steps if isinstance(one, RunJob))
    return job


def test_a_part_that_is_not_what_was_written_is_told_with_its_output(tmp_path: Path, job: RunJob) -> None:
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        output = OpenOutput(name=ledger.key(tmp_path / "out"), folder=tmp_path / "out", ledger=ledger, upload=None)
        check_files(output, job.output)
        record = output.record()
        assert record is not None
        check_record(output, job.output, record)
        with pytest.raises(OrtdeployError):
            check_record(output, job.output, replace(record, parts=record.parts[1:]))
        (tmp_path / "out" / str(record.parts[1].file)).write_text("other")
        with pytest.raises(OrtdeployError, match=rf"^{job.output.shown}/{record.parts[1].file}.* now\. Restore it"):
            check_files(output, job.output, " now")
        check_files(replace(output, name="unknown"), job.output)


def test_parts_that_were_carried_away_take_no_room(tmp_path: Path, job: RunJob) -> None:
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    sizes = [(tmp_path / "out" / str(part.file)).stat().st_size for part in record.parts]
    assert taken_bytes(tmp_path / "out", record.parts) == sum(sizes)
    (tmp_path / "out" / str(record.parts[1].file)).unlink()
    assert taken_bytes(tmp_path / "out", record.parts) == sizes[0] + sizes[2]
    assert job.output.format == "jsonl"


def test_parts_are_looked_at_again_only_if_there_could_be_too_much(
    tmp_path: Path, job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [100, 40]
    monkeypatch.setattr(committed, "taken_bytes", lambda *_: found.pop(0))
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        taken = TakenBytes(OpenOutput(name=job.job, folder=tmp_path / "out", ledger=ledger, upload=None))
        taken.add(7)  # nobody has looked yet, and who looks finds it
        assert taken.with_file(10, 120) == 110
        taken.add(10)
        assert (taken.with_file(10, 120), found) == (120, [40])
        assert (taken.with_file(11, 120), found) == (51, [])
        assert taken.with_file(80, 120) == 120


def test_the_states_of_some_files_are_found_among_many() -> None:
    many = FileStates.pack(FileState(path=f"data/{one}.csv", size=one, mtime_ns=one) for one in range(5000))
    wanted = {"data/3.csv", "data/4999.csv", "data/none.csv"}
    assert [(one.path, one.size) for one in states_of(many, wanted)] == [("data/3.csv", 3), ("data/4999.csv", 4999)]
    assert states_of(many, set()) == []


def test_an_input_that_changed_while_it_was_read_is_told(tmp_path: Path, job: RunJob) -> None:
    (path,) = (tmp_path / one.path for one in job.input.files)
    state = FileState(path=path.name, size=path.stat().st_size, mtime_ns=path.stat().st_mtime_ns)
    step = changed_job(job, input={"files": (state,), "patterns": (path.name,)})
    check_inputs(step, str(tmp_path))
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(OrtdeployError, match=f"^{path.name} is not what it was when the plan was made"):
        check_inputs(step, str(tmp_path))
    check_inputs(step, str(tmp_path), only=())
    path.unlink()
    with pytest.raises(OrtdeployError, match=r"No such file.*\. Apply again: that runs"):
        check_inputs(step, str(tmp_path))
