"""Predicts the memory of ONNX Runtime's CPU arena for a graph's buffers, by imitating the arena: nothing is run.

It follows bfc_arena.cc of onnxruntime 1.31: regions of doubling size, the smallest free chunk that fits, of several the
one at the lowest address, chunks that are split if they have twice the size, free neighbours that are joined. The first
run allocates buffer by buffer. With memory pattern every further run of a shape takes one block, in which each value
has its place, whether or not the arena has room. The short batch at the end of a job has another shape, whose first run
allocates buffer by buffer again. On 13 models and shapes the bytes that are written to were 0.93 to 1.06 of what runs
were measured to take. A test compares it with real runs on the versions of `versions.TESTED_WITH`; of another version,
findings that rest on it are assumed.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct, field

from ortdeploy.graph.activations import Buffer

_MIB = 1024 * 1024
_FIRST_REGION = _MIB
_LARGEST_STEP = 1024 * _MIB
_DEAD_BYTES = 128 * _MIB
_ALIGNMENT = 256

_MAPPED = 32 * _MIB
"""Regions from this size on are mappings of their own, which Linux puts below those before them (`process.heap`).

Smaller ones come from a heap, one above the other. Heaps of threads are among the mappings, in any order with them;
here they are above, which gives the larger of both outcomes.
"""


class _Chunk(Struct, eq=False):
    """A piece of a region."""

    start: int
    size: int
    free: bool = True


class _Region(Struct):
    """A region of one allocation: its place among all addresses, its chunks in order, and the bytes written to."""

    address: int
    chunks: list[_Chunk]
    written: list[tuple[int, int]] = field(default_factory=list)

    def written_bytes(self) -> int:
        total = end = 0
        for start, stop in sorted(self.written):
            total += max(stop - max(start, end), 0)
            end = max(end, stop)
        return total


class _Arena:
    """The arena with its default settings."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []
        self._next = _FIRST_REGION

    def allocate(self, size: int) -> tuple[_Region, _Chunk]:
        """Return a chunk of at least this number of bytes, and its region."""
        rounded = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
        region, chunk = self._find(rounded) or self._extend(rounded)
        if chunk.size >= 2 * rounded or chunk.size - rounded >= _DEAD_BYTES:
            rest = _Chunk(chunk.start + rounded, chunk.size - rounded)
            region.chunks.insert(region.chunks.index(chunk) + 1, rest)
            chunk.size = rounded
        chunk.free = False
        region.written.append((chunk.start, chunk.start + size))
        return region, chunk

    def _find(self, size: int) -> tuple[_Region, _Chunk] | None:
        fitting = (
            (region, chunk) for region in self._regions for chunk in region.chunks if chunk.free and chunk.size >= size
        )
        return min(fitting, key=lambda found: (found[1].size, found[0].address), default=None)

    def _extend(self, size: int) -> tuple[_Region, _Chunk]:
        """Allocate a region: the next power of two, and twice as much as the last one where that is enough."""
        if size > _LARGEST_STEP:
            taken = size
        elif size > self._next:
            while size > self._next:
                self._next *= 2
            taken = self._next
        else:
            taken = self._next
            self._next = min(2 * self._next, _LARGEST_STEP)
        count = len(self._regions)
        region = _Region(-count if taken >= _MAPPED else count, [_Chunk(0, taken)])
        self._regions.append(region)
        return region, region.chunks[0]

    @staticmethod
    def release(region: _Region, chunk: _Chunk) -> None:
        """Give a chunk back, and join it with neighbours that are free."""
        chunk.free = True
        at = region.chunks.index(chunk)
        for left, right in ((at, at + 1), (at - 1, at)):
            if left >= 0 and right < len(region.chunks) and region.chunks[left].free and region.chunks[right].free:
                region.chunks[left].size += region.chunks.pop(right).size

    def written_bytes(self) -> int:
        """Return how many bytes of all regions were ever written to."""
        return sum(region.written_bytes() for region in self._regions)


def arena_bytes(shapes: Sequence[Sequence[Buffer]], *, pattern: bool, held: int = 1, again: int | None = None) -> int:
    """Return what the arena holds after some runs of a first shape and one of each other, in bytes.

    Each shape has its buffers. `pattern`: with memory pattern, which the first run of a shape makes for further ones.
    The results of the last `held` runs are still with the caller while another one runs. The first shape runs `again`
    so often; None: often.
    """
    arena = _Arena()
    first, *others = shapes
    later = _with_pattern(first) if pattern else first
    results: list[list[tuple[_Region, _Chunk]]] = []
    repeated = held + 1 if again is None else min(again, held + 1)
    for buffers in (first, *[later] * repeated, *others):
        results.append(_run(arena, buffers))
        for one in results.pop(0) if len(results) > held else ():
            arena.release(*one)
    return arena.written_bytes()


def _with_pattern(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the buffers of a run with memory pattern: one block for all values, beside results and scratch."""
    values = [buffer for buffer in buffers if not buffer.is_result and not buffer.is_scratch]
    block = Buffer(pattern_bytes(values), 0, max((buffer.last for buffer in buffers), default=0))
    return [block, *(one for one in buffers if one.is_result or one.is_scratch)] if block.size else buffers


def pattern_bytes(buffers: Sequence[Buffer]) -> int:
    """Return the size of the one block of a memory pattern: each buffer in the gap that it fills best, or at the end.

    The gaps are those between buffers in use when it is allocated, so the block has holes that nothing fits.
    """
    total = 0
    used: list[tuple[int, int, int]] = []  # start, end, last node
    for buffer in sorted(buffers, key=lambda one: one.first):
        used = sorted(one for one in used if one[2] >= buffer.first)
        starts, ends = [one[0] for one in used] + [total], [0] + [one[1] for one in used]
        size = -(-buffer.size // _ALIGNMENT) * _ALIGNMENT
        gaps = [(stop - start - size, start) for start, stop in zip(ends, starts, strict=True) if stop - start >= size]
        start = min(gaps)[1] if gaps else ends[-1]
        used.append((start, start + size, buffer.last))
        total = max(total, start + size)
    return total


def _run(arena: _Arena, buffers: Sequence[Buffer]) -> list[tuple[_Region, _Chunk]]:
    """Allocate and release as one run does; return the chunks of its results."""
    held: list[tuple[Buffer, tuple[_Region, _Chunk]]] = []
    begun: defaultdict[int, list[Buffer]] = defaultdict(list)
    for buffer in filter(attrgetter("size"), buffers):
        begun[buffer.first].append(buffer)
    for node in range(max((buffer.last for buffer in buffers), default=-1) + 1):
        held += [(buffer, arena.allocate(buffer.size)) for buffer in begun[node]]
        for _, chunk in (one for one in held if one[0].last == node and not one[0].is_result):
            arena.release(*chunk)
        held = [one for one in held if one[0].last != node or one[0].is_result]
    return [chunk for _, chunk in held]
