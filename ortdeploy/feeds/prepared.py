"""A block of rows with the tensors that are made of them."""

import numpy as np
from msgspec import Struct

from ortdeploy.results.rows import Block
from ortdeploy.tensors.columns import Array, size_bytes


class Prepared(Struct, frozen=True, kw_only=True):
    """A block with the tensors of all its rows, [rows, …] each; None if its batches must be fed one by one."""

    block: Block
    feeds: dict[str, Array] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows that are arrays. A column that is fed as it was read counts once."""
        return size_bytes(self.block.columns) + self.fed_bytes

    @property
    def fed_bytes(self) -> int:
        """Bytes of tensors that are not fed as they were read."""
        read = [column for column in self.block.columns.values() if isinstance(column, np.ndarray)]
        made = {
            name: array
            for name, array in (self.feeds or {}).items()
            if not any(np.may_share_memory(array, column) for column in read)
        }
        return size_bytes(made)
