"""The types that carried columns have in all parts of an output."""

from collections.abc import Mapping, Sequence

from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.tensors.carried import SINGLE


def settled_types(form: str, key: Sequence[str], types: Mapping[str, str], told: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the columns of a key: those that were `told`, else those that their values have.

    `types` are those of the input's columns. Formats without types of columns have each value as it is.
    """
    kinds = SINKS[form].COLUMN_TYPES
    known = {name: types[name] for name in key if name in types and kinds != "none"}
    return {name: kind for name, kind in known.items() if kinds == "all" or kind in SINGLE} | dict(told)
