"""Canaries in every place that a manifest has for secrets, and a search for them in everything that a run leaves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Cli, Result, run_fork
from support.models import scale_model
from support.web import Server, running

USER, QUERY, OPTION, FREE = "canaryUSERxy", "canaryQUERYxy", "canaryOPTIONxy", "canaryFREExy"
CANARIES = (USER, QUERY, OPTION, FREE)

MANIFEST = """\
version: 1
name: demo
{top}
models:
  double:
    path: double.onnx
    run: {{config: {{azure.auth_key: {option}}}}}
    {model}
jobs:
  run:
    model: double
    input: {{path: ["{first}", "{second}"], format: jsonl, columns: {{x: x}}, key: [row, path]}}
    batch: {{size: 8}}
    errors: {{max_failed: 2}}
    report: [html, prometheus]
    output: {{path: outbox/run, format: jsonl}}
"""


@pytest.fixture(autouse=True)
def unknown_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a new process does: a secret that an earlier test has met would be masked everywhere."""
    monkeypatch.setattr("ortdeploy.redaction._known", set())


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as one:
        lines = "".join(f'{{"x": [{row}, 1, 1, 1]}}\n' for row in range(9))
        one.replies["/get"] = one.replies["/b"] = (200, {"ETag": "1"}, (lines + '{"x": [1]}\n').encode())
        yield one


def deployment(folder: Path, server: Server, *, top: str = "", model: str = "") -> Path:
    scale_model(folder / "double.onnx")
    urls = {
        name: server.url(f"/{path}?sig={QUERY}", f"me:{USER}@") for name, path in (("first", "get"), ("second", "b"))
    }
    text = MANIFEST.format(**urls, option=OPTION, top=top, model=model)
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def leaks(folder: Path, *results: Result) -> list[str]:
    """Return where a canary is, in files and streams; the manifest itself holds them."""
    found = [
        f"{kind} of call {number}"
        for number, one in enumerate(results)
        for kind, text in (("stdout", one.out), ("stderr", one.err))
        if any(c in text for c in CANARIES)
    ]
    for path in folder.rglob("*"):
        if any(canary in path.name for canary in CANARIES):
            found.append(f"name {path}")
        if path.is_file() and path.name != "m.yaml" and any(c.encode() in path.read_bytes() for c in CANARIES):
            found.append(str(path))
    return found


def test_nothing_that_a_run_prints_or_leaves_holds_a_secret(tmp_path: Path, cli: Cli, server: Server) -> None:
    manifest = deployment(tmp_path, server)
    calls = [cli("validate", manifest, "--format", form) for form in ("text", "json", "github", "sarif")]
    calls += [cli("plan", manifest, "--format", form, "-v") for form in ("text", "json", "github", "sarif")]
    log = tmp_path / "log.jsonl"
    done = cli("apply", manifest, "-v", "--log-format", "json", "--log-file", log)
    assert done.code == 0, done.out + done.err
    calls += [done, cli("apply", manifest, "-v", "--log-format", "console"), cli("status", manifest, "-v")]
    calls += [
        cli("status", manifest, "--format", "json"),
        cli("retry", manifest, "--job", "run", "-v", "--format", "json"),
    ]
    calls += [cli("apply", manifest, "--new-run", "--format", "json"), cli("lock", manifest), cli("check", manifest)]
    assert leaks(tmp_path, *calls) == []
    rows = [json.loads(line) for line in (tmp_path / "outbox/run/part-00000000.jsonl").read_text().splitlines()]
    assert len(rows) == 18
    assert rows[0]["path"] == server.url("/get")
    failed = [json.loads(line) for line in (tmp_path / "outbox/run/_failed.jsonl").read_text().splitlines()]
    assert failed[0]["source"].startswith(server.url("/get"))
    assert all(user == "Basic bWU6Y2FuYXJ5VVNFUnh5" for _, _, user in server.asked), "and yet the server is told them"
    assert all(path.endswith(f"?sig={QUERY}") for _, path, _ in server.asked)


def test_a_plan_file_holds_no_secret_and_is_carried_out_with_those_of_the_manifest(
    tmp_path: Path, cli: Cli, server: Server
) -> None:
    manifest, plan = deployment(tmp_path, server), tmp_path / "plan.json"
    planned = cli("plan", manifest, "--out", plan)
    assert leaks(tmp_path, planned) == []
    applied = cli("apply", plan)
    assert applied.code == 0, applied.out + applied.err
    assert leaks(tmp_path, applied) == []
    assert all(path.endswith(f"?sig={QUERY}") for _, path, _ in server.asked)


@pytest.mark.parametrize(
    "setting",
    [
        f"models.double.run={{config: {{azure.auth_key: {OPTION}}}}}",
        f"models.double.run.config.azure.auth_key={OPTION}",
        f"jobs.run.input.path=http://me:{USER}@127.0.0.1/a.jsonl",
    ],
)
def test_a_secret_of_the_command_line_is_refused_for_a_plan_file_and_for_a_unit(
    tmp_path: Path, cli: Cli, server: Server, setting: str
) -> None:
    manifest, plan = deployment(tmp_path, server), tmp_path / "plan.json"
    server.replies["/a.jsonl"] = server.replies["/get"]
    refused = cli("plan", manifest, "--out", plan, "--set", setting.replace("127.0.0.1", server.url("").split("/")[2]))
    assert refused.code == 1, refused.out
    assert "holds a secret, and a plan file has none" in refused.words
    assert not plan.exists()
    unit = cli("service", manifest, "--set", setting)
    assert unit.code == 64, unit.out
    assert leaks(tmp_path, refused, unit) == []


def test_a_changed_password_or_signature_is_no_new_file(tmp_path: Path, cli: Cli, server: Server) -> None:
    manifest = deployment(tmp_path, server)
    assert cli("apply", manifest).code == 0
    manifest.write_text(manifest.read_text().replace(USER, "another1").replace(QUERY, "another2").replace(OPTION, "o3"))
    again = cli("apply", manifest)
    assert again.code == 0
    assert "nothing to do" in again.out


def test_two_inputs_that_differ_in_their_query_are_two(tmp_path: Path, cli: Cli, server: Server) -> None:
    manifest = deployment(tmp_path, server)
    manifest.write_text(manifest.read_text().replace(f"/b?sig={QUERY}", f"/get?sig={QUERY}2"))
    assert cli("apply", manifest).code == 0
    lines = (tmp_path / "outbox/run/part-00000000.jsonl").read_text().splitlines()
    paths = dict.fromkeys(json.loads(line)["path"] for line in lines)
    assert len(paths) == 2
    assert all(path.startswith(f"{server.url('/get')}#query-") for path in paths)
    assert leaks(tmp_path) == []


@pytest.mark.slow
def test_a_child_of_its_own_says_no_more(tmp_path: Path, server: Server) -> None:
    manifest = deployment(tmp_path, server, top="shared_arena: {}", model="memory: {arena: shared}")
    calls = [run_fork(["apply", manifest, "-v", "--log-format", form], cwd=tmp_path) for form in ("json", "console")]
    assert calls[0].code == 0, calls[0].err
    server.replies["/b"] = (500, {}, b"")
    calls.append(run_fork(["apply", manifest, "-v", "--new-run"], cwd=tmp_path))
    assert calls[-1].code == 1
    assert leaks(tmp_path, *calls) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("?sig=", "::file:///etc/"),
        ("me:", "me/:"),
        ("http:", "smb:"),
        ("azure.auth_key: ", "azure.auth_key: [1] #"),
        ("azure.auth_key: ", "azure.auth_kez: "),
        ("path: [", "paht: ["),
        ("format: jsonl, columns", "format: jsno, columns"),
        ("127.0.0.1", "169.254.169.254"),
        ("127.0.0.1", "127.0.0.1:1/x"),
        ("/get?", "/away?"),
        ("/get?", "/forbidden?"),
    ],
)
def test_a_refusal_holds_no_secret(tmp_path: Path, cli: Cli, server: Server, old: str, new: str) -> None:
    manifest = deployment(tmp_path, server)
    server.replies["/away"] = (302, {"Location": f"http://169.254.169.254/?sig={QUERY}"}, b"")
    server.replies["/forbidden"] = (403, {}, QUERY.encode())
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    calls = [cli(command, manifest, "--format", form) for command in ("validate", "plan") for form in ("text", "json")]
    calls.append(cli("apply", manifest, "-v", "--log-format", "json"))
    calls += [cli("plan", manifest, "--set", f"jobs.run.input.path=ftp://me:{USER}@host/{{x?sig={QUERY}")]
    assert calls[-2].code == 1, calls[-2].out
    assert leaks(tmp_path, *calls) == []


@pytest.mark.parametrize("where", ["ortdeploy.cli.applying.runner.run_plan", "ortdeploy.files.object_store.admit"])
def test_a_traceback_holds_no_secret(
    tmp_path: Path, cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    manifest = deployment(tmp_path, server)

    def broken(*_: object, **__: object) -> None:
        raise AssertionError(manifest.read_text())

    monkeypatch.setattr(where, broken)
    bug = cli("apply", manifest)
    assert bug.code == 3
    assert "this is a bug of ortdeploy" in bug.err
    assert "azure.auth_key: ***" in bug.err
    assert leaks(tmp_path, bug) == []


def test_options_of_a_provider_that_no_schema_describes_go_by_whole_words(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels:\n  double: {path: double.onnx, on_unavailable: next, sessions: [{name: a, providers: "
        f"[{{provider: Mine, options: {{apiKey: {FREE}, tokenizer: plain, inner: {{password: {FREE}}}}}}}]}}, "
        "{name: b, providers: [CPU]}]}\njobs:\n  run: {model: double, input: {path: data.npy}, output: {path: out}}\n"
    )
    calls = [cli(command, tmp_path / "m.yaml", "--format", "json") for command in ("validate", "plan")]
    assert leaks(tmp_path, *calls) == []
