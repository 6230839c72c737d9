"""A child process that counts the rows of text files, for `row_counts`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ortdeploy.facts.data import Dialect
from ortdeploy.files.in_place import in_place
from ortdeploy.process.child import Asked
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.row_counts import count_each
from ortdeploy.sources.row_index import KeptIndexes

if TYPE_CHECKING:
    from ortdeploy.sources.row_index import CountedModule


def main(asked: Asked) -> None:
    """Entry of a child process: count the rows of files, and keep their indexes."""
    told: dict[str, Any] = asked.request
    delimiter, lines = told["records"]
    dialect = Dialect(delimiter=delimiter, lines_per_record=lines)
    indexes = KeptIndexes(Path(told["state_dir"]), told["folder"], told["kind"], told=told["told"], dialect=dialect)
    wanted = Wanted(dtypes={}, dialect=dialect, memory_limit=told["limit"])
    module = cast("CountedModule", SOURCES[indexes.kind])
    read = partial(module.read_rows, folder=indexes.base, wanted=wanted)
    with in_place([one[0] for one in told["files"]], told["patterns"], told["files"]) as files:
        for path in files:
            asked.say(file=path, rows=count_each([path], indexes, read))
