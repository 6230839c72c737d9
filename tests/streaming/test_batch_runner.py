"""A block counts as many bytes as it holds: from that follows how many blocks are on their way."""

import numpy as np

from ortdeploy.feeds.prepared import Prepared
from ortdeploy.results.rows import Block
from ortdeploy.tensors.columns import Array


def test_a_column_that_is_fed_as_it_was_read_counts_once() -> None:
    read = np.zeros((8, 16), np.float32)
    assert _prepared(read, read).size_bytes == read.nbytes
    assert _prepared(read, read[:]).size_bytes == read.nbytes


def test_a_tensor_that_was_made_of_a_column_counts_beside_it() -> None:
    read = np.zeros((8, 16), np.uint8)
    assert _prepared(read, read.astype(np.float32)).size_bytes == 5 * read.nbytes


def test_a_block_without_tensors_counts_its_columns() -> None:
    read = np.zeros((8, 16), np.uint8)
    assert Prepared(block=_block(read), feeds=None).size_bytes == read.nbytes


def _prepared(read: Array, fed: Array) -> Prepared:
    return Prepared(block=_block(read), feeds={"x": fed})


def _block(read: Array) -> Block:
    return Block(start=0, count=8, rows=range(8), columns={"array": read, "key": list("abcdefgh")}, failed=[])
