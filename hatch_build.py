"""Makes the README of the package: on PyPI, relative links and pictures lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\((?!https?://|#)([^)\s]+)\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


class Readme(MetadataHookInterface):
    """Sets `readme`, with links into the repository that `project.urls` names."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute(text: str, repository: str) -> str:
    """Return a README whose relative links lead to GitHub; what stands in code stays as it is."""
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        words = _LINK.sub(link, words)  # a badge is a picture within a link
        if target.startswith("../../"):
            goal = f"{repository}/{target.removeprefix('../../')}"
        elif image:
            goal = f"{raw}/HEAD/{target}" + ("?sanitize=true" if target.endswith(".svg") else "")
        else:
            goal = f"{repository}/blob/HEAD/{target}"
        return f"{image}{words}({goal})"

    return "".join(part if part.startswith("`") else _LINK.sub(link, part) for part in _CODE.split(text))
