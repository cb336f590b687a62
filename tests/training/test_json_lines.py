import errno
import json
import math
import resource

import pytest

from scale_invariant_attention.training.runs import (
    DamagedLogError,
    JsonLines,
    read_json_lines,
    repair_json_lines,
)


def write(path, steps):
    with JsonLines(path) as log:
        for step in steps:
            log.append({"step": step, "loss": step / 3})


def test_lines_can_be_read_as_soon_as_they_are_added(tmp_path):
    path = tmp_path / "log"
    with JsonLines(path) as log:
        for step in range(3):
            log.append({"step": step, "loss": step / 3})
            assert read_json_lines(path)[-1] == {"step": step, "loss": step / 3}
    assert len(read_json_lines(path)) == 3
    assert len(path.read_bytes().splitlines()) == 3


def test_an_existing_log_is_extended(tmp_path):
    write(tmp_path / "log", [1])
    write(tmp_path / "log", [2])
    assert [line["step"] for line in read_json_lines(tmp_path / "log")] == [1, 2]


def test_losses_that_are_no_numbers_are_json_and_come_back(tmp_path):
    line = {"step": 1, "loss": math.nan, "by length": {"4k": math.inf, "all": [-math.inf, 1.5]}}
    with JsonLines(tmp_path / "log") as log:
        log.append(line)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads((tmp_path / "log").read_text(), parse_constant=refuse)
    (back,) = read_json_lines(tmp_path / "log")
    assert math.isnan(back["loss"])
    assert back["by length"] == line["by length"]


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_torn_line_is_ignored_and_repaired(tmp_path, cut):
    path = tmp_path / "log"
    write(path, [1, 22])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    # Cut by one, the line lacks only its end.
    steps = [1, 22] if cut == 1 else [1]
    assert [line["step"] for line in read_json_lines(path)] == steps
    repair_json_lines(path)
    write(path, [3])
    assert [line["step"] for line in read_json_lines(path)] == [*steps, 3]


@pytest.mark.parametrize(
    ("last_step", "left"), [(0, []), (1, [1]), (2, [1, 2, 2]), (9, [1, 2, 2, 3])]
)
def test_lines_after_the_last_step_are_removed(tmp_path, last_step, left):
    path = tmp_path / "log"
    write(path, [1, 2, 2, 3])
    before = path.read_bytes().splitlines(keepends=True)
    repair_json_lines(path, last_step=last_step)
    assert path.read_bytes() == b"".join(before[: len(left)])
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_there_may_be_no_log_yet(tmp_path):
    repair_json_lines(tmp_path / "log", last_step=3)
    assert read_json_lines(tmp_path / "log") == []
    assert list(tmp_path.iterdir()) == []


NESTED = b'{"a":' * 9_000 + b"1" + b"}" * 9_000


@pytest.mark.parametrize(
    "line", [b"", b"{", b"3", b"\x00\x00", b'{"step": 1}}', b"[" * 99_999, NESTED]
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "log"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    before = path.read_bytes()
    for action in (read_json_lines, repair_json_lines):
        with pytest.raises(DamagedLogError, match="log is damaged: line 2 is"):
            action(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ['"1"', "[1]", "null", "-1", "1.5", "true"])
def test_a_step_that_is_none_is_named(tmp_path, step):
    path = tmp_path / "log"
    path.write_text(f'{{"step": {step}}}\n')
    with pytest.raises(DamagedLogError, match=r"log is damaged: step must .*; restore it"):
        repair_json_lines(path, last_step=3)


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path):
    path = tmp_path / "log"
    write(path, [1])
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with JsonLines(path) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, before[1]))
        try:
            with pytest.raises(OSError, match="log could not be extended") as caught:
                log.append({"step": 2, "loss": 0.5})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.errno == errno.EFBIG
        assert path.read_bytes() == whole
        log.append({"step": 3})
    assert [line["step"] for line in read_json_lines(path)] == [1, 3]


def test_a_line_that_is_not_json_is_refused_whole(tmp_path):
    with JsonLines(tmp_path / "log") as log:
        with pytest.raises(TypeError):
            log.append({"step": 1, "loss": object()})
        assert (tmp_path / "log").read_bytes() == b""
