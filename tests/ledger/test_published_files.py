"""Which files of an output the jobs that read its rows still need."""

import pytest

from ortdeploy.facts.data import FileState
from ortdeploy.ledger.published_files import PublishedFile, Reader
from ortdeploy.ledger.records import Revision

READ = FileState(path="out/part-00000000.jsonl", size=10, mtime_ns=1)
FILE = Revision(revision=1, file="part-00000000.r1.jsonl", bytes=10, rows=(1,))


@pytest.mark.parametrize(
    ("reader", "needs"),
    [
        (Reader(job="b"), True),
        (Reader(job="b", through=frozenset({READ})), False),
        (Reader(job="b", through=frozenset({READ}), failed=frozenset({READ.path})), True),
        (Reader(job="b", through=frozenset({FileState(path=READ.path, size=11, mtime_ns=2)})), True),
    ],
    ids=["has read nothing", "has finished it", "has failed rows of it", "has finished it as it was before"],
)
def test_a_file_is_needed_until_it_is_finished_and_no_row_of_it_has_failed(reader: Reader, needs: bool) -> None:
    assert reader.needs(PublishedFile(state=READ, file=FILE)) is needs
