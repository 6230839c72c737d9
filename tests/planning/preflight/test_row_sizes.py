"""What rows take on their way: what was read, results until they are written, and copies that are written."""

import pytest
from msgspec.structs import replace

from ortdeploy.facts.preflight import RowRoom
from ortdeploy.planning.preflight.row_sizes import RowSizes

KIB, MIB = 1024, 1024 * 1024
ROWS = 10_000

LARGE = RowSizes(
    batch=100,
    runs=1,
    read=10 * KIB,
    joined=False,
    result=100 * KIB,
    read_ahead=0,
    rows_per_part=100_000,
    block_copies=0,
    piece=0,
    gathered=0,
    part_copies=0,
    on_disk=True,
)
"""Batches of about 1 MiB whose results take 10."""

SMALL = replace(LARGE, read=KIB, result=8 * KIB)


def test_results_are_there_until_they_are_written() -> None:
    assert LARGE.bytes(ROWS) == 3 * 100 * 110 * KIB
    assert LARGE.bytes(50) == 50 * 110 * KIB


def test_results_of_several_batches_are_joined() -> None:
    assert SMALL.bytes(ROWS) == pytest.approx(8 * MIB, abs=9 * KIB)


def test_text_is_made_of_all_batches_of_a_block() -> None:
    assert replace(SMALL, block_copies=20).bytes(ROWS) - SMALL.bytes(ROWS) == 20 * (8 * MIB // 3 // (9 * KIB)) * 8 * KIB
    assert replace(LARGE, block_copies=20).bytes(ROWS) - LARGE.bytes(ROWS) == 20 * 100 * 100 * KIB


def test_text_is_made_of_a_piece_of_a_block_or_of_a_row() -> None:
    pieces = replace(SMALL, block_copies=20, piece=256 * KIB)
    assert pieces.bytes(ROWS) - SMALL.bytes(ROWS) == 20 * 256 * KIB
    assert replace(pieces, batch=10).bytes(10) - replace(SMALL, batch=10).bytes(10) == 20 * 10 * 8 * KIB
    assert replace(pieces, piece=KIB).bytes(ROWS) - SMALL.bytes(ROWS) == 20 * 8 * KIB


def test_a_short_job_is_over_before_its_blocks_are_large() -> None:
    text = replace(SMALL, block_copies=20)
    assert text.bytes(500) - SMALL.bytes(500) == 20 * (500 - 2 * 100) * 8 * KIB
    assert text.bytes(250) - SMALL.bytes(250) == 20 * 100 * 8 * KIB
    four = replace(SMALL, runs=4)  # the third block may be large, however many sessions could take others
    assert replace(four, block_copies=20).bytes(400) - four.bytes(400) == 20 * (400 - 2 * 100) * 8 * KIB


def test_what_is_gathered_is_copied_at_once_and_holds_its_batches() -> None:
    table = replace(LARGE, gathered=4 * MIB, block_copies=2)
    assert table.bytes(ROWS) - LARGE.bytes(ROWS) == 3 * 4 * MIB
    assert replace(SMALL, gathered=4 * MIB).bytes(ROWS) - SMALL.bytes(ROWS) == 4 * MIB


def test_results_that_wait_and_those_of_a_part_that_is_held_are_no_more_than_all() -> None:
    waiting = SMALL.bytes(ROWS) // (9 * KIB)
    held = replace(SMALL, part_copies=1)
    assert held.bytes(ROWS) - SMALL.bytes(ROWS) == (ROWS - waiting) * 8 * KIB
    assert replace(held, rows_per_part=1000).bytes(ROWS) - SMALL.bytes(ROWS) == 1000 * 8 * KIB


def test_a_file_is_read_ahead_in_pieces_of_whole_batches() -> None:
    ahead = replace(LARGE, read_ahead=4 * MIB)
    assert ahead.bytes(ROWS) - LARGE.bytes(ROWS) == 2 * 4 * 100 * 10 * KIB
    assert ahead.bytes(500) - LARGE.bytes(500) == (500 - 3 * 100) * 10 * KIB


def test_each_session_has_two_large_blocks_and_one_more_is_read_or_written() -> None:
    assert replace(LARGE, result=None, read=30 * KIB).bytes(ROWS) == 3 * 100 * 30 * KIB
    assert replace(LARGE, result=None, read=30 * KIB, runs=2).bytes(ROWS) == 5 * 100 * 30 * KIB


def test_what_the_first_rows_take_counts_where_a_graph_leaves_sizes_open() -> None:
    pictures = LARGE.of_rows(RowRoom(read=50 * KIB, fed=30 * KIB))
    assert pictures.bytes(ROWS) == 3 * 100 * 180 * KIB
    assert LARGE.of_rows(RowRoom(read=KIB)).bytes(ROWS) == LARGE.bytes(ROWS)


def test_a_row_is_decoded_and_then_a_block_is_prepared() -> None:
    rows = RowRoom(read=10 * KIB, made=30 * KIB)
    assert LARGE.of_rows(rows).bytes(ROWS) - LARGE.bytes(ROWS) == 100 * 30 * KIB
    assert LARGE.of_rows(replace(rows, by_row=True)).bytes(ROWS) - LARGE.bytes(ROWS) == 30 * KIB
    decoded = LARGE.of_rows(replace(rows, by_row=True, decoding=40 * KIB))
    assert decoded.bytes(ROWS) - LARGE.bytes(ROWS) == 40 * KIB


def test_a_block_that_is_joined_is_there_twice_more_for_a_while() -> None:
    joined = replace(LARGE, joined=True)
    assert joined.bytes(ROWS) - LARGE.bytes(ROWS) == 2 * 100 * 10 * KIB
    rows = RowRoom(read=10 * KIB, made=30 * KIB)
    assert joined.of_rows(rows).bytes(ROWS) == LARGE.of_rows(rows).bytes(ROWS)


def test_what_a_step_takes_for_one_row_at_a_time_counts_once() -> None:
    rows = RowRoom(read=10 * KIB, made=30 * KIB, scratch=7 * KIB)
    assert LARGE.of_rows(rows).bytes(ROWS) - LARGE.bytes(ROWS) == (100 * 30 + 7) * KIB


def test_blocks_that_are_prepared_beside_one_come_on_top_while_others_are_decoded() -> None:
    rows = RowRoom(read=10 * KIB, made=30 * KIB, scratch=7 * KIB, decoding=40 * KIB, beside=9 * MIB)
    alone = LARGE.bytes(ROWS)
    assert LARGE.of_rows(rows).bytes(ROWS) - alone == (40 + 100 * 30 + 7) * KIB + 9 * MIB
    assert LARGE.of_rows(rows).bytes(110) - LARGE.bytes(110) == (40 + 100 * 30 + 7) * KIB + 10 * (10 + 30 + 7) * KIB
    assert LARGE.of_rows(rows).bytes(100) - LARGE.bytes(100) == (100 * 30 + 7) * KIB
