"""A source of files that are one row each: pictures, recordings, files as they are."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from msgspec import Struct

from ortdeploy.facts.contents import ContentColumns
from ortdeploy.results.rows import Block
from ortdeploy.sources.files import shown
from ortdeploy.sources.prefetch import Beside, DecodedAhead
from ortdeploy.sources.protocol import DECODING, Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import Decode, Found, block_rows, decode_row, one_by_one
from ortdeploy.sources.whole_files import WholeFiles


class _Noted:
    """What is noted of the rows of a block: their names, and the processor seconds of other threads."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.cpu_seconds = 0.0

    def spent(self, seconds: float) -> None:
        self.cpu_seconds += seconds


class FilePerRow(Struct, frozen=True):
    """Files that are one row each; `decode` gets a file's path as the raw row's value.

    `form` is the name of their format. To `whole`, `decode` adds what files held that it has read whole.
    """

    files: Sequence[str]
    folder: str
    wanted: Wanted
    decode: Decode
    form: str
    whole: WholeFiles | None = None

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield blocks; files before the first row are not opened."""
        places = range(start - self.wanted.first_row, len(self.files))
        files = (self.files[place] for place in places) if places.start else iter(self.files)
        raw_rows = (RawRow(shown(path, self.folder), "", path) for path in files)
        noted = _Noted()
        decoded = partial(
            self._decoded, noted=noted, count=len(places if self.wanted.only is None else self.wanted.only)
        )
        for block in block_rows(raw_rows, decoded, self.wanted, start, sizes):
            block.contents = self._contents(noted.names)
            block.decoding_cpu, noted.cpu_seconds = noted.cpu_seconds, 0.0
            yield block
            del block  # whoever has run it lets go of it while the next one is read

    def _decoded(self, raw_rows: Iterator[RawRow], noted: _Noted, count: int) -> Generator[tuple[RawRow, Found]]:
        """Yield decoded rows, of which there are at most `count`, and note whose they are."""
        decode, wanted = partial(decode_row, decode=self.decode, wanted=self.wanted), self.wanted
        if wanted.threads > 1:
            decoded = DecodedAhead(
                raw_rows,
                decode,
                wanted.threads,
                wanted.memory_limit,
                DECODING[self.form],
                spent=noted.spent,
                beside=self._beside(noted),
                count=count,
            ).rows()
        else:
            decoded = one_by_one(raw_rows, self.decode, wanted)
        with closing(decoded):
            for raw, found in decoded:
                noted.names.append(raw.path)
                yield raw, found
                del found  # as above

    def _beside(self, noted: _Noted) -> Beside | None:
        """Return what decodes rows in other processes too, if it may."""
        if not self.wanted.processes:
            return None

        def rows(
            raw_rows: Iterator[RawRow], decode: Callable[[RawRow], Found], seconds: float
        ) -> Generator[tuple[RawRow, Found]]:
            from ortdeploy.sources.decoding_processes import DecodingProcesses  # noqa: PLC0415  only for many files

            processes = DecodingProcesses(self.form, self.wanted, self.whole, noted.spent, seconds)
            return processes.rows(raw_rows, decode)

        return rows

    def _contents(self, names: list[str]) -> ContentColumns | None:
        """Return what the files of a block held, which others may have been read after; none of their names is left."""
        if self.whole is None:
            return None
        contents = ContentColumns()
        for name in names:
            held = self.whole.pop(name, None)
            if held is not None:
                contents.add(name, *held)
        names.clear()
        return contents
