"""Where paths may lead: from a manifest, a saved plan, and the state folder that a checkout brings along."""

import json
import os
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.jobs import changed_job
from support.models import scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.digest_cache import LARGE, DigestCache
from ortdeploy.files.digests import boot_id, file_digest, signature
from ortdeploy.files.gate import SCHEMES, Use, admit, first_outside, leaves_as_text, link_out, objection
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.live_progress import FOLDER as LIVE
from ortdeploy.ledger.live_progress import read_live
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.records import output_file
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.results.results import Status
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.state import memo
from ortdeploy.views.progress import Silent

LINKS = [
    "simplecache",
    "filecache",
    "blockcache",
    "zip",
    "tar",
    "libarchive",
    "reference",
    "dir",
    "memory",
    "s3",
    "https",
]


@given(
    links=st.lists(st.sampled_from(LINKS), min_size=0, max_size=3),
    scheme=st.sampled_from(["file", "local", "FILE", "Local"]),
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=20),
    use=st.sampled_from(Use),
)
def test_no_chain_that_ends_in_a_local_file_is_let_through(links: list[str], scheme: str, path: str, use: Use) -> None:
    url = "::".join([*(f"{one}://{path}" if one in {"zip", "tar"} else one for one in links), f"{scheme}://{path}"])
    assert objection(url, use) is not None
    with pytest.raises(OrtdeployError):
        admit(url, use)


@given(
    scheme=st.builds(
        str.__add__,
        st.sampled_from(ascii_lowercase),
        st.text(f"{ascii_lowercase}{digits}+._-", min_size=1, max_size=10),
    ),
    rest=st.text(max_size=20),
    use=st.sampled_from(Use),
)
def test_only_known_schemes_are_let_through(scheme: str, rest: str, use: Use) -> None:
    known = scheme in SCHEMES and use is not Use.LOCAL
    assert objection(f"{scheme}://{rest}", use) is not None or known


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_no_text_breaks_the_gate(text: str) -> None:
    for use in Use:
        why = objection(text, use)
        assert why is None or why.endswith(".")
    leaves_as_text(text.replace("\0", ""), "/deploy", ())


def test_a_local_path_in_the_spelling_of_a_url_is_refused_with_the_path_to_write(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "double.onnx")
    outside = tmp_path / "elsewhere"
    for spelling in (f"file://{outside}", f"simplecache::file://{outside}", f"LOCAL://{outside}"):
        (tmp_path / "m.yaml").write_text(
            f"version: 1\nmodels: {{double: {{path: double.onnx}}}}\njobs:\n  run: {{model: double, input: {{path: x.npy}}, "
            f'output: {{path: "{spelling}"}}}}\n'
        )
        for command in ("validate", "plan", "apply"):
            refused = cli(command, tmp_path / "m.yaml")
            assert refused.code == 1
            assert "refused-url" in refused.out
            assert f'"{outside}"' in " ".join(refused.out.split())
    assert not outside.exists()


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
class TestState:
    """A state folder that came with a checkout, and what lies in it."""

    @pytest.fixture
    def elsewhere(self, deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("elsewhere")

    @pytest.mark.parametrize("command", ["plan", "apply", "status", "check"])
    def test_a_state_folder_that_is_a_link_out_of_the_tree_is_refused(
        self, deployment: Path, elsewhere: Path, cli: Cli, command: str
    ) -> None:
        (deployment / ".ortdeploy").symlink_to(elsewhere)
        refused = cli(command, deployment / "m.yaml")
        assert refused.code == 1
        assert f"is a link to {elsewhere}" in " ".join((refused.out + refused.err).split())
        assert list(elsewhere.iterdir()) == []

    @pytest.mark.parametrize("flag", ["--state-dir", "--allow-root"])
    def test_and_is_taken_where_the_command_line_names_that_place(
        self, deployment: Path, elsewhere: Path, cli: Cli, flag: str
    ) -> None:
        (deployment / ".ortdeploy").symlink_to(elsewhere)
        done = cli("apply", deployment / "m.yaml", flag, elsewhere)
        assert done.code == 0, done.out
        assert (elsewhere / "state.db").exists()

    @pytest.mark.quick("state.db", "outputs", "odd/a/b")
    @pytest.mark.parametrize("name", ["state.db", "cache", "live/x.new", "locks/a.json", "memo", "outputs", "odd/a/b"])
    def test_a_link_in_it_that_leads_out_is_refused_and_one_that_stays_is_not(
        self, deployment: Path, elsewhere: Path, cli: Cli, name: str
    ) -> None:
        link = deployment / ".ortdeploy" / name
        link.parent.mkdir(parents=True)
        link.symlink_to(elsewhere / "taken")
        refused = cli("apply", deployment / "m.yaml")
        assert refused.code == 1
        assert "state-outside-tree" in refused.out
        assert str(link) in "".join(refused.out.split())
        assert list(elsewhere.iterdir()) == []
        link.unlink()
        (deployment / ".ortdeploy" / "mine").symlink_to(deployment / "data.npy")
        assert cli("apply", deployment / "m.yaml").code == 0

    def test_a_saved_plan_is_refused_too(self, deployment: Path, elsewhere: Path, cli: Cli) -> None:
        assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
        for path in sorted((deployment / ".ortdeploy").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if (deployment / ".ortdeploy").exists():
            (deployment / ".ortdeploy").rmdir()
        (deployment / ".ortdeploy").symlink_to(elsewhere)
        refused = cli("apply", deployment / "plan.json")
        assert refused.code == 1
        assert list(elsewhere.iterdir()) == []


STEPS: list[tuple[type, dict[str, Any]]] = [
    (RunJob, {"output": {"path": "../elsewhere"}}),
    (RunJob, {"output": {"path": "/srv/elsewhere"}}),
    (RunJob, {"input": {"files": (FileState(path="../data.npy", size=1, mtime_ns=1),)}}),
    (RunJob, {"input": {"files": (FileState(path="file:///etc/passwd", size=1, mtime_ns=1),)}}),
    (RunJob, {"input": {"files": (FileState(path="s3://bucket/a::file:///etc/passwd", size=1, mtime_ns=1),)}}),
    (RunJob, {"output": {"upload": "file:///srv/elsewhere"}}),
    (RunJob, {"output": {"upload": "simplecache::file:///srv/elsewhere"}}),
    (OpenSession, {"path": "/srv/model.onnx"}),
    (OpenSession, {"path": "file:///srv/model.onnx"}),
]


@pytest.mark.quick(0, 3, 6, 7)
@pytest.mark.parametrize(("kind", "changes"), STEPS)
def test_a_plan_that_was_changed_leads_nowhere_else(deployment: Path, kind: type, changes: dict[str, Any]) -> None:
    (plan,) = plan_manifests([str(deployment / "m.yaml")], LoadOptions(), state_dir=None).plans
    steps = tuple(
        step
        if not isinstance(step, kind)
        else changed_job(step, **changes)
        if isinstance(step, RunJob)
        else replace(step, **changes)
        for step in plan.steps
    )
    before = {path for path in deployment.parent.rglob("*") if path.is_relative_to(deployment)}
    with open_ledger(deployment / "state") as ledger:
        (result,) = Execution(
            plan=replace(plan, steps=steps),
            run_id="r",
            runtime=OrtRuntime(),
            ledger=ledger,
            observer=Silent(),
            stop=lambda: False,
        ).run()
    assert result.status is Status.FAILED
    assert result.reason is not None
    assert "folder tree" in result.reason or "local path" in result.reason
    after = {path for path in deployment.parent.rglob("*") if path.is_relative_to(deployment)}
    assert {path.parts[len(deployment.parts)] for path in after - before} <= {"state"}


LIVE_NUMBERS = {"done": 1, "failed": 0, "rows_per_second": 1.5, "seconds": 2, "total": None, "seconds_left": None}
DAMAGED_LIVE = [
    {},
    {"done": 1},
    {**LIVE_NUMBERS, "done": "1"},
    {**LIVE_NUMBERS, "failed": None},
    {**LIVE_NUMBERS, "cpu_seconds_user": 1.0},
    {**LIVE_NUMBERS, "note": "\x1b[2J"},
    [1],
]


@pytest.mark.parametrize("known", [LIVE_NUMBERS, *DAMAGED_LIVE])
def test_what_a_live_file_says_is_numbers_or_nothing(tmp_path: Path, known: object) -> None:
    path = output_file(tmp_path, LIVE, "out", ".json")
    path.parent.mkdir()
    path.write_text(json.dumps(known))
    assert read_live(tmp_path, "out") == (known if known is LIVE_NUMBERS else None)


def test_a_kept_digest_that_is_none_is_worked_out_again(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(b"\0" * LARGE)
    entry = {"boot": boot_id(), **signature(large.stat())}
    for kept, used in (("0" * 64, "0" * 64), ("../../../etc/passwd", file_digest(large)), (7, file_digest(large))):
        memo.put(tmp_path, "digest", os.path.realpath(large), {**entry, "sha256": kept})
        assert DigestCache(tmp_path).digest(large) == used


def test_many_paths_are_looked_at_with_their_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").touch()
    (tmp_path / "in/b").symlink_to("/etc/passwd")
    (tmp_path / "in/c").symlink_to(tmp_path / "in/a")
    paths = [f"{tmp_path}/in/{name}" for name in "ac"]
    assert first_outside([*paths, "s3://bucket/key"], [str(tmp_path)]) is None
    assert first_outside([*paths, f"{tmp_path}/in/b"], [str(tmp_path)]) == f"{tmp_path}/in/b"
    assert first_outside([f"{tmp_path}/in/../../x"], [str(tmp_path)]) == f"{tmp_path}/in/../../x"
    assert link_out(tmp_path / "in", ()) == f"{tmp_path}/in/b"


@pytest.mark.parametrize(
    ("path", "roots", "out"),
    [
        ("../root2/x", (), True),
        ("/a/root2/x", (), True),
        ("/a/root2/x", ("/a/root2",), False),
        ("/a/root23/x", ("/a/root2",), True),
        ("/a/root2", ("/a/root2/",), False),
        ("../root", (), False),
        ("/a/roo", (), True),
        ("/b", ("/",), False),
    ],
)
def test_a_sibling_whose_name_begins_like_a_root_is_out(path: str, roots: tuple[str, ...], out: bool) -> None:
    assert leaves_as_text(path, "/a/root", roots) is out


@pytest.mark.parametrize(
    ("path", "roots", "out"),
    [("x", (), False), ("../x", (), True), ("../x", ("/a/root/in/../..",), False), ("in/x", ("/a/b/../c",), False)],
)
def test_a_folder_that_is_named_by_dots_is_the_one_in_which_they_end(
    path: str, roots: tuple[str, ...], out: bool
) -> None:
    assert leaves_as_text(path, "/a/root/in/..", roots) is out
