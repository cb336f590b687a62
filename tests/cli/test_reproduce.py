"""`sia reproduce`: trains, records, and prints what is recorded."""

import json

import pytest
from tiny_training import options
from typer.testing import CliRunner

from scale_invariant_attention.cli import app


def reproduce(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def folders(path):
    return ("--runs", str(path / "runs"), "--results", str(path / "results"))


def tiny(**changes):
    return (*options(**changes), "--lengths", "32,64", "--tokens", "256")


def in_turn(**changes):
    """The same the way the paper's scale runs, which is quicker: in this process."""
    small = {"vocab_size": 256, "data": "standard-library", "precision": "float32"}
    others = {"compile": "false", "micro_batch_size": "none", "constant_steps": "none"}
    return ("--scale", "paper", *tiny(**(small | others | changes)))


def recorded(path, name):
    return json.loads((path / "results" / f"{name}.json").read_text())


def test_table1_prints_means_and_errors_of_what_it_records(tmp_path):
    words = (
        "table1",
        "--schemes",
        "rope,yarn",
        "--seeds",
        "2",
        *folders(tmp_path),
        *tiny(steps=2),
    )
    done = reproduce(*words, "--workers", "2")
    assert done.exit_code == 0, done.output
    losses = [recorded(tmp_path, f"rope-seed-{seed}")["losses"][1]["loss"] for seed in (0, 1)]
    mean, error = sum(losses) / 2, abs(losses[0] - losses[1]) / 2
    assert f"{mean:.3f} ± {error:.3f}" in done.stdout
    assert "rope-seed-1: " in done.stderr and "(4 of 4)" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["scheme", "rope", "yarn"]
    # Again: nothing is trained, the table is the same.
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert reproduce(*words).stdout == done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["tau", "base"])
def test_a_sweep_has_a_row_for_each_value(tmp_path, option):
    words = (option, "--values", "5,10,16", *folders(tmp_path), *in_turn(steps=1))
    done = reproduce(*words)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == [option, "5", "10", "16"]
    record = recorded(tmp_path, f"scale-invariant-p-rope-{option}-5-seed-0")
    assert record["config"]["scheme_options"][option] == 5


def test_attention_is_that_of_the_models_of_table1(tmp_path):
    words = ("--schemes", "alibi", *folders(tmp_path), *in_turn(steps=1))
    assert reproduce("table1", *words, "--seeds", "1").exit_code == 0
    tokens = words.index("--tokens")
    words = (*words[:tokens], "--contexts", "2", *words[tokens + 2 :])
    done = reproduce("attention", *words)
    assert done.exit_code == 0, done.output
    record = recorded(tmp_path, "attention-alibi-seed-0")
    assert record["trained_as"] == "alibi-seed-0"
    assert [it["length"] for it in record["attention"]] == [32, 64]
    share = record["attention"][1]["overall"]["recent_share"][0]["mean"]
    assert done.stdout.splitlines()[-1].split() == ["alibi", "1.000", f"{share:.3f}"]


def test_the_papers_scale_trains_in_turn_and_resumes(tmp_path):
    """The same command with a smaller model: on GPUs only the size differs."""
    words = (
        "table1",
        "--schemes",
        "rope,yarn",
        "--seeds",
        "1",
        *folders(tmp_path),
        *in_turn(steps=2),
    )
    done = reproduce(*words)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["scheme", "rope", "yarn"]
    assert recorded(tmp_path, "yarn-seed-0")["config"]["order"] == "sequential"
    (tmp_path / "results" / "yarn-seed-0.json").unlink()
    again = reproduce(*words)
    assert again.stdout == done.stdout


def test_configurations_are_printed_and_nothing_is_done(tmp_path):
    words = ("--scale", "paper", "--schemes", "alibi", "--seeds", "2", "--steps", "5000")
    done = reproduce("table1", *words, *folders(tmp_path), "--print-config")
    configs = json.loads(done.stdout)
    assert list(configs) == ["alibi-seed-0", "alibi-seed-1"]
    assert configs["alibi-seed-1"]["seed"] == 1 and configs["alibi-seed-1"]["steps"] == 5000
    assert configs["alibi-seed-0"]["width"] == 768
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table1", "--schemes", "ropes"), "did you mean 'rope'"),
        (("table1", "--schemes", ""), "there is no scheme ''"),
        (("table1", "--seed", "7"), "--seed cannot be set: --seeds sets it"),
        (("table1", "--scheme", "nope"), "--scheme cannot be set: --schemes"),
        (("table1", "--scale", "minni"), "did you mean 'mini'"),
        (("table1", "--step", "3"), "did you mean --steps"),
        (("table1", "--lengths", "a,b"), "must be whole numbers"),
        (("tau", "--values", "1;2"), "must be numbers"),
        (("tau", "--values", "-1"), "tau must"),
    ],
)
def test_bad_words_are_refused(words, said):
    done = reproduce(*words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_options_of_schemes_are_added_to_those_of_the_experiment(tmp_path):
    words = ("--values", "1,1.0000000001", "--scheme-options", "base=8", "--print-config")
    configs = json.loads(reproduce("tau", *words, *folders(tmp_path)).stdout)
    assert [(name, config["scheme_options"]) for name, config in configs.items()] == [
        ("scale-invariant-p-rope-tau-1-seed-0", {"base": 8, "tau": 1.0}),
        ("scale-invariant-p-rope-tau-1.0000000001-seed-0", {"base": 8, "tau": 1.0000000001}),
    ]


def test_a_page_without_records_says_where_it_looked(tmp_path):
    done = reproduce("page", "--results", str(tmp_path))
    assert done.exit_code == 1
    assert f"no record of Table 1 in {tmp_path / 'mini'}; sia reproduce table1" in done.stderr


def test_interrupted_it_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    name = "scale_invariant_attention.lab.experiments.running.run_side_by_side"
    monkeypatch.setattr(name, interrupted)
    done = reproduce("table1", *folders(tmp_path))
    assert done.exit_code == 130
    assert "Interrupted, with 0 of 54 recorded" in done.stderr
    assert "Rerun the same command to resume" in done.stderr


def test_a_record_of_another_training_is_named(tmp_path):
    words = ("table1", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    assert reproduce(*words, *in_turn(steps=1)).exit_code == 0
    done = reproduce(*words, *in_turn(steps=2))
    assert done.exit_code == 1
    assert "config.steps is 1 there, 2 here" in done.stderr
