"""What a starter is made from, and what it is."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text
from ortdeploy.files.text_lines import lines_of
from ortdeploy.graph.producers import operator_of
from ortdeploy.runtime.trial_run import Ran
from ortdeploy.starters.provenance import Page, Written
from ortdeploy.tensors.types import Shape, TensorType


class Data(Struct, frozen=True, kw_only=True):
    """Rows that the user has: their paths for a manifest, the format, and the columns that the files name.

    `texts` are columns of a CSV file whose first cell is no number. `left_out` says which files of a folder `patterns`
    do not name, though their formats could be read. `first` are the values of a table's first row.
    `delimiter` is what stands between cells, if that is no comma.
    `rates` are the sample rates of recordings in Hz.
    """

    patterns: tuple[str, ...]
    format: str
    columns: Mapping[str, TensorType] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()
    first: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""
    delimiter: str | None = None
    rates: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        """The paths in the words of a message."""
        *others, last = self.patterns
        return f"{', '.join(others)} and {last}" if others else last


class Subject(Struct, frozen=True, kw_only=True):
    """A model, or a folder of models, that a manifest is to be written for.

    `path` is the model's from the manifest's `folder`, `stem` the manifest's name without its suffix. `ran` is a run on
    made-up inputs, with several rows if the model takes them. `sizes` are the shapes of outputs as the graph fixes
    them. `data` are rows of the user's.
    """

    model: Path
    folder: Path
    path: str
    stem: str
    facts: ModelFacts = field(default_factory=lambda: ModelFacts(path=""))
    ran: Ran = field(default_factory=lambda: Ran(refusal="it was not tried"))
    sizes: Mapping[str, Shape] = field(default_factory=dict)
    data: Data | None = None

    @property
    def name(self) -> str:
        """What the manifest calls the model."""
        return self.model.stem

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of models."""
        return self.model.is_dir()

    @property
    def inputs(self) -> tuple[ValueFacts, ...]:
        """The inputs that must be fed: those without a default, which weights have that are listed as inputs."""
        return tuple(value for value in self.facts.inputs if not value.optional)

    @property
    def only_input(self) -> ValueFacts | None:
        """The one input, if there is no other."""
        return self.inputs[0] if len(self.inputs) == 1 else None

    def ran_shape(self, output: str) -> tuple[int, ...]:
        """Return the shape that an output had when the model ran; empty if it did not. Its sizes are those of a run."""
        return self.ran.outputs.get(output, ())

    def shape_of(self, output: str) -> Shape:
        """Return the shape of an output: what the graph fixes, and None for what grows with the inputs, or may.

        It is empty if the model did not run, so a family that takes a number for the number of its classes, or of its
        scores, never takes the length of what was made up.
        """
        ran = self.ran_shape(output)
        sizes = self.sizes.get(output, ())
        return sizes if len(sizes) == len(ran) else (None,) * len(ran)

    def operator_of(self, output: str) -> str | None:
        """Return the operator that an output's values are from."""
        return operator_of(self.facts.skeleton, output)

    def beside(self, *names: str) -> str | None:
        """Return the path, from the manifest, of the first file of these names beside the model or one folder up."""
        return next((self.relative(path) for path in self._neighbours(names) if self.holds(path)), None)

    def settings(self, *names: str) -> dict[str, Any]:
        """Return what the JSON file maps that `beside` finds; empty if there is none that can be read."""
        beside = self.beside(*names)
        return json_mapping(self.folder / beside) if beside is not None else {}

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes of transformers that config.json names."""
        named = self.settings("config.json").get("architectures")
        return tuple(one for one in named if isinstance(one, str)) if isinstance(named, list) else ()

    def preprocessor(self, part: str) -> tuple[Mapping[str, Any], str | None]:
        """Return how rows are prepared, as transformers has it, and the file that says so.

        That is preprocessor_config.json, or the `part` of processor_config.json: image_processor, feature_extractor.
        """
        for name in ("preprocessor_config.json", "processor_config.json"):
            found = self.settings(name)
            found = found if name.startswith("pre") else found.get(part, {})
            if found and isinstance(found, dict):
                return found, self.beside(name)
        return {}, None

    def lines(self, path: str) -> tuple[str, ...]:
        """Return the lines of a file that `beside` has found; none if it cannot be read, or is no UTF-8 text."""
        try:
            return lines_of(read_text(self.folder / path))
        except (OSError, ValueError):
            return ()

    def _neighbours(self, names: tuple[str, ...]) -> Iterator[Path]:
        for folder in (self.model.parent, self.model.parent.parent):
            for name in names:
                path = folder / name
                if path.is_file():
                    yield path

    def holds(self, path: Path) -> bool:
        """Return whether a path lies below the manifest's folder, as paths of manifests must."""
        return path.resolve().is_relative_to(self.folder.resolve())

    def relative(self, path: Path) -> str:
        """Return a path from the manifest's folder, with forward slashes."""
        return path.resolve().relative_to(self.folder.resolve()).as_posix()


class Starter(Struct, frozen=True, kw_only=True):
    """A manifest, the sample files that it reads by their names, and what it was recognised as, for the user.

    `question` is the one thing that could not be known, and what to write there; `if_refused` is that where it only
    matters if the manifest does not run, and `misfit` says of rows of the user's what they are and what the model
    takes, for the same case. `unsaid` is what the model gives and the manifest leaves out. `takes_long`: not even a few
    rows are run before it is left behind. `explodes`: its output has a line for each item of a row, so none for a row
    without one.
    """

    family: str
    page: Page
    files: Mapping[str, bytes] = field(default_factory=dict)
    question: str | None = None
    if_refused: str | None = None
    misfit: str | None = None
    unsaid: str | None = None
    takes_long: bool = False
    explodes: bool = False

    @property
    def text(self) -> str:
        """The manifest."""
        return self.page.text

    @property
    def needed(self) -> tuple[Written, ...]:
        """The values that are made up and that results depend on: the user must write them."""
        return tuple(one for one in self.page.written if one.given.is_needed)


def fixed_rows(value: ValueFacts) -> int | None:
    """Return the number of rows that the graph fixes for an input; None if it takes any."""
    size = (value.tensor.shape or (None,))[0]
    return size if isinstance(size, int) else None


def json_mapping(path: Path) -> dict[str, Any]:
    """Return what a JSON file maps; empty if it cannot be read, or holds something else."""
    try:
        found = read_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_installed(module: str) -> bool:
    """Return whether a package of an extra is installed."""
    return find_spec(module) is not None
