"""The distributions: their version, and what is in them."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.process

GIT = shutil.which("git") or "git"


def output_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def version_of(folder: Path) -> str:
    return output_of(sys.executable, "-W", "ignore", "-m", "hatchling", "version", cwd=folder).strip()


def git(folder: Path, *arguments: str | Path) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return output_of(GIT, *who, *arguments, cwd=folder)


@pytest.fixture(scope="module")
def builder() -> None:
    """What pip builds with, in an environment of its own; here it is with the extra `dev`."""
    pytest.importorskip("hatch_vcs", reason="the version comes from git by it")


@pytest.fixture
def checkout(builder: None, tmp_path: Path) -> Path:  # noqa: ARG001
    """A repository with one commit, which has what a version is made from."""
    folder = tmp_path / "checkout"
    (folder / "ortdeploy").mkdir(parents=True)
    (folder / "ortdeploy/__init__.py").touch()
    for name in ("pyproject.toml", "hatch_build.py", ".git_archival.txt", ".gitattributes", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_tag_is_the_version(checkout: Path) -> None:
    git(checkout, "tag", "v3.2.1")
    assert version_of(checkout) == "3.2.1"


def test_a_checkout_without_tags_is_older_than_every_release(checkout: Path) -> None:
    assert version_of(checkout).startswith("0.0.1.dev1+g")


def test_an_archive_of_git_knows_its_tag(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v3.2.1")
    git(checkout, "archive", "--format=tar", "--prefix=archive/", "-o", tmp_path / "a.tar", "HEAD")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    assert version_of(tmp_path / "archive") == "3.2.1"


def test_files_alone_have_a_version_too(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    assert version_of(checkout) == "0.0.0"


def test_models_and_results_are_kept_in_folders_of_examples_and_tests_alone() -> None:
    """What somebody tried out in a checkout, and added with everything else, stays in its history for good."""
    tracked = map(Path, git(REPOSITORY, "ls-files").splitlines())
    of_runs = {".onnx", ".npy", ".npz", ".parquet", ".arrow"}
    elsewhere = [path for path in tracked if path.parts[0] not in {"deployments", "tests"}]
    assert [str(path) for path in elsewhere if path.suffix in of_runs or path.name == "_output.json"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("builder")
def test_the_wheel_of_the_source_distribution_is_whole(tmp_path: Path) -> None:
    hatchling = (sys.executable, "-W", "ignore", "-m", "hatchling", "build")
    output_of(*hatchling, "-t", "sdist", "-d", str(tmp_path), cwd=REPOSITORY)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    output_of(*hatchling, "-t", "wheel", "-d", str(tmp_path), cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[1] == source.name.split("-")[1]
    unpacked = wheel.with_suffix("")
    shutil.unpack_archive(wheel, unpacked, format="zip")
    inside = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    tracked = {Path(name) for name in git(REPOSITORY, "ls-files", "ortdeploy", "schemas").splitlines()}
    assert {
        name.as_posix() if name.parts[0] == "ortdeploy" else f"ortdeploy/{name.as_posix()}" for name in tracked
    } <= inside
    assert "ortdeploy/py.typed" in inside
    script = "from ortdeploy.cli.main import main; import ortdeploy.schemas as s; print(s.__file__); raise SystemExit(main(['validate', 'm.yaml']))"
    (tmp_path / "m.yaml").write_text("version: 1\nmodels: {m: {path: m.onnx}}\n")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(unpacked) in done.stdout


def test_the_readme_of_the_package_has_no_relative_link(builder: None) -> None:  # noqa: ARG001
    readme = output_of(sys.executable, "-W", "ignore", "-m", "hatchling", "metadata", "readme", cwd=REPOSITORY)
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", readme, flags=re.DOTALL))
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert any(link.startswith("https://raw.githubusercontent.com/") for link in links)


@pytest.mark.slow
def test_a_tagged_checkout_is_built_into_packages_that_the_index_takes(builder: None, tmp_path: Path) -> None:  # noqa: ARG001
    for module in ("build", "twine"):
        pytest.importorskip(module)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{REPOSITORY}", "checkout")
    git(tmp_path / "checkout", "tag", "v3.2.1")
    output_of(sys.executable, "-m", "build", "--no-isolation", cwd=tmp_path / "checkout")
    built = sorted((tmp_path / "checkout/dist").iterdir())
    assert [path.name for path in built] == ["ortdeploy-3.2.1-py3-none-any.whl", "ortdeploy-3.2.1.tar.gz"]
    output_of(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=tmp_path)
