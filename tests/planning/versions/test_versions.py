import json
from pathlib import Path

import pytest

from ortdeploy.files.content_store import ContentStore, StoreFullError
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.versions.version import dump_version, read_version, recall


def old_record(store: ContentStore, folder: Path) -> dict[str, object]:
    """What earlier versions have written of a manifest that ran well: the files by place."""
    digests = {}
    for name in ("m.yaml", "m.onnx", "m.data", "a.pb"):
        (folder / name).write_text(name)
        digests[name] = store.put(folder / name)
    return {
        "format_version": 1,
        "kept": "2026-01-01T00:00:00+00:00",
        "manifest": "/line/m.yaml",
        "asked": {"profile": None, "sets": [], "overlays": []},
        "texts": {"/line/m.yaml": digests["m.yaml"]},
        "places": {
            "models/m.onnx": {"single": True, "files": {"m.onnx": digests["m.onnx"], "m.data": digests["m.data"]}},
            "checks": {"single": False, "files": {"set/a.pb": digests["a.pb"]}},
        },
    }


def test_a_record_of_an_earlier_version_loses_nothing(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    version = read_version(old_record(store, tmp_path))
    assert read_version(json.loads(json.dumps(dump_version(version)))) == version
    options = recall(version, tmp_path, "", LoadOptions())
    assert options.texts == {"/line/m.yaml": b"m.yaml"}
    model = Path(options.places["models/m.onnx"])
    assert (model.read_text(), model.with_name("m.data").read_text()) == ("m.onnx", "m.data")
    assert (Path(options.places["checks"]) / "set/a.pb").read_text() == "a.pb"


def test_a_version_of_which_a_file_is_gone_is_not_recalled(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    version = read_version(old_record(store, tmp_path))
    store.prune(version.digests - {version.files["0/m.data"]})
    with pytest.raises(StoreFullError):
        recall(version, tmp_path, "", LoadOptions())
