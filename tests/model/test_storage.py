"""Saved models: whole or refused, whatever happens to the save or to the files."""

import errno
import hashlib
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import disturbed_saves
import pytest
import torch
from disturbed_saves import strangers, whole_model
from safetensors.torch import load_file, save_file

from scale_invariant_attention.model import storage
from scale_invariant_attention.model.storage import SavedModelError, load, save

CONFIG = {"scheme": "rope", "layers": 2, "rate": 1e-3, "dims": [1, 2], "nested": {"none": None}}


def weights_files(folder):
    return sorted(folder.glob("model-*.safetensors"))


def document(folder):
    return json.loads((folder / "config.json").read_text())


def rewrite(folder, **changed):
    (folder / "config.json").write_text(json.dumps(document(folder) | changed))


def put_weights(folder, data):
    """Bytes in the place of the one weights file, with size and hash that fit them."""
    (file,) = weights_files(folder)
    file.write_bytes(data)
    (entry,) = document(folder)["weights"]
    sha256 = hashlib.sha256(data).hexdigest()
    rewrite(folder, weights=[entry | {"bytes": len(data), "sha256": sha256}])


@pytest.fixture
def folder(tmp_path):
    """A saved model of two tensors."""
    save(tmp_path / "model", CONFIG, {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(2)})
    return tmp_path / "model"


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8]


@pytest.mark.parametrize("shard_bytes", [1, 100, 5 * 10**9])
def test_every_bit_comes_back(tmp_path, shard_bytes):
    random_bytes = torch.randint(0, 256, (8 * 60,), dtype=torch.uint8)
    tensors = {}
    for dtype in DTYPES:
        # Random bits: NaN payloads, infinities and subnormal numbers among them.
        values = random_bytes.view(dtype)[:60]
        tensors |= {
            f"{dtype} matrix": values.view(4, 15),
            f"{dtype} transposed": values.view(4, 15).T,
            f"{dtype} strided": values[::7],
            f"{dtype} strided number": values[::60],
            f"{dtype} scalar": values[3],
            f"{dtype} heads": values[:3].clone(),
            f"{dtype} empty": values[:0].view(0, 5),
            f"{dtype} expanded": values[:1].expand(4),
        }
    tensors["odd bytes"] = random_bytes[:7]
    tensors["mask"] = torch.tensor([True, False, True])
    tensors["parameter"] = torch.nn.Parameter(torch.randn(3))
    tensors["negated"] = torch.randn(3, dtype=torch.complex64).conj().imag
    tensors["negated number"] = torch.randn(1, dtype=torch.complex64).conj().imag
    tensors['näme "quoted" 名'] = torch.ones(1)
    tensors[""] = torch.ones(1)
    save(tmp_path, CONFIG, tensors, shard_bytes=shard_bytes)
    config, loaded = load(tmp_path)
    assert config == CONFIG
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        found = loaded[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        as_bytes = [torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for t in (found, tensor)]
        assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in as_bytes)), name
        assert not found.requires_grad


def test_a_model_without_weights(tmp_path):
    save(tmp_path, {}, {})
    assert load(tmp_path) == ({}, {})


def test_layout_and_names(folder):
    (file,) = weights_files(folder)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert file.name == f"model-{sha256[:8]}.safetensors"
    assert document(folder) == {
        "model_type": "scale-invariant-gpt",
        "format_version": 1,
        "config": CONFIG,
        "weights": [
            {
                "file": file.name,
                "bytes": file.stat().st_size,
                "sha256": sha256,
                "tensors": ["a", "b"],
            }
        ],
    }
    assert load_file(file)["a"].tolist() == torch.arange(12.0).view(3, 4).tolist()
    assert {path.name for path in folder.iterdir()} == {"config.json", file.name}


@pytest.mark.parametrize("padding", range(8))
def test_tensors_are_aligned_to_their_elements(tmp_path, padding):
    names = [f"{dtype}" + "x" * padding * (dtype == DTYPES[0]) for dtype in DTYPES]
    tensors = {n: torch.ones(3, dtype=d) for n, d in zip(names, reversed(DTYPES), strict=True)}
    save(tmp_path, {}, tensors)
    data = weights_files(tmp_path)[0].read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert start % 8 == 0
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_shards_hold_what_fits(tmp_path):
    tensors = {str(i): torch.full((10,), float(i)) for i in range(5)}  # 40 bytes each
    tensors["large"] = torch.zeros(100)
    tensors["last"] = torch.zeros(1)
    save(tmp_path, {}, tensors, shard_bytes=80)
    weights = document(tmp_path)["weights"]
    assert [entry["tensors"] for entry in weights] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
        ["large"],
        ["last"],
    ]
    for number, entry in enumerate(weights, start=1):
        assert entry["file"] == f"model-{entry['sha256'][:8]}-{number:05d}-of-00005.safetensors"


def test_loaded_tensors_are_not_tied_to_the_file(folder):
    _, tensors = load(folder)
    (file,) = weights_files(folder)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    assert tensors["b"].tolist() == [1, 1]
    tensors["b"] += 1


def test_loading_to_a_device_given_as_text_or_object(folder):
    for device in ("cpu", torch.device("cpu")):
        assert load(folder, device=device)[1]["a"].device.type == "cpu"


def test_a_save_removes_the_old_weights_and_nothing_else(folder):
    keep = ["notes.txt", "model.safetensors", "model-0123abcd.safetensors", ".saving-mine.json"]
    for name in keep:
        (folder / name).write_text("mine")
    old = folder / document(folder)["weights"][0]["file"]
    save(folder, {}, {"a": torch.zeros(3)})
    assert not old.exists()
    assert strangers(folder) == set(keep)
    assert all((folder / name).read_text() == "mine" for name in keep)


def test_saving_the_same_weights_again_keeps_them(folder):
    (file,) = weights_files(folder)
    save(folder, {"new": True}, load(folder)[1])
    assert weights_files(folder) == [file]
    assert load(folder)[0] == {"new": True}


def test_a_save_mends_a_corrupt_weights_file(folder):
    _, tensors = load(folder)
    (file,) = weights_files(folder)
    file.write_bytes(b"")
    save(folder, CONFIG, tensors)
    assert load(folder)[1].keys() == tensors.keys()


def test_the_file_of_an_old_model_is_not_overwritten_on_a_collision_of_names(folder, tmp_path):
    """The short hash is all of the name; here the old weights happen to have that of the new."""
    new = {"c": torch.arange(3.0)}
    save(tmp_path / "other", {}, new)
    (taken,) = weights_files(tmp_path / "other")
    (old,) = weights_files(folder)
    old = old.rename(folder / taken.name)
    (entry,) = document(folder)["weights"]
    rewrite(folder, weights=[entry | {"file": old.name}])
    assert load(folder)[0] == CONFIG

    before = old.read_bytes()
    replaced = []

    def note(original=os.replace):
        def replace(source, target):
            replaced.append(Path(target).name)
            if Path(target).name == "config.json":
                assert old.read_bytes() == before
            return original(source, target)

        return replace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", note())
        save(folder, {}, new)
    assert taken.name not in replaced and len(replaced) == 2
    assert load(folder)[1]["c"].tolist() == [0, 1, 2]
    assert not strangers(folder)


class Failing:
    """Raises at the n-th call, and counts."""

    def __init__(self, original, number):
        self.original, self.number, self.calls = original, number, 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        if self.calls == self.number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.original(*arguments, **keywords)


def fail_at(patch, step, number):
    """Make the n-th call of a step of saving fail; what counts the calls."""
    if step in ("fsync", "replace"):
        failing = Failing(getattr(os, step), number)
        patch.setattr(os, step, failing)
        return failing
    original_open = Path.open
    failing = Failing(lambda write, piece: write(piece), number)

    def open_failing(path, mode="r", *arguments, **keywords):
        if step == "open" and "x" in mode:
            failing(lambda _: None, None)
        file = original_open(path, mode, *arguments, **keywords)
        return WritesThrough(file, failing) if step == "write" and "x" in mode else file

    patch.setattr(Path, "open", open_failing)
    return failing


class WritesThrough:
    """A file whose writes go through a function."""

    def __init__(self, file, through):
        self.file, self.through = file, through

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, piece):
        return self.through(self.file.write, piece)


@pytest.mark.parametrize("over", ["an old model", "nothing"])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failure_at_any_step_leaves_the_old_model_and_no_partial_files(tmp_path, step, over):
    for number in range(1, 100):
        folder = tmp_path / str(number)
        if over == "an old model":
            disturbed_saves.save(folder, "first")
        with pytest.MonkeyPatch.context() as patch:
            failing = fail_at(patch, step, number)
            try:
                disturbed_saves.save(folder, "second")
            except OSError as error:
                assert error.errno == errno.ENOSPC
            else:
                break
        # The last sync of the folder is after the new model is in place.
        committed = step == "fsync" and (folder / "config.json").exists()
        if over == "an old model":
            name = whole_model(folder)
            assert name == "first" or committed
            assert not strangers(folder)
        elif committed:
            assert whole_model(folder) == "second"
        else:
            assert not folder.exists() or not list(folder.iterdir())
        disturbed_saves.save(folder, "second")
        assert whole_model(folder) == "second" and not strangers(folder)
    # Weights in two files, both lists of weights; pieces of each; config.json.
    assert failing.calls == number - 1 >= {"open": 3, "write": 6, "fsync": 6, "replace": 3}[step]
    assert whole_model(folder) == "second"


def test_an_unreadable_config_does_not_cost_the_weights(folder, monkeypatch):
    """Which weights are in use cannot be told then, so none are removed."""
    original, reads = storage._read_config_file, 0

    def read(path):
        nonlocal reads
        reads += path.name == "config.json"
        if reads > 1 and path.name == "config.json":
            raise OSError(errno.EMFILE, "Too many open files")
        return original(path)

    monkeypatch.setattr(storage, "_read_config_file", read)
    monkeypatch.setattr(os, "replace", Failing(os.replace, 1))
    with pytest.raises(OSError, match="No space"):
        save(folder, {}, {"a": torch.zeros(1)})
    monkeypatch.undo()
    assert load(folder)[0] == CONFIG
    save(folder, {}, {"a": torch.zeros(1)})
    assert not strangers(folder)


def test_old_weights_that_cannot_be_removed_are_removed_by_the_next_save(folder, monkeypatch):
    (old,) = weights_files(folder)
    monkeypatch.setattr(os, "unlink", Failing(os.unlink, 1))
    save(folder, {"new": 1}, {"a": torch.zeros(1)})
    assert load(folder)[0] == {"new": 1} and old.exists()
    monkeypatch.undo()
    save(folder, {"new": 2}, {"a": torch.zeros(2)})
    assert not strangers(folder)


def test_one_file_that_cannot_be_removed_does_not_keep_the_others(folder, monkeypatch):
    stale = {folder / f".saving-{digit * 16}.safetensors" for digit in "012"}
    for path in stale:
        path.write_bytes(b"")
    stuck = min(stale)
    original = os.unlink

    def unlink(path, *arguments, **keywords):
        if Path(path) == stuck:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(os, "unlink", unlink)
    save(folder, {}, {"a": torch.zeros(1)})
    assert strangers(folder) == {stuck.name}


def test_folders_that_cannot_be_synced_do_no_harm(folder, monkeypatch):
    original_sync, original_open = os.fsync, os.open

    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        return original_sync(descriptor)

    def open_but_parent(path, *arguments):
        if Path(path) == folder.parent:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original_open(path, *arguments)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "open", open_but_parent)
    save(folder, {"new": 1}, {"a": torch.zeros(1)})
    assert load(folder)[0] == {"new": 1}
    assert not strangers(folder)


def test_weights_are_on_disk_before_the_config_that_names_them(folder, monkeypatch):
    """Every new file is synced before it gets its name, and the folder before and after config.json."""
    events = []

    def note(step, describe):
        original = getattr(os, step)

        def noted(*arguments):
            events.append((step, describe(*arguments)))
            return original(*arguments)

        monkeypatch.setattr(os, step, noted)

    note("fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    note("replace", lambda source, target: (Path(source).stat().st_ino, Path(target).name))
    note("unlink", lambda path: Path(path).name)
    disturbed_saves.save(folder, "first")
    monkeypatch.undo()
    directory = ("fsync", folder.stat().st_ino)
    renames = [i for i, (step, _) in enumerate(events) if step == "replace"]
    for i in renames:
        inode, _ = events[i][1]
        assert ("fsync", inode) in events[:i]
    *_, last_weights, config = renames
    assert events[config][1][1] == "config.json" and len(renames) == 3
    assert directory in events[last_weights:config]
    removed = next(i for i, (step, _) in enumerate(events) if step == "unlink")
    assert directory in events[config:removed]


def test_torn_partial_files_of_a_killed_save_are_removed(folder, monkeypatch):
    (folder / ".saving-0123456789abcdef.json").write_text('{"model_type": "sca')
    (folder / ".saving-0123456789abcdef.safetensors").write_bytes(b"\0" * 100)
    original = storage.write_new_file

    def write(path, pieces):
        # Before anything is written, which may need the room.
        assert not list(folder.glob(".saving-0123456789abcdef.*"))
        return original(path, pieces)

    monkeypatch.setattr(storage, "write_new_file", write)
    save(folder, CONFIG, load(folder)[1])
    assert not strangers(folder)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_starved_and_simultaneous_saves_leave_a_whole_model(tmp_path):
    script = [sys.executable, disturbed_saves.__file__, str(tmp_path / "model")]
    source = Path(storage.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "survived\n", done.stderr


def test_a_flipped_bit_is_found(folder):
    (file,) = weights_files(folder)
    data, draw = file.read_bytes(), random.Random(0)
    for _ in range(200):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(SavedModelError, match=r"is corrupt: its SHA-256 .* records"):
            load(folder)
    file.write_bytes(data)
    load(folder)


def test_a_truncated_or_lengthened_file_is_found(folder):
    (file,) = weights_files(folder)
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        message = rf"has {length} bytes, but config.json records {len(data)}: it was truncated"
        with pytest.raises(SavedModelError, match=message):
            load(folder)
    file.write_bytes(data + b"\0")
    with pytest.raises(SavedModelError, match=rf"{len(data) + 1} bytes.*something was added"):
        load(folder)


def test_a_missing_weights_file_is_named(folder):
    (file,) = weights_files(folder)
    file.unlink()
    with pytest.raises(SavedModelError, match=rf"{file.name} is missing.*copy the whole folder"):
        load(folder)
    file.mkdir()
    with pytest.raises(SavedModelError, match="is missing"):
        load(folder)


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04 a zip of pickles", b"\x80\x02}q\x00.", b"\xff" * 64, b"\x08" + b"\0" * 7],
)
def test_a_foreign_file_is_refused(folder, data):
    put_weights(folder, data)
    with pytest.raises(SavedModelError, match="is no safetensors file"):
        load(folder)


def test_damaged_headers_are_refused_even_if_the_hash_fits(folder):
    (file,) = weights_files(folder)
    data, draw = file.read_bytes(), random.Random(0)
    header, refused = 8 + int.from_bytes(data[:8], "little"), 0
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            damaged[draw.randrange(header)] = draw.randrange(256)
        put_weights(folder, bytes(damaged))
        try:
            load(folder)
        except SavedModelError:
            refused += 1
    assert refused > 300


def test_missing_and_surplus_tensors_are_named(folder):
    (entry,) = document(folder)["weights"]
    rewrite(folder, weights=[entry | {"tensors": ["a", "b", "c"]}])
    with pytest.raises(SavedModelError, match=r"lacks 'c', which config.json records"):
        load(folder)
    rewrite(folder, weights=[entry | {"tensors": ["a"]}])
    with pytest.raises(SavedModelError, match=r"holds 'b', which config.json does not record"):
        load(folder)
    rewrite(folder, weights=[entry | {"tensors": [f"t{i}" for i in range(9)]}])
    with pytest.raises(SavedModelError, match=r"lacks 't0', .* 't4' and 4 more"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "../model-0123abcd.safetensors",
        "/etc/passwd",
        "sub/model-0123abcd.safetensors",
        "..\\model-0123abcd.safetensors",
        "C:model-0123abcd.safetensors",
        "model-0123abcd.safetensors\n",
        "model-0123abcd.safetensors/../../x",
        "config.json",
        "..",
        "",
        "notes.txt",
    ],
)
def test_weights_outside_the_folder_or_of_other_names_are_refused(folder, name):
    (entry,) = document(folder)["weights"]
    (folder / "notes.txt").write_text("mine")
    rewrite(folder, weights=[entry | {"file": name}])
    with pytest.raises(SavedModelError, match=r"only files .* in the folder itself are read"):
        load(folder)
    with pytest.raises(SavedModelError, match="save to another folder"):
        save(folder, {}, {})
    assert (folder / "notes.txt").read_text() == "mine"


BROKEN_CONFIGS = {
    b"": "is not JSON",
    b"{": "is not JSON",
    b"\xff\xfe\x00": "is not JSON",
    b"[" * 100_000: "is not JSON",
    b"[]": "must hold a JSON object, got list",
    b"null": "must hold a JSON object, got NoneType",
    b"{}": "model_type 'scale-invariant-gpt', got None",
    b'{"model_type": "llama", "hidden_size": 4096}': "got 'llama'; load such a model with",
}


@pytest.mark.parametrize("data", BROKEN_CONFIGS)
def test_a_broken_or_foreign_config_is_refused_and_not_overwritten(folder, data):
    (folder / "config.json").write_bytes(data)
    with pytest.raises(SavedModelError, match=BROKEN_CONFIGS[data]):
        load(folder)
    files = set(folder.iterdir())
    with pytest.raises(SavedModelError, match=r"save to another folder, or remove its config.json"):
        save(folder, {}, {})
    assert (folder / "config.json").read_bytes() == data
    assert set(folder.iterdir()) == files


ENTRY = {"file": "model-0123abcd.safetensors", "bytes": 1, "sha256": "0", "tensors": ["a"]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format_version": 2}, r"format_version 2, .* up to 1; update scale-invariant-attention"),
        ({"format_version": 0}, "format_version from 1 to 1, got 0"),
        ({"format_version": True}, "format_version from 1 to 1, got True"),
        ({"format_version": "1"}, "format_version from 1 to 1, got '1'"),
        ({"format_version": None}, "format_version from 1 to 1, got None"),
        ({"config": []}, "must have an object 'config'"),
        ({"weights": None}, "and a list 'weights'"),
        ({"weights": {}}, "and a list 'weights'"),
        ({"weights": ["model.safetensors"]}, "must give file, bytes, sha256 and tensors"),
        ({"weights": [ENTRY | {"bytes": "1"}]}, "must give file, bytes, sha256 and tensors"),
        ({"weights": [ENTRY | {"tensors": [1]}]}, "must give file, bytes, sha256 and tensors"),
        ({"weights": [ENTRY, ENTRY | {"tensors": ["b"]}]}, "a weights file or a tensor twice"),
        (
            {"weights": [ENTRY, ENTRY | {"file": "model-0123abce.safetensors"}]},
            "a weights file or a tensor twice",
        ),
    ],
)
def test_a_wrong_entry_of_config_is_named(folder, changed, message):
    rewrite(folder, **changed)
    with pytest.raises(SavedModelError, match=message):
        load(folder)


def test_where_there_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; give"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config.json; give the folder") as found:
        load(tmp_path)
    assert "pickled" not in str(found.value)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(
        FileNotFoundError, match=r"'pytorch_model.bin', which may be pickled and is never"
    ):
        load(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"is a file; give the folder"):
        load(tmp_path / "pytorch_model.bin")
    with pytest.raises(NotADirectoryError, match="folder must be a folder, got the file"):
        save(tmp_path / "pytorch_model.bin", {}, {})
    (tmp_path / "config.json").mkdir()
    for action in (load, lambda folder: save(folder, {}, {})):
        with pytest.raises(SavedModelError, match=r"config.json must be a file, got a folder"):
            action(tmp_path)


def test_weights_of_other_libraries_cannot_pass_for_ours(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SavedModelError, match="got 'gpt2'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": [1]}, TypeError, "config must be a dict, got list"),
        ({"config": {"a": torch.ones(1)}}, ValueError, "config must hold what JSON can hold"),
        ({"config": {"a": float("nan")}}, ValueError, "config must hold what JSON can hold"),
        ({"tensors": {"a": [1.0]}}, TypeError, "'a' must be a tensor, got list"),
        ({"tensors": {1: torch.ones(1)}}, ValueError, "name must be a Unicode string .* got 1"),
        ({"tensors": {"\ud800": torch.ones(1)}}, ValueError, "name must be a Unicode string"),
        ({"tensors": {"__metadata__": torch.ones(1)}}, ValueError, "other than '__metadata__'"),
        ({"tensors": {"a": torch.ones(1).cfloat()}}, ValueError, "'a' .* got torch.complex64"),
        ({"tensors": {"a": torch.ones(1, device="meta")}}, ValueError, "'a' must be a dense"),
        ({"tensors": {"a": torch.eye(3).to_sparse()}}, ValueError, "'a' must be a dense"),
        ({"shard_bytes": 0}, ValueError, "shard_bytes >= 1, got 0"),
        ({"shard_bytes": 1.5}, TypeError, "shard_bytes must be an integer"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_written(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path / "model", **({"config": {}, "tensors": {}} | arguments))
    assert not (tmp_path / "model").exists()
