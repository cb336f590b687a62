import pytest

from scale_invariant_attention.data import TextFiles, documents, text_files


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "texts"
    for name, text in {
        "b.txt": b"second",
        "a.md": b"first",
        "deep/er/c.txt": b"third",
        "deep.txt": b"before deep/",
        ".hidden.txt": b"no",
        ".git/config.txt": b"no",
        "empty.txt": b"",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return root


def names(found):
    return [name for name, _ in found.files]


def test_folders_are_taken_whole_and_sorted(folder):
    assert names(TextFiles(folder)) == ["a.md", "b.txt", "deep.txt", "deep/er/c.txt"]


def test_only_some_suffixes(folder):
    assert names(TextFiles([folder], suffixes=(".md",))) == ["a.md"]
    assert len(TextFiles([folder], suffixes=(".md", ".txt"))) == 4


def test_a_file_that_is_named_needs_no_suffix(folder):
    assert names(TextFiles([folder / "a.md"], suffixes=(".txt",))) == ["a.md"]
    assert names(TextFiles(str(folder / ".hidden.txt"))) == [".hidden.txt"]


def test_paths_keep_their_order_and_files_count_once(folder):
    found = TextFiles([folder / "deep", folder / "b.txt", folder, folder / "deep" / ".." / "b.txt"])
    assert names(found) == ["er/c.txt", "b.txt", "a.md", "deep.txt"]


def test_documents_can_be_skipped(folder):
    found = TextFiles(folder)
    everything = list(found.documents())
    assert [text for _, text in everything] == [b"first", b"second", b"before deep/", b"third"]
    assert list(found.documents(3)) == everything[3:]


def test_links_in_a_circle_and_to_nowhere_do_no_harm(folder):
    (folder / "deep" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    assert len(TextFiles(folder)) == 4


def test_identity_depends_on_names_and_sizes_and_not_on_the_folder(folder, tmp_path):
    before = TextFiles(folder).identity
    assert TextFiles(folder).identity == before
    moved = folder.rename(tmp_path / "moved")
    assert TextFiles(moved).identity == before
    (moved / "a.md").write_bytes(b"first, longer")
    longer = TextFiles(moved).identity
    assert longer != before
    (moved / "a.md").rename(moved / "aa.md")
    assert TextFiles(moved).identity not in (before, longer)


def test_a_path_without_files_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*nowhere"):
        TextFiles([folder, tmp_path / "nowhere"])
    (tmp_path / "void").mkdir()
    with pytest.raises(FileNotFoundError, match=r"found no file with text in .*void"):
        TextFiles([tmp_path / "void"])
    with pytest.raises(FileNotFoundError, match=r"ends in \.rst or \.tex with text"):
        TextFiles([folder], suffixes=(".rst", ".tex"))
    with pytest.raises(FileNotFoundError, match="with text in nothing"):
        TextFiles([])


def test_a_stream_of_bytes(folder):
    stream = text_files(folder)
    assert stream.vocab_size == 256
    assert bytes(stream.read(0, len(stream))) == b"\0first\0second\0before deep/\0third"
    assert len(stream.document_starts) == 4


def test_splits_share_nothing_not_even_copies(tmp_path):
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_bytes(f"text {number % 50}".encode())
    sides = {
        split: [
            bytes(document)
            for document in documents(text_files(tmp_path, split=split, validation=0.3))
        ]
        for split in ("train", "validation")
    }
    assert not set(sides["train"]) & set(sides["validation"])
    assert len(sides["train"]) + len(sides["validation"]) == 200
    assert sides["validation"]


def test_a_split_without_files_is_an_error(folder):
    with pytest.raises(
        ValueError, match="split='validation' with validation=0 leaves nothing of 4"
    ):
        text_files(folder, split="validation", validation=0)
    with pytest.raises(ValueError, match="fraction from 0 to 1, got 2"):
        text_files(folder, split="train", validation=2)
    with pytest.raises(ValueError, match="got 'dev'"):
        text_files(folder, split="dev")


def test_of_a_single_file_the_last_tenth_is_held_out(tmp_path):
    text = "".join(f"Line {number} of the text.\n" for number in range(1000)).encode()
    (tmp_path / "input.txt").write_bytes(text)
    for where in (tmp_path / "input.txt", tmp_path):
        train, held_out = (text_files(where, split=it) for it in ("train", "validation"))
        parts = [bytes(it.read(1, len(it))) for it in (train, held_out)]
        assert b"".join(parts) == text
        assert len(parts[1]) == round(len(text) / 10)
        assert len(text_files(where)) == 1 + len(text)


def test_a_single_file_can_be_too_short_to_divide(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"leaves nothing of the file .*input\.txt"):
        text_files(tmp_path, split="validation")
