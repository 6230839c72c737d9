"""`ortdeploy fleet`: what devices have said of themselves."""

import json
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import REPOSITORY, Cli
from msgspec.structs import replace
from support.fleet import CURRENT, collected

from ortdeploy.fleet.document import Device, Refused
from ortdeploy.schemas import load_schema
from ortdeploy.state.looks import moment_of


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Documents of a device that is well and of one that refuses its manifest."""
    folder, now = tmp_path / "inbox", time.time()
    folder.mkdir()
    looked: dict[str, Any] = {"last_look": moment_of(now), "next_look": moment_of(now + 3600), "changed": now}
    collected(folder, "a", **looked)
    refusal = Refused(summary="Unknown key", since=moment_of(now), rule="unknown-key", path="m.yaml", line=3)
    collected(folder, "b", state="refused", refusal=refusal, **looked)
    return folder


def test_a_fleet_is_shown_with_what_is_wrong(inbox: Path, cli: Cli) -> None:
    done = cli("fleet", inbox)
    assert done.code == 1
    assert re.search(r"^b +demo +refused +aaaaaaaaaaaa ", done.out, re.MULTILINE)
    assert "b, demo: refused since" in done.words
    assert done.out.endswith("2 in all: 1 refused, 1 current\n")
    quiet = cli("fleet", inbox, "-q")
    assert not re.search(r"^a ", quiet.out, re.MULTILINE)
    (inbox / "b.json").unlink()
    assert cli("fleet", inbox).code == 0
    assert cli("fleet", inbox, "-q").out == ""


def test_in_json_each_row_has_its_document(inbox: Path, cli: Cli) -> None:
    found = cli("fleet", inbox, "--format", "json").json
    assert found["format_version"] == 1
    assert [(row["device"], row["wrong"]) for row in found["rows"]] == [("b", ["refused"]), ("a", [])]
    assert found["rows"][1]["document"]["jobs"][0]["committed"] == 20
    assert found["counts"] == {"refused": 1, "current": 1}


def test_the_page_has_every_device_and_fetches_nothing(inbox: Path, tmp_path: Path, cli: Cli) -> None:
    collected(inbox, "c", device=Device(name="<script>alert(1)</script>", labels={"site": "12"}))
    assert cli("fleet", inbox, "--report", tmp_path / "fleet.html").code == 1
    page = (tmp_path / "fleet.html").read_text()
    assert "default-src 'none'" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "site=12" in page
    assert "<b>1</b><span>refused</span>" in page
    assert "Unknown key [unknown-key], m.yaml:3" in page
    assert cli("fleet", inbox, "--report", inbox / "a.json").code == 64


def test_names_of_strangers_move_no_cursor(inbox: Path, cli: Cli) -> None:
    collected(inbox, "c", device=Device(name="\x1b[2J\u202ec"), deployment="x\ny")
    (inbox / "\x1b[31m.json").write_text("{}")
    out = cli("fleet", inbox).out
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", out)
    assert "x\ny" not in out


def test_long_words_of_strangers_are_cut(inbox: Path, cli: Cli) -> None:
    long = "long " * 1000
    refusal = Refused(summary=long, since=CURRENT.last_look, rule=long, path=long)
    collected(inbox, "c", device=Device(name=long), deployment=long, state="refused", refusal=refusal)
    lines = [line for line in cli("fleet", inbox).out.splitlines() if "long " in line]
    assert len(lines) >= 2
    assert all("…" in line and len(line) < 350 for line in lines)


def test_expected_devices_are_named_by_device_files(inbox: Path, tmp_path: Path, cli: Cli) -> None:
    devices = tmp_path / "devices"
    devices.mkdir()
    for name in ("a", "d"):
        (devices / f"{name}-file.yaml").write_text(f"device_version: 1\nname: {name}\nruntime: {{}}\n")
    (devices / "e.yaml").write_text("device_version: 1\n")
    (devices / "README.md").write_text("not one\n")
    for expected in ([devices], sorted(devices.glob("*.yaml")), [f"{devices}/*.yaml"]):
        rows = cli("fleet", inbox, "--format", "json", "--expect", *expected).json["rows"]
        assert [row["device"] for row in rows if row["wrong"] == ["missing"]] == ["d", "e"]
    (devices / "f.yaml").write_text("version: 1\n")
    done = cli("fleet", inbox, "--expect", devices)
    assert (done.code, "f.yaml is no device file" in done.words) == (1, True)


def test_wrong_usage_is_told(inbox: Path, cli: Cli) -> None:
    for flags in (["--older", "2"], ["--older", "two days"], ["--wanted", "main"], ["--wanted", "abc"]):
        assert cli("fleet", inbox, *flags).code == 64
    done = cli("fleet", inbox / "gone")
    assert done.code == 1
    assert "there is no folder" in done.words
    assert cli("fleet", inbox, "--wanted", "b" * 40, "--older", "2d", "--format", "json").json["counts"]["behind"] == 2


def test_damaged_parts_and_memory_that_grows_are_told(inbox: Path, cli: Cli) -> None:
    now = time.time()
    jobs = (replace(CURRENT.jobs[0], damaged_parts=2, memory_growth=2**20),)
    collected(inbox, "c", jobs=jobs, last_look=moment_of(now), next_look=None, changed=now)
    told = cli("fleet", inbox).words
    assert "c, demo: 2 damaged parts" in told
    assert f"c, demo: memory of job {jobs[0].name} grows by 1.0 MiB per 1,000 rows" in told


def test_what_an_apply_writes_is_a_row(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml", "--every", "1h").code == 0
    done = cli("fleet", deployment / ".ortdeploy/status")
    assert (done.code, "1 in all: 1 current" in done.words) == (0, True), done.words


def blocks(kind: str) -> list[str]:
    text = (REPOSITORY / "docs/fleet.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_work(inbox: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(REPOSITORY / "deployments/devices", inbox.parent / "deployments/devices")
    monkeypatch.chdir(inbox.parent)
    lines = [line.removeprefix("$ ortdeploy ") for line in blocks("console")[0].splitlines()]
    for line in lines:
        assert cli(*shlex.split(line)).code == 1, "one of the devices refuses its manifest"
    assert Path("fleet.html").is_file()


def test_the_document_of_the_page_is_one() -> None:
    jsonschema.validate(json.loads(blocks("json")[0]), load_schema("status"))
