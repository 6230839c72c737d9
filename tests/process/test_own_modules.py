"""The finder of our own modules finds each of them as Python's does, and nothing else."""

import pkgutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import ortdeploy
from ortdeploy.process.own_modules import OwnModules, find_own_modules

FOLDER = Path(ortdeploy.__file__).parent


def test_each_module_is_found_as_python_finds_it() -> None:
    finder, names = OwnModules(str(FOLDER)), [one.name for one in pkgutil.walk_packages([str(FOLDER)], "ortdeploy.")]
    assert len(names) > 500
    for name in names:
        place = FOLDER.joinpath(*name.split(".")[1:-1])
        own, usual = finder.find_spec(name), PathFinder.find_spec(name, [str(place)])
        assert own is not None
        assert usual is not None
        for what in ("name", "origin", "cached", "has_location", "submodule_search_locations", "parent"):
            assert getattr(own, what) == getattr(usual, what), (name, what)
        assert type(own.loader) is type(usual.loader)


@pytest.mark.parametrize(
    "name", ["ortdeploy", "ortdeploy.unknown", "ortdeploy.running.unknown", "json", "numpy.linalg"]
)
def test_all_else_is_left_to_python(name: str) -> None:
    assert OwnModules(str(FOLDER)).find_spec(name) is None


def test_the_finder_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    find_own_modules()
    first = sys.meta_path[0]
    assert isinstance(first, OwnModules)
    found = first.find_spec("ortdeploy.cli.main")
    assert found is not None
    assert found.origin == str(FOLDER / "cli/main.py")
