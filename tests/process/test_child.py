"""Children of our own: what they say arrives, whatever is printed, and nothing secret is said when they fail."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ortdeploy import redaction
from ortdeploy.process.child import Child, ask, child_command

TALKING = "support.talking_child"
SECRET = "hunter2-hunter2"  # noqa: S105  of nobody


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(redaction, "_known", {SECRET})


def test_what_is_printed_is_kept_apart_from_messages() -> None:
    answer = ask(TALKING, "print")
    assert (answer.messages, answer.code, answer.late) == ([{"done": True}], 0, False)
    assert "a library prints\n" in answer.printed
    assert "and Python\n" in answer.printed


def test_a_request_of_any_size_and_the_secrets_arrive() -> None:
    value = {"long": "ä" * 300_000, "odd": "\udcff"}
    (said,) = ask(TALKING, ["echo", value]).messages
    assert said["value"] == value
    assert said["secrets"] == [SECRET]


def test_modules_are_not_looked_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the current folder')\n")
    monkeypatch.chdir(tmp_path)
    (said,) = ask(TALKING, ["echo", 1]).messages
    assert not {"", ".", str(tmp_path)} & set(said["path"])


def test_what_python_prints_before_the_module_starts_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)\nprint('1', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[1]}")
    assert ask(TALKING, "print").messages == [{"done": True}]


@pytest.mark.parametrize(("action", "code"), [("fail", 1), ("fail-in-thread", 0)])
def test_tracebacks_hold_no_secrets(action: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    text = f"cannot log in with {SECRET} at https://user:pass-word@host/x"
    with Child(TALKING, [action, text], keeps_stderr=True) as child:
        assert list(child.messages()) == []
        assert child.wait() == code
    printed = capfd.readouterr().err
    assert "ValueError: cannot log in with" in printed
    assert "Traceback" in printed
    assert SECRET not in printed
    assert "pass-word" not in printed


def test_how_a_child_ended_and_its_last_words() -> None:
    answer = ask(TALKING, ["exit", 3])
    assert (answer.messages, answer.code, answer.last_words) == ([{"begun": True}], 3, "last")
    assert ask(TALKING, ["exit", 0]).code == 0


def test_a_child_that_is_late_is_ended() -> None:
    answer = ask(TALKING, "hang", seconds=0.2)
    assert answer.late
    assert answer.code != 0


def test_a_module_that_is_not_there_is_said_on_the_last_line() -> None:
    answer = ask("support.nothing_there", None)
    assert (answer.messages, answer.code) == ([], 1)
    assert answer.last_words == "ModuleNotFoundError: No module named 'support.nothing_there'"


def test_warnings_are_handed_over() -> None:
    taken: list[Any] = []
    with Child(TALKING, "warn", on_warning=lambda *warning: taken.append(warning)) as child:
        assert list(child.messages()) == [{"done": True}]
    ((category, text, place),) = taken
    assert (category, text) == ("UserWarning", "an odd file")
    assert "talking_child.py:" in place
    assert ask(TALKING, "warn").messages == [{"done": True}]


def test_a_message_may_have_any_bytes() -> None:
    sizes = [0, 1, 256, 1_000_001]
    found = ask(TALKING, ["bytes", sizes]).messages
    assert found.pop() == {"done": True}
    assert found == [
        {"size": size, "blob": (bytes(range(256)) * size)[: size - size % 256] + bytes(size % 256)} for size in sizes
    ]


def test_bytes_that_were_cut_off_are_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = BytesIO(b'{"number": 1, "blob": 2}\n{}{"number": 2, "blob": 10}\n{"a": 1}\n')
    monkeypatch.setattr(Child, "_pipe", lambda _: pipe)
    assert list(Child(TALKING, None).messages()) == [{"number": 1, "blob": b"{}"}]


def test_a_child_is_gone_after_its_block_has_failed() -> None:
    child = Child(TALKING, "hang")
    with pytest.raises(RuntimeError, match="enough"), child:
        raise RuntimeError("enough")
    assert child.wait() == -signal.SIGKILL


def test_a_request_that_cannot_be_sent_leaves_no_child() -> None:
    child = Child(TALKING, object())
    with pytest.raises(TypeError, match="not JSON serializable"), child:
        raise AssertionError("nothing was asked")
    assert child.wait() == -signal.SIGKILL


def test_a_child_whose_parent_has_ended_before_it_asked_says_nothing() -> None:
    for asked in ("", '{"request": nul'):
        done = subprocess.run(child_command(TALKING), input=asked, capture_output=True, encoding="utf-8", check=False)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_child_that_cannot_be_started_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/there")
    with pytest.raises(FileNotFoundError):
        ask(TALKING, None)


def test_a_child_that_listens_gets_what_it_is_told_until_the_parent_is_silent() -> None:
    with Child(TALKING, "listen", listens=True) as child:
        answers = child.messages()
        for number in range(3):
            child.tell(number=number)
            assert next(answers) == {"heard": {"number": number}}
        child.close_input()
        assert list(answers) == [{"silence": True}]
        assert child.wait() == 0


def test_a_child_that_is_gone_is_told_nothing() -> None:
    with Child(TALKING, ["exit", 3], listens=True) as child:
        assert list(child.messages()) == [{"begun": True}]
        child.wait()
        child.tell(anybody="there")
        assert child.wait() == 3


def test_a_child_ends_without_a_word_if_its_parent_has_ended() -> None:
    reading, writing = os.pipe()
    child = subprocess.Popen(child_command(TALKING), stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    envelope = {"request": ["echo", "to nobody"], "secrets": [], "native": None}
    _, printed = child.communicate(f"{json.dumps(envelope)}\n".encode())
    assert (child.returncode, printed) == (1, b"")
