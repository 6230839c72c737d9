"""Units hold exactly the settings that they should, whatever the paths, names and flags are."""

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.unit_files import expanded, read_unit, without_variables, words_of

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.planning.service import Needs
from ortdeploy.views.systemd import Service, render_units

WORDS = st.text(
    st.sampled_from("ab/ .-%$\\\"';#[]=+!@:\t\r\n\x00\x1b\x85\u2028\u202e\u00e9\udcff") | st.characters(), max_size=12
)
PATHS = WORDS.map("/{}".format)
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def controls(values: Sequence[str]) -> set[str]:
    """Return the characters that no unit may hold, by the categories of Unicode."""
    signs = set("".join(values))
    return {
        s for s in signs if unicodedata.category(s) in {"Cc", "Zl", "Zp", "Cs"} or unicodedata.bidirectional(s) in BIDI
    }


def made(command: Sequence[str], writable: Sequence[str], name: str, user: str | None, every: float | None) -> str:
    """Return the text of all units of a service."""
    needs = Needs(
        name=name, devices=(), network=False, compiles=False, folders=(), writable=tuple(writable), watchdog=300
    )
    units = render_units(Service(command=command, user=user, program_folders=(), every=every), needs)
    return "\n".join(units.values())


PLAIN = [(section, setting) for section, setting, _ in read_unit(made(["/p"], [], "n", "u", None))]
TIMED = [(section, setting) for section, setting, _ in read_unit(made(["/p"], [], "n", "u", 5))]


@settings(max_examples=effort(300, 3000), deadline=None)
@given(PATHS, st.lists(WORDS, max_size=4), st.lists(PATHS, max_size=3), WORDS, st.sampled_from([None, 300.0]))
def test_units_that_are_read_back_hold_the_settings_that_were_meant_and_no_others(
    program: str, words: list[str], writable: list[str], name: str, every: float | None
) -> None:
    command = [program, *words]
    if controls([*command, *writable, name]):
        with pytest.raises(OrtdeployError, match=r"a unit cannot hold the character U\+"):
            made(command, writable, name, "u", every)
        return
    try:
        read = read_unit(made(command, writable, name, "u", every))
    except OrtdeployError:  # marks of direction alone, which Unicode counts among format characters
        assert any(unicodedata.category(sign) == "Cf" for sign in "".join([*command, *writable, name]))
        return
    by_setting: dict[str, list[str]] = {}
    for _, setting, value in read:
        by_setting.setdefault(setting, []).append(value)
    first, *others = words_of(by_setting["ExecStart"][0], escapes=True)
    assert [expanded(first), *(without_variables(expanded(word)) for word in others)] == command
    allowed = [words_of(value, escapes=False) for value in by_setting.pop("ReadWritePaths", [])]
    assert [[expanded(word) for word in some] for some in allowed] == [[path] for path in writable]
    assert expanded(by_setting["Description"][0]).replace("\\\\", "\\").startswith(f"ortdeploy {name}".rstrip(" \t"))
    kept = [(section, setting) for section, setting, _ in read if setting != "ReadWritePaths"]
    assert kept == (PLAIN if every is None else TIMED)


@pytest.mark.parametrize("sign", [*map(chr, range(32)), "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\udcff"])
@pytest.mark.parametrize("place", ["program", "argument", "writable", "name", "user"])
def test_a_control_character_is_refused_wherever_it_stands(sign: str, place: str) -> None:
    bad = f"/a{sign}ExecStartPre=+/x"
    values = {one: bad if one == place else "/a" for one in ("program", "argument", "writable", "name", "user")}
    with pytest.raises(OrtdeployError, match=f"U\\+{ord(sign):04X}"):
        made([values["program"], values["argument"]], [values["writable"]], values["name"], values["user"], None)
