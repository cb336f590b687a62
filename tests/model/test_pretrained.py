"""Pretrained models by name: found in folders and caches, downloaded, verified, or refused."""

import shutil
import socket

import pytest
import torch
from shard_server import Answer, running
from tiny_pretrained import NAME, tiny_miniature, write_pretrained

from scale_invariant_attention.files import download
from scale_invariant_attention.model import (
    GPT,
    SavedModelError,
    find_pretrained,
    pretrained,
    pretrained_models,
)

FILES = {"README.md", "config.json", "record.json"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_pretrained(folder, tiny_miniature())
    return folder


@pytest.fixture
def machine(written, tmp_path, monkeypatch):
    """A machine that knows the list of models, and has none: the folder it works in, and its cache."""
    monkeypatch.setattr(pretrained, "LIST", written / "pretrained.json")
    monkeypatch.setattr(pretrained, "__file__", str(tmp_path / "lib" / "a" / "b" / "pretrained.py"))
    monkeypatch.setattr(pretrained, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("SIA_PRETRAINED", raising=False)
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def server(written):
    folder = written / "pretrained" / NAME
    with running({f"{NAME}-{it.name}": it.read_bytes() for it in folder.iterdir()}) as state:
        yield state


def test_the_list_has_hashes_and_measurements(machine):
    [model] = pretrained_models().values()
    assert (model.name, model.scheme, model.train_length, model.measured) == (
        NAME,
        "rope",
        128,
        "loss",
    )
    assert set(model.by_length) == {32, 64}
    weights = model.files.keys() - FILES
    assert len(weights) == 1 and model.files.keys() > FILES
    # Half precision, beside a few kilobytes.
    size = model.files[weights.pop()].bytes
    assert 2 * model.parameters < size < 2 * model.parameters + 2000


def test_a_folder_is_used_as_it_is(written, machine, monkeypatch):
    given = written / "pretrained"
    assert find_pretrained(NAME, source=given) == given / NAME
    monkeypatch.setenv("SIA_PRETRAINED", str(given))
    assert find_pretrained(NAME) == given / NAME
    model = GPT.from_pretrained(NAME)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.config == GPT.from_pretrained(given / NAME).config


def test_the_folder_here_comes_before_the_repository_and_the_cache(written, machine, monkeypatch):
    repository = machine / "repository"
    monkeypatch.setattr(pretrained, "__file__", str(repository / "src" / "a" / "b" / "c.py"))
    repository.mkdir()
    (repository / "pyproject.toml").touch()
    places = [machine / "work", repository, machine / "cache"]
    for place in reversed(places):
        shutil.copytree(written / "pretrained", place / "pretrained")
        assert find_pretrained(NAME) == place / "pretrained" / NAME
        assert pretrained_models()[NAME].found_in() == place / "pretrained" / NAME


def test_a_folder_of_that_name_is_not_mistaken_for_the_model(written, machine):
    shutil.copytree(written / "pretrained" / NAME, machine / "work" / NAME)
    (machine / "work" / NAME / "README.md").unlink()
    GPT.from_pretrained(NAME)


@pytest.mark.parametrize("file", ["config.json", "README.md", "weights"])
def test_a_damaged_file_is_refused(written, machine, file):
    shutil.copytree(written / "pretrained", machine / "work" / "pretrained")
    folder = machine / "work" / "pretrained" / NAME
    path = next(folder.glob("*.safetensors")) if file == "weights" else folder / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SavedModelError, match=rf"{path.name} is corrupt: .* Restore .*{NAME}, or"):
        GPT.from_pretrained(NAME)


def test_downloads_are_verified_and_kept(written, machine, server):
    notices = []
    folder = find_pretrained(NAME, source=server.url, notice=notices.append)
    assert folder == machine / "cache" / "pretrained" / NAME
    assert notices[0].startswith(f"Downloading {server.url}/{NAME}-")
    for path in (written / "pretrained" / NAME).iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    asked = len(server.requests)
    assert asked == len(pretrained_models()[NAME].files)
    assert find_pretrained(NAME, source=server.url) == folder
    # Once there, it needs no network.
    assert find_pretrained(NAME) == folder
    assert len(server.requests) == asked


def test_an_interrupted_download_resumes(machine, server):
    server.answers = [Answer(cut_after=100), *[Answer(status=503)] * 3]
    with pytest.raises(FileNotFoundError, match=r"its download failed: .*503"):
        find_pretrained(NAME, source=server.url)
    first = server.requests[0][0]
    find_pretrained(NAME, source=server.url)
    assert (first, "bytes=100-") in server.requests


def test_a_damaged_cache_is_downloaded_again(machine, server):
    folder = find_pretrained(NAME, source=server.url)
    (folder / "config.json").write_text("{}")
    find_pretrained(NAME, source=server.url)
    assert server.requests[-1] == (f"{NAME}-config.json", None)


def test_other_content_than_was_released_is_refused(machine, server):
    name = f"{NAME}-record.json"
    server.files[name] = server.files[name][:-1] + b" "
    with pytest.raises(FileNotFoundError, match="is corrupt: its SHA-256"):
        find_pretrained(NAME, source=server.url)
    assert not (machine / "cache" / "pretrained" / NAME / "record.json").exists()


def test_without_a_network_the_error_names_the_fix(machine):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        message = (
            rf"{NAME} is not in .*cache.pretrained, and its download failed: .*no connection to "
            rf".* Get the folder pretrained/ of the repository, and set SIA_PRETRAINED to its path"
        )
        with pytest.raises(FileNotFoundError, match=message):
            find_pretrained(NAME, source=url)


def test_the_release_of_this_version_is_the_default(machine, server, monkeypatch):
    monkeypatch.setattr(pretrained, "release_url", lambda: server.url)
    GPT.from_pretrained(NAME)
    assert len(server.requests) == len(pretrained_models()[NAME].files)


def test_the_address_of_the_release_is_that_of_the_metadata(monkeypatch):
    from email.message import Message

    about = Message()
    about["Version"] = "1.2.3"
    about["Project-URL"] = "Paper, https://arxiv.org/abs/2505.17083"
    monkeypatch.setattr(pretrained, "metadata", lambda name: about)
    assert pretrained.release_url() is None
    about["Project-URL"] = "Repository, https://example.org/us/it/"
    assert pretrained.release_url() == "https://example.org/us/it/releases/download/v1.2.3"


def test_a_package_without_an_address_says_so(machine, monkeypatch):
    monkeypatch.setattr(pretrained, "release_url", lambda: None)
    message = r"not in .*work.pretrained or .*cache.pretrained, and this package has no address"
    with pytest.raises(FileNotFoundError, match=message):
        GPT.from_pretrained(NAME)


def test_an_empty_folder_is_not_replaced_by_a_download(machine, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"is not in .*nothing, and nowhere else was searched"
    ):
        find_pretrained(NAME, source=tmp_path / "nothing")


def test_an_unknown_name_gets_a_suggestion(machine):
    with pytest.raises(ValueError, match=rf"'sia-mini-rop' \(did you mean '{NAME}'\?\)"):
        GPT.from_pretrained("sia-mini-rop")
    with pytest.raises(FileNotFoundError, match="there is no folder mini-rope"):
        GPT.from_pretrained("mini-rope")


def test_only_http_is_downloaded_from(machine):
    with pytest.raises(ValueError, match="SIA_PRETRAINED must begin with https"):
        find_pretrained(NAME, source="ftp://example.org")
