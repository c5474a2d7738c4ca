"""What is where recorded files lie: nothing is said to be missing that only cannot be read."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from cudamem_testing.show.places import content_of, mode_of


def test_of_a_file_and_of_none(tmp_path: Path) -> None:
    file = tmp_path / "known.jsonl"
    file.write_bytes(b"{}")
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert (content_of(file), stat.S_ISREG(mode_of(file))) == (b"{}", True)
    assert stat.S_ISDIR(mode_of(tmp_path))
    for missing in (tmp_path / "none", tmp_path / "none" / "file", file / "below", tmp_path / "link"):
        assert (content_of(missing), mode_of(missing)) == (None, 0)


def test_what_cannot_be_told_is_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(IsADirectoryError):
        content_of(tmp_path)
    for path, number in ((loop, errno.ELOOP), (tmp_path / ("x" * 256), errno.ENAMETOOLONG)):
        for read in (content_of, mode_of):
            with pytest.raises(OSError, match=rf"^\[Errno {number}\]"):
                read(path)
