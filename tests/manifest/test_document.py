"""Text to data and places; YAML's traps are diagnostics."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.manifest import document as module
from ortdeploy.manifest.document import MAX_BYTES, MAX_DEPTH, Document, parse_document


def parse(text: str) -> Document:
    document, problems = parse_document(text.encode(), "m.yaml")
    assert document is not None
    assert not problems
    return document


def only_problem(raw: bytes) -> tuple[str, int, int]:
    _, problems = parse_document(raw, "m.yaml")
    assert len(problems) == 1, problems
    return problems[0].rule, problems[0].span.line, problems[0].span.column


def test_every_value_and_key_has_its_place() -> None:
    document = parse("a: 1\nb:\n  c: [true, null, 2.5]\n  d: {e: text}\n")
    assert document.data == {"a": 1, "b": {"c": [True, None, 2.5], "d": {"e": "text"}}}
    places = {path: (span.line, span.column) for path, span in document.spans.items()}
    assert places["a",] == (1, 4)
    assert places["b", "c", 0] == (3, 7)
    assert places["b", "c", 1] == (3, 13)
    assert places["b", "c", 2] == (3, 19)
    assert places["b", "d", "e"] == (4, 10)
    assert (document.keys["b", "d"].line, document.keys["b", "d"].column) == (4, 3)


def test_something_that_is_not_written_is_at_the_key_above_it() -> None:
    document = parse("a:\n  b: 1\n")
    assert document.locate(("a", "c", 3)).line == 1


def test_crlf_is_read_with_the_same_places() -> None:
    document = parse("a: 1\r\nb:\r\n  - x\r\n  - y\r\n")
    assert document.data == {"a": 1, "b": ["x", "y"]}
    assert document.spans["b", 1].line == 4


@pytest.mark.parametrize(
    ("raw", "rule", "line", "column"),
    [
        (b"", "empty-manifest", 1, 1),
        (b"# only a comment\n", "empty-manifest", 1, 1),
        (b"a: 1\na: 2\n", "duplicate-key", 2, 1),
        (b"a: {b: 1, b: 2}\n", "duplicate-key", 1, 11),
        (b"a:\n\t- b\n", "yaml-syntax", 2, 1),
        (b"a: 'x\n", "yaml-syntax", 1, 4),
        (b"a: \x00\n", "yaml-syntax", 1, 4),
        (b"a: 1\n---\nb: 2\n", "several-documents", 2, 1),
        (b"a: &x [*x]\n", "alias-cycle", 1, 8),
        (b"a: *x\n", "undefined-alias", 1, 4),
        (b"a: !!python/object:os.system x\n", "yaml-tag", 1, 4),
        (b"yes: 1\n", "non-string-key", 1, 1),
        (b"a: {1: 2}\n", "non-string-key", 1, 5),
        (b"a: {2024.5: 2}\n", "non-string-key", 1, 5),
        (b"a: {null: 2}\n", "non-string-key", 1, 5),
        (b"? [a, b]\n: 1\n", "non-string-key", 1, 3),
        (b"a: 010\n", "ambiguous-scalar", 1, 4),
        (b"a: 1_000\n", "ambiguous-scalar", 1, 4),
        (b"a: 1:30\n", "ambiguous-scalar", 1, 4),
        (b"a: .inf\n", "ambiguous-scalar", 1, 4),
        (b"a: 1e999\n", "ambiguous-scalar", 1, 4),
        (b"a: " + b"9" * 5000 + b"\n", "ambiguous-scalar", 1, 4),
        (b"\xef\xbb\xbfa: 1\n", "byte-order-mark", 1, 1),
        (b"a: 1\nb: \xff\n", "not-utf8", 2, 4),
        ("a: 1\n".encode("utf-16"), "not-utf8", 1, 1),
        (b"a: " + b"[" * (MAX_DEPTH + 5), "too-deep", 1, MAX_DEPTH + 3),
        (b"#" * (MAX_BYTES + 1), "oversized-file", 1, 1),
        (b"a: {<<: 3}\n", "yaml-syntax", 1, 9),
    ],
)
def test_a_trap_is_one_diagnostic_with_its_place(raw: bytes, rule: str, line: int, column: int) -> None:
    assert only_problem(raw) == (rule, line, column)


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        (b'path: "inbox\\*.jpg"\n', "Write / between folders"),
        (b"model:m\ninput: 1\n", "A space follows each colon"),
        (b"a: 1\n b: 2\n", "A space follows each colon"),
        (b"j:\n    a: {b: 1}\n   c: 2\n", "in the same column"),
    ],
)
def test_what_yaml_refuses_is_told_with_what_to_do(raw: bytes, advice: str) -> None:
    _, (found,) = parse_document(raw, "m.yaml")
    assert advice in found.detail


@pytest.mark.parametrize(
    "text",
    [
        "a: 'yes'\n",
        "a: '010'\n",
        "a: 0x1F\n",
        "a: 2024-01-01\n",
        "--- \na: 1\n...\n",
        "'on': 1\n",
        "a: &x [1]\nb: *x\n",
        "a: !  plain\n",
        "a: {b: 1}\nc: {b: 1}\n",
    ],
)
def test_near_misses_are_read(text: str) -> None:
    parse(text)


def test_a_tab_is_named() -> None:
    _, problems = parse_document(b"a:\n\tb: 1\n", "m.yaml")
    assert "replace the tab" in problems[0].detail


def test_a_bom_is_a_warning_and_the_manifest_is_read() -> None:
    document, problems = parse_document(b"\xef\xbb\xbfa: 1\n", "m.yaml")
    assert document is not None
    assert document.data == {"a": 1}
    assert problems[0].severity == "warning"


def test_a_bomb_of_aliases_does_not_unfold() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    document, problems = parse_document("\n".join(lines).encode(), "m.yaml")
    assert document is None
    assert [problem.rule for problem in problems] == ["alias-bomb"]


def test_a_bomb_of_merges_does_not_unfold() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}" for n in range(1, 40)]
    document, problems = parse_document("\n".join(lines).encode(), "m.yaml")
    assert document is None
    assert [problem.rule for problem in problems] == ["alias-bomb"]


def test_merge_keys_fill_in_and_never_replace() -> None:
    document = parse("x-base: &b {p: 1, q: 2}\na: {<<: *b, q: 3}\nc: {<<: [*b, {r: 4}]}\n")
    assert document.data["a"] == {"q": 3, "p": 1}
    assert document.data["c"] == {"p": 1, "q": 2, "r": 4}


def test_words_that_yaml_reads_as_booleans_are_remembered() -> None:
    document = parse("a: yes\nb: Off\nc: true\n")
    assert document.data == {"a": True, "b": False, "c": True}
    assert document.words == {("a",): "yes", ("b",): "Off"}


def test_the_pure_python_parser_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: 1\nb:\n  - x: [yes, 0x10, 'q', ~]\n    y: &k {z: 2.5}\n  - *k\nc: |\n  block\n"
    fast = parse(text)
    monkeypatch.setattr(module, "_LOADER", yaml.SafeLoader)
    slow = parse(text)
    assert (fast.data, fast.spans, fast.keys) == (slow.data, slow.spans, slow.keys)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_document_or_in_diagnostics_with_places(raw: bytes) -> None:
    document, problems = parse_document(raw, "m.yaml")
    assert document is not None or problems
    assert all(problem.span.line >= 1 and problem.span.column >= 1 for problem in problems)


YAML_SIGNS = st.sampled_from([*"ab01:-?[]{}&*!|>'\"%@`#,\n\t .~<", "yes", "<<", "---", "null", "&a", "*a", ": "])


@given(st.lists(YAML_SIGNS, max_size=40).map("".join))
def test_any_yaml_like_text_ends_in_a_document_or_in_diagnostics(text: str) -> None:
    document, problems = parse_document(text.encode(), "m.yaml")
    assert document is not None or problems
