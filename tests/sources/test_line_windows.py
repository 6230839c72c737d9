"""Windows of the lines of tables: against a model in plain Python, in all formats, from any row on, counted and run."""

import csv
import json
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import REPOSITORY, Cli, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from pyarrow import feather, parquet
from support.effort import effort
from support.models import save_model, scale_model
from support.pages import snippets

from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Line:
    def __init__(self, number: int, device: str, second: float, value: float) -> None:
        self.number, self.device, self.second, self.value = number, device, second, value

    @property
    def time(self) -> str:
        return (BEGIN + timedelta(seconds=self.second)).isoformat()


def stretches(lines: Sequence[Line], gap: float | None) -> list[list[Line]]:
    """The lines of each device, cut where nothing came for long."""
    found = []
    for device in dict.fromkeys(line.device for line in lines):
        own = [line for line in lines if line.device == device]
        cuts = [at for at in range(1, len(own)) if gap is not None and own[at].second - own[at - 1].second > gap]
        found += [own[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(own)], strict=True)]
    return found


def model(
    lines: Sequence[Line],
    *,
    rows: int | None = None,
    duration: float | None = None,
    hop: float | None = None,
    gap: float | None = None,
) -> list[list[int]]:
    """The numbers of the lines of each window, in the order of the lines that make windows whole."""
    found: list[tuple[int, int, list[int]]] = []
    for own in stretches(lines, gap):
        if rows is not None:
            step = int(hop or rows)
            starts = range(0, len(own) - rows + 1, step)
            found += [(own[at + rows - 1].number, at, [one.number for one in own[at : at + rows]]) for at in starts]
            continue
        assert duration is not None
        step_of_time = hop or duration
        at = 0
        while own[0].second + at * step_of_time + duration <= own[-1].second:
            begin = own[0].second + at * step_of_time
            within = [one.number for one in own if begin <= one.second < begin + duration]
            behind = next(one.number for one in own if one.second >= begin + duration)
            found += [(behind, at, within)] if within else []
            at += 1
    return [within for _, _, within in sorted(found)]


def write(path: Path, lines: Sequence[Line]) -> Path:
    """Write lines as a table of the format of a suffix."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["device", "time", "x"], *([one.device, one.time, one.value] for one in lines)])
    elif path.suffix == ".jsonl":
        rows = [{"device": one.device, "time": one.second, "x": one.value} for one in lines]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        times = [BEGIN + timedelta(seconds=one.second) for one in lines]
        table = pa.table(
            {
                "device": pa.array([one.device for one in lines], pa.string()),
                "time": pa.array(times, pa.timestamp("us", "UTC")),
                "x": pa.array([one.value for one in lines], pa.float32()),
            }
        )
        (parquet.write_table if path.suffix == ".parquet" else feather.write_feather)(table, path)
    return path


FORMS = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}


class Read:
    """The windows that are read of a file: the numbers that stand in them, their ends, and what failed."""

    def __init__(self, path: Path, window: dict[str, Any], start: int = 0, only: Any = None) -> None:
        self.windows: list[list[int]] = []
        self.ends: list[tuple[int, int]] = []
        self.times: list[tuple[Any, Any]] = []
        self.devices: list[str] = []
        self.rows: list[int] = []
        self.failed: list[Any] = []
        keys = ("first_line", "last_line", *(["device"] if "by" in window else []))
        keys += ("first_time", "last_time") if "order" in window else ()
        wanted = Wanted(dtypes={"x": "float32"}, keys=keys, settings={"window": window}, only=only)
        with open_input(FORMS[path.suffix], [str(path)], str(path.parent), wanted) as source:
            for block in source.blocks(start, iter(lambda: 3, 0)):
                self.rows += block.rows
                self.windows += [[int(one) for one in window] for window in block.columns["x"]]
                self.ends += zip(map(int, block.key("first_line")), map(int, block.key("last_line")), strict=True)
                if "order" in window:
                    self.times += zip(map(str, block.key("first_time")), map(str, block.key("last_time")), strict=True)
                if "by" in window:
                    self.devices += list(block.key("device"))
                self.failed += block.failed


@st.composite
def tables(draw: st.DrawFn) -> list[Line]:
    devices = draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]))
    steps = draw(st.lists(st.tuples(st.sampled_from(devices), st.sampled_from([0, 1, 2, 5, 30])), max_size=40))
    clock = dict.fromkeys(devices, 0.0)
    found = []
    for number, (device, step) in enumerate(steps):
        clock[device] += step
        found.append(Line(number, device, clock[device], float(number)))
    return found


@settings(max_examples=effort(60, 1500), deadline=None)
@given(lines=tables(), data=st.data())
def test_windows_are_those_of_a_plain_model_in_every_format(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Line], data: st.DataObject
) -> None:
    if not lines:
        return
    suffix = data.draw(st.sampled_from(sorted(FORMS)))
    size: dict[str, Any] = data.draw(
        st.one_of(
            st.builds(lambda rows, hop: {"rows": rows, "hop": hop}, st.integers(1, 6), st.integers(1, 8)),
            st.builds(lambda time, hop: {"duration": time, "hop": hop}, st.integers(1, 20), st.integers(1, 25)),
        )
    )
    gap = data.draw(st.sampled_from([None, 1, 4, 29]))
    path = write(tmp_path_factory.getbasetemp() / f"table{suffix}", lines)
    window = {**size, "by": ["device"], "order": "time", **({} if gap is None else {"gap": gap})}
    expected = model(lines, gap=gap, **size)
    found = Read(path, window)
    assert found.windows == expected
    assert found.ends == [(one[0], one[-1]) for one in expected]
    assert found.devices == [lines[one[0]].device for one in expected]
    assert not found.failed
    start = data.draw(st.integers(0, max(len(expected) - 1, 0)))
    assert Read(path, window, start=start).windows == expected[start:]
    some = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), max_size=4))) if expected else []
    assert Read(path, window, start=some[0], only=some).rows == some if some else True


def test_windows_of_all_lines_need_no_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [Line(at, "a", 0, at) for at in range(10)])
    assert Read(path, {"rows": 4, "hop": 3}).windows == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert Read(path, {"rows": 4}).windows == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert Read(path, {"rows": 2, "hop": 5}).windows == [[0, 1], [5, 6]]


def test_ends_are_those_of_the_file(tmp_path: Path) -> None:
    lines = [Line(at, "a", at * 0.5, at) for at in range(4)]
    window = {"rows": 2, "order": "time"}
    assert Read(write(tmp_path / "a.csv", lines), window).times == [
        ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.500000+00:00"),
        ("2026-01-01T00:00:01+00:00", "2026-01-01T00:00:01.500000+00:00"),
    ]
    assert Read(write(tmp_path / "a.jsonl", lines), window).times == [("0.0", "0.5"), ("1.0", "1.5")]


def test_a_line_that_cannot_be_read_is_a_row_of_its_own_and_one_that_cannot_be_fed_fails_its_windows(
    tmp_path: Path,
) -> None:
    text = "device,time,x\na,0,0\na,1\na,2,2\na,3,no\na,4,4\na,3,5\na,x,6\na,5,7\na,6,8\n"
    (tmp_path / "a.csv").write_text(text)
    found = Read(tmp_path / "a.csv", {"rows": 2, "hop": 1, "order": "time"})
    assert found.windows == [[0, 2], [4, 7], [7, 8]]
    assert [(one.row, one.code, one.source) for one in found.failed] == [
        (0, "cell-count", "a.csv line 1"),
        (2, "not-a-number", "a.csv lines 2 to 3"),
        (3, "not-a-number", "a.csv lines 3 to 4"),
        (4, "out-of-order", "a.csv line 5"),
        (5, "not-a-time", "a.csv line 6"),
    ]
    assert found.failed[1].message.startswith("line 3: ")


def test_a_number_beyond_all_times_is_a_row_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("device,time,x\na,1,0\na,1e1000000,1\na,2,2\n")
    found = Read(path, {"rows": 2, "by": ["device"], "order": "time"})
    assert found.windows == [[0, 2]]
    assert [row.code for row in found.failed] == ["not-a-time"]


def test_milliseconds_are_not_taken_for_seconds_where_these_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("device,time,x\na,1793491200000,0\na,1793491201000,1\n")
    assert Read(path, {"rows": 2, "order": "time"}).windows == [[0, 1]]
    for more in ({"rows": 2, "gap": "5min"}, {"duration": "1s"}):
        assert {row.code for row in Read(path, {"order": "time", **more}).failed} == {"not-a-time"}


def test_no_value_is_another_device_than_a_text_that_looks_like_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"device": device, "x": at} for at, device in enumerate([None, "None"] * 4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Read(path, {"rows": 2, "by": ["device"]}).windows == [[0, 2], [1, 3], [4, 6], [5, 7]]


DAY = 86_400


@settings(max_examples=effort(60, 1500), deadline=None)
@given(lines=tables(), data=st.data())
def test_one_line_far_ahead_fails_alone(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Line], data: st.DataObject
) -> None:
    """Each device may have lines whose clock was wrong; its last line may not, for nothing tells of that."""
    wrong: list[Line] = []
    for device in ("a", "b", "c"):
        own = [line for line in lines if line.device == device]
        for at in range(1, len(own) - 1):
            if own[at - 1] not in wrong and data.draw(st.booleans()):
                wrong.append(own[at])
    right = [line for line in lines if line not in wrong]
    for line in wrong:
        line.second += 30 + data.draw(st.sampled_from([DAY, 4000 * DAY])) + max(one.second for one in right)
    rows = data.draw(st.integers(1, 4))
    said = {"by": ["device"], "order": "time", "rows": rows}
    path = write(tmp_path_factory.mktemp("t") / "a.jsonl", lines)
    read = Read(path, said)
    assert read.windows == model(right, rows=rows)
    assert sorted(row.source.split()[-1] for row in read.failed) == sorted(str(line.number) for line in wrong)
    assert all("is ahead of that of the line behind it" in row.message for row in read.failed)
    for start in range(len(read.rows) + len(wrong)):
        again = Read(path, said, start)
        assert again.rows == [row for row in read.rows if row >= start]


def test_a_clock_that_is_set_goes_on(tmp_path: Path) -> None:
    """A board without a clock begins in 1970, and is set when the network is there. Its last line may be far ahead."""
    seconds = [0, 1, 2, 20_000 * DAY, 20_000 * DAY + 1, 20_000 * DAY + 2, 30_000 * DAY]
    lines = [Line(number, "a", second, number) for number, second in enumerate(seconds)]
    read = Read(write(tmp_path / "a.jsonl", lines), {"order": "time", "rows": 1})
    assert read.windows == [[number] for number in range(7)]
    assert not read.failed
    read = Read(tmp_path / "a.jsonl", {"order": "time", "rows": 2, "hop": 1, "gap": "1h"})
    assert read.windows == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_values_that_are_written_alike_are_one_device(tmp_path: Path) -> None:
    devices = ["1", '"1"', "1.0", '"1.0"', "null", '"None"', "true", '"True"']
    lines = "".join(f'{{"device": {one}, "x": {place}}}\n' for place, one in enumerate(devices))
    (tmp_path / "a.jsonl").write_text(lines * 2)
    read = Read(tmp_path / "a.jsonl", {"by": ["device"], "rows": 2})
    assert [0, 1] in read.windows
    assert [3, 11] not in read.windows  # lines of other devices stand between


def test_memory_is_flat_in_the_number_of_lines(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path / f"{count}.csv", [Line(at, "ab"[at % 2], at, at % 7) for at in range(count)])
        tracemalloc.start()
        wanted = Wanted(dtypes={"x": "float32"}, settings={"window": {"rows": 10, "hop": 5, "by": ["device"]}})
        with open_input("csv", [str(path)], str(tmp_path), wanted) as source:
            rows = sum(block.count for block in source.blocks(0, iter(lambda: 8, 0)))
        assert rows == 2 * ((count // 2 - 10) // 5 + 1)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(600)  # what is imported on the way does not count
    assert peak(24000) < peak(6000) * 1.3


def test_open_windows_larger_than_memory_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", [Line(at, str(at), 0, at) for at in range(3000)])
    monkeypatch.setattr("ortdeploy.files.memory_budget._LEAST", 100_000)
    monkeypatch.setattr("ortdeploy.files.memory_budget.available_memory", lambda: 1)
    with pytest.raises(Exception, match=r"lines of the open windows of .* groups takes"):
        Read(path, {"rows": 2, "by": ["device"]})


MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input:
      path: "*.{suffix}"
      columns: {{x: x}}
      key: [path, device, first_line, last_line, first_time, last_time]
      window: {{rows: 4, hop: 2, by: device, order: time}}
    batch: {{size: 3}}
    output: {{path: out, format: jsonl, rows_per_part: 6}}
    errors: {{max_failed: 50%}}
"""


def deploy(folder: Path, suffix: str) -> list[tuple[str, list[int]]]:
    """Write two tables and a manifest; return the windows that are rows, with their files."""
    scale_model(folder / "m.onnx", width=4)
    expected = []
    for name, count in (("a", 30), ("b", 17)):
        lines = [Line(at, "cd"[at % 2], at, at) for at in range(count)]
        write(folder / f"{name}.{suffix}", lines)
        expected += [(f"{name}.{suffix}", one) for one in model(lines, rows=4, hop=2)]
    (folder / "m.yaml").write_text(MANIFEST.format(suffix=suffix))
    return expected


def check(folder: Path, expected: list[tuple[str, list[int]]]) -> None:
    rows = read_rows(folder / "out")
    assert [(row["path"], [value / 2 for value in row["y"]]) for row in rows] == expected
    assert [(row["first_line"], row["last_line"]) for row in rows] == [(one[0], one[-1]) for _, one in expected]
    assert [row["device"] for row in rows] == ["cd"[one[0] % 2] for _, one in expected]


@pytest.mark.quick("csv", "parquet")
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_a_job_runs_windows(tmp_path: Path, cli: Cli, suffix: str) -> None:
    expected = deploy(tmp_path, suffix)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    check(tmp_path, expected)
    assert "nothing to do" in cli("apply", tmp_path / "m.yaml").words


def test_windows_become_lines_of_csv(tmp_path: Path, cli: Cli) -> None:
    expected = deploy(tmp_path, "csv")
    text = MANIFEST.format(suffix="csv").replace("format: jsonl", "format: csv").replace('"*.csv"', '"?.csv"')
    (tmp_path / "m.yaml").write_text(text)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    parts = [part.read_text().splitlines() for part in sorted(tmp_path.glob("out/*.csv"))]
    rows = [row for part in parts for row in csv.DictReader(part)]
    found = [(row["path"], int(row["first_line"]), int(row["last_line"])) for row in rows]
    assert found == [(path, one[0], one[-1]) for path, one in expected]


def test_several_columns_of_a_time_are_stacked_and_turned(tmp_path: Path, cli: Cli) -> None:
    """A window of a duration has any number of lines; the model sums over them, as [rows, lines, columns]."""
    lines = ["volts,amperes,time\n", *(f"{at},{at * 10},{time}\n" for at, time in enumerate([0, 4, 8, 11, 12, 31]))]
    (tmp_path / "a.csv").write_text("".join(lines))
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        {"x": (TensorProto.FLOAT, ["batch", "lines", 2])},
        {"y": (TensorProto.FLOAT, ["batch", 2])},
        {"axes": np.array([1])},
    )
    manifest = MANIFEST.format(suffix="csv")
    for old, new in (
        ("{x: x}", "{x: [volts, amperes]}"),
        ("[path, device, ", "[path, "),
        ("{rows: 4, hop: 2, by: device, order: time}", "{duration: 10s, order: time}"),
        (
            "    batch:",
            "    prepare: {x: [{op: Transpose, in: {data: $x}, attributes: {perm: [0, 2, 1]}}]}\n    batch:",
        ),
    ):
        assert old in manifest
        manifest = manifest.replace(old, new)
    (tmp_path / "m.yaml").write_text(manifest)
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    assert [row["y"] for row in read_rows(tmp_path / "out")] == [[3, 30], [7, 70]]


def test_times_of_json_have_one_type_in_all_parts(tmp_path: Path, cli: Cli) -> None:
    deploy(tmp_path, "jsonl")
    lines = [Line(at, "cd"[at % 2], at if at < 16 else at + 0.5, at) for at in range(40)]
    (tmp_path / "b.jsonl").unlink()
    write(tmp_path / "a.jsonl", lines)
    path = tmp_path / "m.yaml"
    path.write_text(path.read_text().replace("format: jsonl", "format: parquet"))
    assert cli("apply", path).code == 0
    kinds = {str(parquet.read_schema(part).field("first_time").type) for part in (tmp_path / "out").glob("*.parquet")}
    assert len([*(tmp_path / "out").glob("*.parquet")]) > 1
    assert kinds == {"double"}


@pytest.mark.quick("csv")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_shards_share_windows(tmp_path: Path, cli: Cli, suffix: str) -> None:
    expected = deploy(tmp_path, suffix)
    assert cli("plan", tmp_path / "m.yaml", "--out", tmp_path / "plan.json").code == 0
    for shard in ("1/2", "0/2"):
        done = cli("apply", tmp_path / "plan.json", "--shard", shard)
        assert done.code == 0, done.words
    assert cli("finish", tmp_path / "plan.json").code == 0
    check(tmp_path, expected)


def test_a_window_with_a_bad_line_runs_again_once_that_is_mended(tmp_path: Path, cli: Cli) -> None:
    expected = deploy(tmp_path, "csv")
    good = (tmp_path / "a.csv").read_text()
    (tmp_path / "a.csv").write_text(good.replace(",8\n", ",no\n"))
    assert cli("apply", tmp_path / "m.yaml").code == 0
    assert len(read_rows(tmp_path / "out")) == len(expected) - 2
    (tmp_path / "a.csv").write_text(good)
    assert cli("retry", tmp_path / "m.yaml", "--job", "run").code == 0
    check(tmp_path, expected)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("by: device", "by: devise", 'window: names the column "devise", and the data has device, time, x.'),
        ("key: [path, device,", "key: [x, device,", '"x" has a value for each line of a window'),
        ("rows: 4", "rows: 3", "gets float32 [rows, 3]. Dimension 0 of a row is 3, the model wants 4."),
    ],
)
def test_what_does_not_fit_the_data_is_refused(tmp_path: Path, cli: Cli, old: str, new: str, words: str) -> None:
    deploy(tmp_path, "csv")
    path = tmp_path / "m.yaml"
    path.write_text(path.read_text().replace(old, new))
    done = cli("plan", path)
    assert done.code == 1
    assert words in done.words


def test_each_device_has_a_limit_of_its_own_as_the_page_says(tmp_path: Path, cli: Cli) -> None:
    (block,) = [
        body
        for kind, _, body in snippets((REPOSITORY / "docs/windows.md").read_text(encoding="utf-8"))
        if kind == "yaml" and "look_up" in body
    ]
    save_model(
        tmp_path / "m.onnx",
        [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0)],
        {"x": (TensorProto.FLOAT, ["batch", 4])},
        {"y": (TensorProto.FLOAT, ["batch"])},
    )
    lines = [Line(at, ("pump9", "pump1")[at % 2], at, at / 20) for at in range(20)]
    write(tmp_path / "a.csv", lines)
    job = MANIFEST.format(suffix="csv").replace("    model: m\n", "    pipeline: alarm\n").replace("{x: x}", "{}")
    job = job.replace("hop: 2, ", "").replace("*.csv", "a.csv")
    (tmp_path / "limits.csv").write_text("device,limit\npump1,0.3\npump2,0.5\n")
    head, jobs = job.split("jobs:")
    (tmp_path / "m.yaml").write_text(f"{head}{block}jobs:{jobs}")
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    rows = read_rows(tmp_path / "out")
    assert [(row["device"], row["alarm"]) for row in rows] == [
        ("pump9", False), ("pump1", True), ("pump9", True), ("pump1", True),
    ]  # fmt: skip
