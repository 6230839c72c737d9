"""Columns by pattern: in the order of the file, each once, exact names first."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.deployment.column_patterns import expanded, fillers, is_pattern, matching

names = st.text("ab*?[.]1", min_size=1, max_size=4)


def test_a_pattern_stands_for_columns_in_the_order_of_the_file() -> None:
    known = ("f10", "label", "f2", "f1")
    assert expanded(["f*"], known) == ("f10", "f2", "f1")
    assert expanded(["f1", "f*"], known) == ("f1", "f10", "f2")
    assert expanded(["f?", "*"], known) == ("f2", "f1", "f10", "label")
    assert expanded(["g*", "label"], known) == ("g*", "label")


def test_a_column_of_that_very_name_is_no_pattern() -> None:
    assert expanded(["f*", "f?"], ("f*", "f1", "f2")) == ("f*", "f1", "f2")


@given(st.lists(names, max_size=4, unique=True), st.lists(names, max_size=6, unique=True))
def test_named_columns_are_kept_and_patterns_add_each_other_one_once(written: list[str], known: list[str]) -> None:
    found = expanded(written, known)
    exact = [name for name in written if not is_pattern(name, known)]
    patterns = [name for name in written if is_pattern(name, known)]
    assert [name for name in found if name in exact] == exact
    assert len(set(found)) == len(found)
    wanted = {name for name in known if name in exact or any(matching(one, [name]) for one in patterns)}
    assert {name for name in found if name in known} == wanted
    for pattern in patterns:
        if pattern in found:
            assert (
                not set(matching(pattern, known)) - set(exact) - {n for one in patterns for n in matching(one, known)}
            )


@given(names, names)
def test_stars_and_question_marks_match_as_in_a_shell(pattern: str, name: str) -> None:
    literal = pattern.replace("[", "[[]")  # a bracket is a bracket here
    assert bool(matching(pattern, [name])) == fnmatchcase(name, literal)


def test_a_filler_by_name_wins_over_a_pattern_and_the_first_pattern_over_others() -> None:
    missing = {"*": "nan", "f*": 0, "f1": None}
    assert fillers(missing, ["f1", "f2", "g"]) == {"f1": None, "f2": "nan", "g": "nan"}
    assert fillers({"f*": 0, "*": "nan"}, ["f1", "g"]) == {"f1": 0, "g": "nan"}
    assert fillers({"f*": 0}, ["g"]) == {}
