"""Writes the pages of the site: those of docs/ and of the repository, and those made from the program.

python docs/site/write.py [FOLDER]; zensical or mkdocs then make the site, as mkdocs.yml says.
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path

from reference import pages

REPOSITORY = Path(__file__).parent.parent.parent
BESIDE = {
    "README.zh-CN.md": "index.zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deployments/README.md": "examples/index.md",
    "deployments/gallery/README.md": "examples/gallery.md",
}
"""Files of the repository that are pages of the site, though they do not lie in docs/."""

PICTURES = "docs/pictures"

_DOCS = "docs/"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def write(folder: Path) -> None:
    """Write all pages of the site into a folder, from which nothing else is left."""
    shutil.rmtree(folder, ignore_errors=True)
    own = {path.relative_to(REPOSITORY).as_posix(): path.relative_to(REPOSITORY / _DOCS).as_posix() for path in _docs()}
    for source, page in {**own, **BESIDE}.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        _put(folder / page, _relinked(text, source, page))
    shutil.copytree(REPOSITORY / PICTURES, folder / PICTURES.removeprefix(_DOCS))
    _put(folder / "decisions/index.md", _decisions())
    for page, text in pages():
        _put(folder / page, text)


def _docs() -> list[Path]:
    return sorted((REPOSITORY / _DOCS).rglob("*.md"))


def _decisions() -> str:
    paths = [path for path in _docs() if path.parent.name == "decisions"]
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in paths}
    return "\n".join(["# Decisions", "", *(f"- [{title}]({name})" for name, title in titles.items()), ""])


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _relinked(text: str, source: str, page: str) -> str:
    """Lead relative links of a source to the pages of the site; where there is none, only the words stay."""

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        path, mark, place = target.partition("#")
        if "://" in target or not path:
            return found[0]
        goal = _page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if goal is None:
            return words
        return f"{image}[{words}]({posixpath.relpath(goal, posixpath.dirname(page) or '.')}{mark}{place})"

    return "".join(part if part.startswith("`") else _LINK.sub(link, part) for part in _CODE.split(text))


def _page_of(path: str) -> str | None:
    if path == "README.md":  # the site has a page of its own to begin with
        return "index.md"
    if path == "docs/decisions":
        return "decisions/index.md"
    if path in BESIDE:
        return BESIDE[path]
    is_here = path.startswith(_DOCS) and (path.endswith(".md") or path.startswith(f"{PICTURES}/"))
    return path.removeprefix(_DOCS) if is_here else None


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "build/docs")
