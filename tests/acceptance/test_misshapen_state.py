"""Files of the state folder and of outputs that are JSON of another shape, also under a right seal: never a traceback."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import MANIFEST, Cli, deploy
from hypothesis import given
from hypothesis import strategies as st
from support.memo_files import memo_value, rewrite

from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.state import memo

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 8").replace("data.npy", "'data*.npy'")
PLAN = "plan.json"
CODES = {0, 1, 2, 64}
Commands = tuple[tuple[str, ...], ...]
Place = tuple[str | int, ...]


def done(cli: Cli) -> Commands:
    """A job that is done, and remembered to be, with a file that is new."""
    for command in ("apply", "apply", "status"):
        assert cli(command, "m.yaml").code == 0
    shutil.copy("data.npy", "data2.npy")
    return ("status", "m.yaml"), ("plan", "m.yaml"), ("apply", "m.yaml"), ("verify", "m.yaml")


def begun(cli: Cli) -> Commands:
    """A plan of which one of two shards has run."""
    assert cli("plan", "m.yaml", "--out", PLAN).code == 0
    assert cli("apply", PLAN, "--shard", "0/2").code == 0
    return ("status", "m.yaml"), ("plan", "m.yaml"), ("apply", PLAN, "--shard", "1/2"), ("finish", PLAN)


def closed(cli: Cli) -> Commands:
    """A finished plan whose ledger is lost."""
    assert cli("plan", "m.yaml", "--out", PLAN).code == 0
    assert cli("apply", PLAN, "--shard", "0/1").code == 0
    assert cli("finish", PLAN).code == 0
    shutil.rmtree(".ortdeploy")
    return ("status", "m.yaml"), ("plan", "m.yaml"), ("finish", PLAN), ("apply", "m.yaml")


def last_good(cli: Cli) -> Commands:
    """A manifest that is refused, and whose last good version runs in its place."""
    assert cli("apply", "m.yaml", "--last-good").code == 0
    manifest = Path("m.yaml")
    manifest.write_text(manifest.read_text().replace("double.onnx", "gone.onnx"))
    assert cli("apply", "m.yaml", "--last-good").code == 1
    shutil.copy("data.npy", "data2.npy")
    return ("status", "m.yaml"), ("apply", "m.yaml", "--last-good"), ("cache", "prune", "m.yaml")


SCENES: tuple[Callable[[Cli], Commands], ...] = (done, begun, closed, last_good)
OTHER: dict[str, Callable[[Any], Any]] = {
    "null": lambda _: None,
    "a list": lambda value: [value],
    "an object": lambda value: {"in": value},
    "text": lambda _: "\0é",
    "a number": lambda _: -1,
    "a large number": lambda _: 10**30,
    "a fraction": lambda _: 1.5,
    "infinity": lambda _: float("inf"),
    "true": lambda _: True,
}


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where in a document something is, without all that is alike in long lists."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*at, key))


def misshapen(document: Any, at: Place, how: str) -> Any:
    """Return a document with something else at a place, or nothing, sealed as if that had been written."""
    if not at:
        return OTHER.get(how, OTHER["null"])(document)
    parent = document
    for key in at[:-1]:
        parent = parent[key]
    if how in OTHER:
        parent[at[-1]] = OTHER[how](parent[at[-1]])
    else:
        del parent[at[-1]]
    with suppress(KeyError, TypeError, AttributeError):
        lines = {one["part"]["number"]: json.dumps(one, sort_keys=True) + "\n" for one in document["parts"]}
        text = "".join((*lines.values(), json.dumps(document["ended"], sort_keys=True)))
        document["digest"] = hashlib.sha256(text.encode()).hexdigest()
    return document


def documents(folder: Path) -> dict[str, Any]:
    """Return what the files say that ortdeploy reads back as JSON, by their paths in a folder."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in {".json", ".refused"}):
        with suppress(ValueError):
            found[path.relative_to(folder).as_posix()] = json.loads(path.read_bytes())
    for path in sorted(path for path in folder.glob(f".ortdeploy/{memo.FOLDER}/*/*") if not path.is_dir()):
        found[path.relative_to(folder).as_posix()] = memo_value(path)
    return found


@pytest.mark.quick("closed")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_json_of_another_shape_is_told_or_forgotten(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Callable[[Cli], Commands]
) -> None:
    monkeypatch.setattr(nothing_to_do, "RACY_NS", -(10**12))  # what is remembered holds at once
    work, kept = tmp_path / "work", tmp_path / "kept"
    work.mkdir()
    deploy(work)
    (work / "m.yaml").write_text(SMALL)
    with monkeypatch.context() as patch:
        patch.chdir(work)
        commands = scene(cli)
    shutil.copytree(work, kept)
    found = documents(kept)
    assert len(found) > 2

    @given(data=st.data())
    def no_traceback(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(found)))
        at = data.draw(st.sampled_from(list(places(found[name]))))
        how = data.draw(st.sampled_from([*OTHER, "nothing"]))
        shutil.rmtree(work)
        shutil.copytree(kept, work)
        document = misshapen(json.loads(json.dumps(found[name])), at, how)
        if memo.FOLDER in Path(name).parts:
            rewrite(work / name, document)
        else:
            (work / name).write_text(json.dumps(document))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(work)
            for command in commands:
                ended = cli(*command)
                assert ended.code in CODES, ended.err
                assert "Traceback" not in ended.err

    no_traceback()
