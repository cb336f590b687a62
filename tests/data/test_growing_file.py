import pytest

from scale_invariant_attention.data.growing_file import partial_name, whole_file


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "file.bin"
    with whole_file(path) as file:
        file.write(b"abc")
        assert not path.exists()
    assert path.read_bytes() == b"abc"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), whole_file(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    with whole_file(path) as file:
        file.write(b"n")
    assert path.read_bytes() == b"n"
    assert not partial_name(path).exists()
