"""Keys of an input that only some formats have: a source module lists its own as SETTINGS, and reads them itself.

The rooms between the manifest and the source pass them on as one mapping, and know none of them.
"""

from collections.abc import Mapping
from typing import Any

from ortdeploy.modules import Modules
from ortdeploy.sources.protocol import Setting, SourceModule

WINDOW = Setting(name="window", type=dict[str, Any] | None, changing=None, files="tables", trait="lines")
"""Which lines of a table are one row, as `sources/line_windows.py` reads it; with none, each line is a row."""


def said(module: SourceModule, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a format that are not the default."""
    return {one.name: one.of(settings) for one in module.SETTINGS if one.of(settings) != one.default}


def identity(module: SourceModule, settings: Mapping[str, Any]) -> list[list[Any]]:
    """Return what results depend on, with its values; nothing if it is the default."""
    return [[one.name, one.of(settings)] for one in module.SETTINGS if one.changes(one.of(settings))]


def misplaced(name: str, settings: Mapping[str, Any], modules: Modules[SourceModule]) -> str | None:
    """Return what is wrong with the first setting that a format does not have; None if it has all."""
    own = {one.name for one in modules[name].SETTINGS}
    key = next((key for key in settings if key not in own), None)
    if key is None:
        return None
    having = [(form, one) for form in modules for one in modules[form].SETTINGS if one.name == key]
    formats, (_, setting) = ", ".join(form for form, _ in having), having[0]
    return f"{key}: is for {setting.files} ({formats}); {name} files have no {setting.trait}. Remove it."
