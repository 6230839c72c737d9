"""Writes the branches of providers in the manifest's schema: `python tests/support/provider_branches.py`.

JSON Schema cannot ignore case, so each branch has a pattern for all spellings of its provider's names.
"""

import json
import re
from pathlib import Path

from ortdeploy.providers.catalogue import PROVIDERS, SUFFIX, Provider, other_names

FILE = Path(__file__).parent.parent.parent / "schemas/deployment.schema.json"
BRANCHES = re.compile(r'(\n +\{"if": \{"required": \["provider"\].*)+')
IGNORED = "[ _-]*"


def rendered(text: str) -> str:
    """Return the text of the schema with a branch for each provider of the catalogue."""
    (found,) = BRANCHES.finditer(text)
    indent = " " * 12
    lines = ",".join(f"\n{indent}{_branch(one)}" for one in PROVIDERS)
    return text[: found.start()] + lines + text[found.end() :]


def _branch(provider: Provider) -> str:
    names = "|".join(map(_spelt, (provider.short, *other_names(provider))))
    pattern = f"^{IGNORED}({names}){IGNORED}({_spelt(SUFFIX)}|{_spelt('EP')})?{IGNORED}$"
    chosen = {"required": ["provider"], "properties": {"provider": {"pattern": pattern}}}
    options = {"properties": {"options": {"$ref": f"providers/{provider.short}.schema.json"}}}
    return json.dumps({"if": chosen, "then": options})


def _spelt(name: str) -> str:
    return IGNORED.join(f"[{sign.upper()}{sign.lower()}]" for sign in name)


if __name__ == "__main__":
    FILE.write_text(rendered(FILE.read_text(encoding="utf-8")), encoding="utf-8")
