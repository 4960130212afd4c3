"""A user's files and folders: bytes as they lie on the disk, in one order, or a refusal by name."""

import hashlib
import os

import numpy as np
import pytest

from dormouse.data.files import list_files, read_source, sha256_of
from dormouse.errors import DataError

NINE = bytes([0xEF, 0xBB, 0xBF, 0x61, 0x0D, 0x0A, 0x62, 0x00, 0xFF])


def test_nine_awkward_bytes_arrive_as_they_are(tmp_path):
    (tmp_path / "nine").write_bytes(NINE)
    data = read_source("data", tmp_path / "nine").data
    assert data.tolist() == [239, 187, 191, 97, 13, 10, 98, 0, 255]


def test_a_single_file_is_mapped_and_cannot_be_written_to(tmp_path):
    (tmp_path / "nine").write_bytes(NINE)
    data = read_source("data", tmp_path / "nine").data
    assert isinstance(data, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_a_folder_is_joined_in_the_order_of_relative_paths_as_bytes(tmp_path):
    names = ["b.txt", "a/z.txt", "a/b/c", "B.txt", "\u00e9.txt", "a.txt"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() + b"\r\n")
    source = read_source("data", tmp_path)
    expected = sorted(names, key=os.fsencode)
    assert expected == ["B.txt", "a.txt", "a/b/c", "a/z.txt", "b.txt", "\u00e9.txt"]
    assert source.data.tobytes() == b"".join(name.encode() + b"\r\n" for name in expected)
    assert [source.data.tobytes()[start:][:1] for start in source.starts] == [name.encode()[:1] for name in expected]


def test_names_that_start_with_a_dot_are_left_out(tmp_path):
    for name in (".git/config", "kept", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert list_files(tmp_path) == [tmp_path / "kept"]


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data=.*nothing here: there is no such file"):
        read_source("data", tmp_path / "nothing here")


def test_a_folder_without_files_is_refused(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match=r"eval=.* is a folder without files"):
        read_source("eval", tmp_path)


def test_an_empty_file_is_refused_with_its_size(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match=r"data=.*empty is empty \(0 bytes\)"):
        read_source("data", tmp_path / "empty")
    with pytest.raises(DataError, match=r"all 1 files in it are empty \(0 bytes\)"):
        read_source("data", tmp_path)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        read_source("data", tmp_path / "pipe")


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match=r"data=.*loop"):
        read_source("data", tmp_path / "loop")


def test_an_unreadable_file_is_refused_with_the_reason(tmp_path, monkeypatch):
    # The superuser may read everything, so the refusal of the operating system is played back.
    (tmp_path / "secret").write_bytes(NINE)

    def denied(path, mode="r"):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(DataError, match=r"data=.*secret cannot be read \(Permission denied\)"):
        read_source("data", tmp_path / "secret")


def test_the_hash_is_that_of_the_whole_stream():
    raw = np.random.default_rng(0).integers(0, 256, (1 << 22) + 5, dtype=np.uint8)
    assert sha256_of(raw) == hashlib.sha256(raw.tobytes()).hexdigest()
    # SHA-256 of "abc", FIPS 180-2 appendix B.1
    assert sha256_of(np.frombuffer(b"abc", dtype=np.uint8)).startswith("ba7816bf8f01cfea414140de5dae2223")
