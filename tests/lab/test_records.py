"""Records: every file of the repository is read and written back, and damage is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scale_invariant_attention.lab.records import read_record, record_text, write_record
from scale_invariant_attention.training import TrainingConfig

RESULTS = Path(__file__).parents[2] / "results"
LOSS = RESULTS / "mini-500" / "rope-seed-0.json"


def kind_of(path):
    """The class of the configuration of a record."""
    if not path.name.startswith("extension-"):
        return TrainingConfig
    pytest.importorskip("transformers")
    from scale_invariant_attention.lab.experiments.conversions import ConversionConfig

    return ConversionConfig


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: path.stem)
def test_every_record_is_written_back_byte_for_byte(path, tmp_path):
    write_record(read_record(path, kind_of(path)), tmp_path)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_fields_newer_than_a_record_have_their_defaults():
    assert "task" not in json.loads(LOSS.read_text())["config"]
    record = read_record(LOSS, TrainingConfig)
    assert record.config == TrainingConfig.from_dict(
        record.config.to_dict() | {"task": "text", "first_length": None}
    )


def test_measurements_by_length():
    losses = {row["length"]: row["loss"] for row in json.loads(LOSS.read_text())["losses"]}
    record = read_record(LOSS, TrainingConfig)
    assert record.losses_by_length() == losses
    assert (record.scheme, record.seed, record.is_own_training) == ("rope", 0, True)
    with pytest.raises(ValueError, match="the record rope-seed-0 has no needles"):
        record.needles_by_length()
    needles = read_record(RESULTS / "mini-500" / "needles-rope-seed-0.json", TrainingConfig)
    assert all(0 <= share <= 1 for share in needles.needles_by_length().values())
    recall = read_record(RESULTS / "mini" / "recall-alibi-seed-0.json", TrainingConfig)
    assert recall.recall_by_length()[64] > 0.9
    attention = read_record(RESULTS / "mini-500" / "attention-rope-seed-0.json", TrainingConfig)
    assert list(attention.recent_share_by_length()) == [256, 512, 1024, 2048, 4096]
    assert attention.attention[0].entropy_inside(10, 100) is not None
    assert attention.attention[0].entropy_inside(100, 1000) is None
    assert not read_record(
        RESULTS / "mini-500" / "yarn-seed-0.json", TrainingConfig
    ).is_own_training


def changed(tmp_path, change):
    values = json.loads(LOSS.read_text())
    change(values)
    path = tmp_path / LOSS.name
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.pop("losses"), "it must have one of losses, needles"),
        (lambda it: it.pop("trained_as"), "trained_as is missing"),
        (lambda it: it["losses"][1].pop("loss"), r"losses\[1\]\.loss is missing"),
        (lambda it: it["losses"].clear(), "losses must have at least one length"),
        (
            lambda it: it["losses"][0].update(loss="1"),
            r"losses\[0\]\.loss must be a number, got '1'",
        ),
        (
            lambda it: it["config"].update(stepps=1),
            "config.stepps is no field of it .did you mean 'steps'",
        ),
        (lambda it: it.update(loses=1), "loses is no field of it .did you mean 'losses'"),
        (lambda it: it["validation"][0].update(validation={"x": 1}), "integers as names, got 'x'"),
        (lambda it: it.update(training=[]), "training must be an object"),
    ],
)
def test_an_error_names_file_field_and_fix(tmp_path, change, message):
    path = changed(tmp_path, change)
    with pytest.raises(ValueError, match=rf"rope-seed-0\.json is not a record: .*{message}"):
        read_record(path, TrainingConfig)
    with pytest.raises(
        ValueError, match="restore it, or move it elsewhere to have sia reproduce write it again"
    ):
        read_record(path, TrainingConfig)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_named(tmp_path, loss):
    path = changed(tmp_path, lambda it: it["losses"][0].update(loss=loss))
    with pytest.raises(ValueError, match=r"0\.json must have a finite number as losses\[0\]\.loss"):
        read_record(path, TrainingConfig)


def test_a_record_of_a_scheme_that_is_not_registered_is_not_called_damaged(tmp_path):
    path = changed(tmp_path, lambda it: it["config"].update(scheme="log-bias"))
    with pytest.raises(ValueError, match=r"not registered here; .* sia --import MODULE") as raised:
        read_record(path, TrainingConfig)
    assert "not a record" not in str(raised.value) and "move it" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "must hold a JSON object")]
)
def test_a_file_that_is_no_json_object_is_named(tmp_path, text, message):
    (tmp_path / "rope-seed-0.json").write_text(text)
    with pytest.raises(ValueError, match=rf"rope-seed-0\.json .*{message}"):
        read_record(tmp_path / "rope-seed-0.json", TrainingConfig)


def test_a_loss_that_is_not_finite_is_not_written(tmp_path):
    record = read_record(LOSS, TrainingConfig)
    with pytest.raises(ValueError, match="JSON"):
        write_record(replace(record, seconds=float("nan")), tmp_path)
    assert not list(tmp_path.iterdir())


def edited(path, change, tmp_path):
    """A copy of a record, changed, with the SHA-256 that it had."""
    values = json.loads(path.read_text())
    change(values)
    copy = tmp_path / path.name
    copy.write_bytes(record_text(values))
    return copy


@pytest.fixture
def signed_record(tmp_path):
    """A record as it is written today."""
    write_record(replace(read_record(LOSS, TrainingConfig), read_from=None), tmp_path)
    return tmp_path / LOSS.name


def test_a_record_ends_with_its_hash_and_comes_back(signed_record, tmp_path):
    assert list(json.loads(signed_record.read_text()))[-1] == "sha256"
    record = read_record(signed_record, TrainingConfig)
    assert record == read_record(LOSS, TrainingConfig)
    (tmp_path / "again").mkdir()
    write_record(record, tmp_path / "again")
    assert (tmp_path / "again" / LOSS.name).read_bytes() == signed_record.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["losses"][0].update(loss=1.2493862017014872),
        lambda it: it["config"].update(seed=1),
        lambda it: it["training"]["loss"].__setitem__(7, 2.0),
        lambda it: it["provenance"].update(cpu="AMD EPYD"),
        lambda it: it.update(sha256="0" * 64),
        lambda it: it.update(sha256=None),
    ],
)
def test_a_changed_record_is_refused_by_its_hash(signed_record, tmp_path, change):
    copy = edited(signed_record, change, tmp_path)
    with pytest.raises(ValueError, match=r"rope-seed-0\.json is not a record: its SHA-256 is"):
        read_record(copy, TrainingConfig)


def test_a_hash_with_a_damaged_name_is_no_missing_hash(signed_record):
    signed_record.write_bytes(signed_record.read_bytes().replace(b'"sha256"', b'"sha257"'))
    with pytest.raises(ValueError, match="sha257 is no field of it"):
        read_record(signed_record, TrainingConfig)


NEEDLES = RESULTS / "mini-500" / "needles-rope-seed-0.json"
ATTENTION = RESULTS / "mini-500" / "attention-rope-seed-0.json"


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (LOSS, lambda it: it["losses"][0].update(length=255), "lengths are not those of its eval"),
        (LOSS, lambda it: it["losses"][0].update(loss=-1.2), "a loss or its error is -1.2"),
        (LOSS, lambda it: it["losses"][0].update(tokens=131073), "tokens, not of the same"),
        (LOSS, lambda it: it["by_position"].pop(3), "leave out positions"),
        (LOSS, lambda it: it["training"]["loss"].pop(), "499 losses and 500 norms"),
        (LOSS, lambda it: it["config"].update(steps=501), "500 losses of 501 steps"),
        (LOSS, lambda it: it["validation"][0].update(step=725), "validations are at the steps"),
        (LOSS, lambda it: it.update(seconds=-613.6), "seconds is -613.6"),
        (LOSS, lambda it: it.update(corpus="a5f5"), "is no SHA-256"),
        (LOSS, lambda it: it["provenance"].update(commit="3bdc"), "provenance.commit is '3bdc'"),
        (LOSS, lambda it: it["provenance"].update(date="2026-19-16"), "provenance.date is"),
        (NEEDLES, lambda it: it["needles"]["lengths"][0].update(low=0.0), "found cannot be 0.0 to"),
        (NEEDLES, lambda it: it["needles"]["cells"].pop(), "by depth .* needles were found at"),
        (
            ATTENTION,
            lambda it: it["attention"][0]["edges"].__setitem__(1, 300),
            "its ranges at 256 are",
        ),
        (
            ATTENTION,
            lambda it: it["attention"][0]["layers"][1]["share"][0].__setitem__(0, 0.9),
            "the shares of layer 1 at 256 add up to",
        ),
    ],
)
def test_a_record_without_a_hash_must_not_contradict_itself(path, change, message, tmp_path):
    def unsigned_change(record):
        del record["sha256"]
        change(record)

    with pytest.raises(ValueError, match=rf"is not a record: .*{message}"):
        read_record(edited(path, unsigned_change, tmp_path), TrainingConfig)


def test_a_field_that_occurs_twice_is_damage(tmp_path):
    copy = tmp_path / LOSS.name
    copy.write_bytes(LOSS.read_bytes().replace(b' "seconds"', b' "seconds": 1.0,\n "seconds"'))
    with pytest.raises(ValueError, match="a field occurs twice"):
        read_record(copy, TrainingConfig)
