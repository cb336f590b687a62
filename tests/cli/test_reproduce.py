"""`sia reproduce`: trains, records, and prints what is recorded."""

import json
import re
import sys
from dataclasses import replace

import pytest
from own_schemes import own_scheme
from small_records import image_record, masked_record, record, task_record
from tiny_training import options
from typer.testing import CliRunner

from scale_invariant_attention import schemes
from scale_invariant_attention.cli import app
from scale_invariant_attention.data.images._digits import split_digits
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.training import recipe


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


def heads(done):
    """The first words of the lines of the table that a command printed."""
    _, table, _ = done.stdout.split("\n\n")
    return [line.split()[0] for line in table.splitlines()]


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
    assert heads(done) == ["scheme", "RoPE", "YaRN"]
    assert "Loss in nats per token by context length" in done.stdout
    assert "standard error over 2 seeds" in done.stdout
    assert "Steps of training: 2. Measured at each length: 256 tokens." in done.stdout
    assert f"sia report {tmp_path / 'results'} -o report" in done.stdout
    assert f"Training 4, in {tmp_path / 'runs'}" in done.stderr
    # Again: nothing is trained, and it says so; the table is the same.
    (tmp_path / "runs").rename(tmp_path / "gone")
    again = reproduce(*words)
    assert again.stdout == done.stdout
    results = tmp_path / "results"
    assert f"Nothing to train: all 4 are recorded in {results} already" in again.stderr
    assert "--runs runs/mine --results results/mine" in again.stderr
    assert "rope-seed-1: " not in again.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["tau", "base"])
def test_a_sweep_has_a_row_for_each_value(tmp_path, option):
    words = (option, "--values", "5,10,16", *folders(tmp_path), *in_turn(steps=1))
    done = reproduce(*words)
    assert done.exit_code == 0, done.output
    assert heads(done) == [option, "5", "10", "16"]
    made = recorded(tmp_path, f"scale-invariant-p-rope-{option}-5-seed-0")
    assert made["config"]["scheme_options"][option] == 5


def test_attention_is_that_of_the_models_of_table1(tmp_path):
    words = ("--schemes", "alibi", *folders(tmp_path), *in_turn(steps=1))
    assert reproduce("table1", *words, "--seeds", "1").exit_code == 0
    tokens = words.index("--tokens")
    words = (*words[:tokens], "--contexts", "2", *words[tokens + 2 :])
    done = reproduce("attention", *words)
    assert done.exit_code == 0, done.output
    made = recorded(tmp_path, "attention-alibi-seed-0")
    assert made["trained_as"] == "alibi-seed-0"
    assert [it["length"] for it in made["attention"]] == [32, 64]
    share = made["attention"][1]["overall"]["recent_share"][0]["mean"]
    assert ["ALiBi", "1.000", f"{share:.3f}"] in map(str.split, done.stdout.splitlines())


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
    assert heads(done) == ["scheme", "RoPE", "YaRN"]
    assert recorded(tmp_path, "yarn-seed-0")["config"]["order"] == "sequential"
    (tmp_path / "results" / "yarn-seed-0.json").unlink()
    again = reproduce(*words)
    assert again.stdout == done.stdout
    assert "1 of 2 are recorded" in again.stderr


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
        (("table1", "--seed", "7"), "--seed cannot be given: --seeds sets it"),
        (("table1", "--scheme", "nope"), "--scheme cannot be given: --schemes"),
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
    assert "sia report shows any others" in done.stderr


def test_a_page_of_other_trials_names_the_command_that_shows_them(tmp_path):
    (tmp_path / "mini").mkdir()
    write_record(record("rope", 0, (1.0, 2.0, 3.0), changes={"steps": 200}), tmp_path / "mini")
    done = reproduce("page", "--results", str(tmp_path))
    assert done.exit_code == 1
    assert "config.steps is 200 there, 1500 here" in done.stderr
    assert "made from records of the unchanged trials" in done.stderr
    assert "sia report shows any others" in done.stderr


OWN = """
from scale_invariant_attention import schemes
schemes.register(schemes.NamedScheme(
    "rope-and-alibi", lambda: schemes.Scheme(schemes.RoPE(), distance=schemes.ALiBi()), "Both"))
"""


def test_a_scheme_of_a_module_of_ones_own_is_trained_by_workers(tmp_path, monkeypatch):
    (tmp_path / "own_positions.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ("reproduce", "table1", "--schemes", "rope-and-alibi", "--seeds", "1", "--workers", "1")
    words = (*words, *folders(tmp_path), *tiny(steps=1))
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and "sia --import MODULE" in refused.output
    try:
        done = CliRunner().invoke(app, ["--import", "own_positions", *words])
        assert done.exit_code == 0, done.output
        assert heads(done) == ["scheme", "Both"]
        assert f"sia --import own_positions report {tmp_path / 'results'}" in done.stdout
    finally:
        schemes.unregister("rope-and-alibi")
        del sys.modules["own_positions"]


def test_a_module_that_is_not_there_is_named():
    done = CliRunner().invoke(app, ["--import", "no_such_module", "reproduce", "table1"])
    assert done.exit_code == 2
    assert "there is no module 'no_such_module'" in done.output


def test_now_and_then_it_says_how_far_each_training_is(tmp_path, monkeypatch):
    monkeypatch.setattr("scale_invariant_attention.cli.reproduce.NEWS_EVERY", 0.0)
    monkeypatch.setattr("scale_invariant_attention.lab.experiments.running.GLANCE", 0.02)
    words = ("table1", "--schemes", "rope", "--seeds", "1", "--workers", "1")
    done = reproduce(*words, *folders(tmp_path), *tiny(steps=60, checkpoint_every=60))
    assert done.exit_code == 0, done.output
    assert re.search(r"^rope-seed-0: step \d+ of 60, loss \d\.\d{3}$", done.stderr, re.MULTILINE)


def test_interrupted_it_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    name = "scale_invariant_attention.lab.experiments.running.run_side_by_side"
    monkeypatch.setattr(name, interrupted)
    done = reproduce("table1", *folders(tmp_path))
    assert done.exit_code == 130
    assert f"Interrupted, with 0 of {3 * len(schemes.names())} recorded" in done.stderr
    assert "Rerun the same command to resume" in done.stderr


def test_a_record_of_another_training_is_named(tmp_path):
    words = ("table1", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    assert reproduce(*words, *in_turn(steps=1)).exit_code == 0
    done = reproduce(*words, *in_turn(steps=2))
    assert done.exit_code == 1
    assert "config.steps is 1 there, 2 here" in done.stderr
    assert "with --results" in done.stderr


def test_the_folder_of_another_training_is_refused_before_anything_is_trained(tmp_path):
    words = ("table1", "--schemes", "rope,alibi", "--seeds", "1", *folders(tmp_path))
    (tmp_path / "runs" / "alibi-seed-0").mkdir(parents=True)
    config = recipe("mini", scheme="alibi", steps=7).to_dict()
    (tmp_path / "runs" / "alibi-seed-0" / "config.json").write_text(json.dumps(config))
    done = reproduce(*words, *tiny(steps=1))
    assert done.exit_code == 1
    assert "steps is 7 there, 1 here" in done.stderr and "--runs" in done.stderr
    assert not (tmp_path / "runs" / "rope-seed-0").exists()


def test_the_leaderboard_shows_scores_and_ranks(tmp_path):
    (tmp_path / "results").mkdir()
    for scheme, shares in (("rope", (1.0, 0.3, 0.1, 0.0)), ("alibi", (0.9, 0.8, 0.5, 0.25))):
        for task in ("copy", "sort"):
            write_record(task_record(task, scheme, 0, shares), tmp_path / "results")
    words = ("--tasks", "copy", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    done = reproduce("leaderboard", *words)
    assert done.exit_code == 0, done.output
    assert "Nothing to train: all 1 are recorded" in done.stderr
    assert re.search(r"^copy, RoPE +1\.000 +0\.300 +0\.100 +0\.000$", done.stdout, re.M)
    # Ranks are among all schemes of the folder, in all tasks.
    assert re.search(r"^ALiBi +1\.0 \(2 of 10 tasks\) +4\.0 +1 ", done.stdout, re.M)
    assert re.search(r"^RoPE +2\.0 \(2 of 10 tasks\) +4\.0 +2 ", done.stdout, re.M)
    page = tmp_path / "page.md"
    done = reproduce(
        "leaderboard-page", "--results", str(tmp_path / "results"), "--output", str(page)
    )
    assert done.exit_code == 0 and done.stdout == f"{page}\n"
    assert "| ALiBi | 1.0 (2 of 10 tasks) | 4.0 | 1 |" in page.read_text()


def test_the_leaderboard_ranks_no_trials_of_other_settings(tmp_path):
    (tmp_path / "results").mkdir()
    [own, kept] = (task_record("copy", it, 0, (1.0, 0.3, 0.1, 0.0)) for it in ("rope", "alibi"))
    write_record(own, tmp_path / "results")
    write_record(replace(kept, config=replace(kept.config, steps=2)), tmp_path / "results")
    words = ("--tasks", "copy", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    done = reproduce("leaderboard", *words)
    assert done.exit_code == 0, done.output
    assert "No ranks: these trials have other settings than the leaderboard's." in done.stdout
    done = reproduce("leaderboard-page", "--results", str(tmp_path / "results"))
    assert done.exit_code == 1
    assert "leaderboard-copy-alibi-seed-0.json is the record of another trial" in done.stderr


def test_records_of_a_scheme_that_is_not_registered_cost_the_ranks_alone(tmp_path):
    (tmp_path / "results").mkdir()
    write_record(task_record("copy", "rope", 0, (1.0, 0.3, 0.1, 0.0)), tmp_path / "results")
    with own_scheme() as theirs:
        write_record(task_record("copy", theirs, 0, (1.0, 0.3, 0.1, 0.0)), tmp_path / "results")
    words = ("--tasks", "copy", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    done = reproduce("leaderboard", *words)
    assert done.exit_code == 0, done.output
    assert "RoPE" in done.stdout and "No ranks: " in done.stdout
    assert "sia --import MODULE" in " ".join(done.stdout.split())


def test_images_show_scores_by_size_and_write_their_page(tmp_path):
    for folder in ("images", "masked"):
        (tmp_path / "results" / folder).mkdir(parents=True)
    for name, shares in (("rope", (0.9, 0.3, 0.2, 0.1)), ("alibi", (0.8, 0.8, 0.7, 0.6))):
        write_record(image_record("textures", name, 0, shares), tmp_path / "results" / "images")
    write_record(masked_record("rope", 0, (0.6, 0.5, 0.4)), tmp_path / "results" / "masked")
    words = ("--tasks", "textures", "--candidates", "rope,alibi", "--seeds", "1")
    given = ("--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results" / "images"))
    done = reproduce("images", *words, *given)
    assert done.exit_code == 0, done.output
    assert "Nothing to train: all 2 are recorded" in done.stderr
    assert re.search(
        r"^textures, RoPE-2D, axial +0\.900 +0\.300 +0\.200 +0\.100$", done.stdout, re.M
    )
    assert "explained by canvas size, one seed" in " ".join(done.stdout.split())
    assert "Rank" not in done.stdout and "sia report" not in done.stdout
    page = tmp_path / "page.md"
    done = reproduce("images-page", "--results", str(tmp_path / "results"), "-o", str(page))
    assert done.exit_code == 0 and done.stdout == f"{page}\n"
    text = page.read_text()
    assert "| ALiBi-2D | 0.800 | **0.800** | **0.700** | **0.600** |" in text
    assert "| RoPE | 0.600 | 0.500 | 0.400 |" in text


def test_masked_text_is_measured_in_as_many_bytes_at_every_length(tmp_path):
    (tmp_path / "results").mkdir()
    write_record(masked_record("rope", 0, (0.6, 0.5, 0.4)), tmp_path / "results")
    done = reproduce("masked", "--schemes", "rope", "--seeds", "1", *folders(tmp_path))
    assert done.exit_code == 0, done.output
    where = "at the greatest length, and as many bytes at the others"
    assert f"Measured {where}: 64 examples." in " ".join(done.stdout.split())


def test_images_name_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    split_digits.cache_clear()
    done = reproduce("images", "--tasks", "digits", "--seeds", "1", *folders(tmp_path))
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert (
        "digits need scikit-learn: pip install 'scale-invariant-attention[images]'" in done.stderr
    )


def test_images_have_sizes_and_no_scale():
    text = " ".join(reproduce("images", "--help").stdout.split())
    assert "Canvas sizes to evaluate; default: the experiment's." in text
    assert "--device" not in text and "--device" in reproduce("table1", "--help").stdout


def test_images_take_no_fields_of_trainings_of_gpts():
    done = reproduce("images", "--steps", "5")
    assert done.exit_code == 2 and "--steps" in done.stderr


def test_an_unknown_task_is_refused():
    done = reproduce("leaderboard", "--tasks", "copi")
    assert done.exit_code == 2
    assert "there is no task 'copi' (did you mean 'copy'?)" in " ".join(done.stderr.split())
