"""What a process writes down about the shards that it makes, for notes of crashes, is no reason to fail."""

from pathlib import Path

from ortdeploy.ledger.output_lock import noted_shards, shard_of

NAMES = [shard_of("../out", "1/2"), shard_of("../out", "2/2")]


def test_the_files_of_shards_are_gone_after_the_work(tmp_path: Path) -> None:
    with noted_shards(tmp_path, NAMES) as files:
        assert [file.is_file() for file in files] == [True, True]
    assert [file.exists() for file in files] == [False, False]


def test_a_file_that_cannot_be_removed_stays_and_the_others_go(tmp_path: Path) -> None:
    with noted_shards(tmp_path, NAMES) as files:
        files[0].unlink()
        files[0].mkdir()  # which unlink refuses, as Windows refuses a file that another process has open
    assert [file.exists() for file in files] == [True, False]


def test_a_state_directory_that_cannot_be_written_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with noted_shards(tmp_path / "state", NAMES) as files:
        assert files == []
