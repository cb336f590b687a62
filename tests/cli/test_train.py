"""`sia train`: recipes, every field, and how a run ends."""

import json
import shlex
import signal
import sys
from dataclasses import fields

import pytest
from small_tokenizers import byte_level
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_training import options, same_weights, tiny_config, weights
from typer.testing import CliRunner

from scale_invariant_attention.cli import app, terminal
from scale_invariant_attention.cli import train as module
from scale_invariant_attention.cli.terminal import program
from scale_invariant_attention.model import GPT
from scale_invariant_attention.schemes import CompressiveMemory
from scale_invariant_attention.training import TrainingConfig, loop, read_config, recipe, train
from scale_invariant_attention.training.recipes import RECIPES


def run(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)])


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_can_be_printed(name):
    done = run("--recipe", name, "--print-config")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == recipe(name).to_dict()


def test_fields_are_set(tmp_path):
    done = run(
        "--scheme", "rope", "--clip-norm=0.5", "--print-config", "--validation-lengths", "8,16"
    )
    expected = recipe("mini", scheme="rope", clip_norm=0.5, validation_lengths=(8, 16))
    assert json.loads(done.stdout) == expected.to_dict()


def test_the_help_names_every_field():
    help_text = " ".join(run("--help").output.split())
    assert all(field.name in help_text for field in fields(TrainingConfig))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stepps", "3"), "no option '--stepps'; did you mean --steps?"),
        (("--recip", "mini"), "did you mean --recipe?"),
        (("--tensorbord",), "did you mean --tensorboard?"),
        (("--recipe", "mini-4k"), "no recipe 'mini-4k'"),
        (("--scheme", "scale-invariant"), "scale-invariant"),
        (("--steps", "many"), "--steps must be a whole number, got 'many'"),
        (("--steps", "0"), "steps must be at least 1, got 0"),
        (("somewhere",), "no option 'somewhere'"),
        (("--device", "gpu"), "device must be a name such as 'cpu'"),
        (("--data", "books"), "data must be 'standard-library', 'text:PATH' or 'shards:PATH'"),
    ],
)
def test_wrong_arguments_are_refused(words, message):
    done = run(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_a_scheme_with_a_memory_is_trained_and_generates(tmp_path):
    words = ("--scheme", "infini-rope", "--scheme-options", "segment_length=8,rule=delta")
    done = run("-o", tmp_path / "run", *options(), *words)
    assert done.exit_code == 0, done.output
    model = GPT.from_pretrained(tmp_path / "run" / "model")
    assert model.scheme.memory == CompressiveMemory(8, "delta", train_length=32)
    assert all(block.attention.scheme.memory.gate.any() for block in model.blocks)
    words = ("generate", str(tmp_path / "run"), "--prompt", "def ", "--max-new-tokens", "20")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_training_and_again(tmp_path):
    done = run("-o", tmp_path / "run", *options())
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "scale-invariant-p-rope: 1 layer of width 32, 8 steps of 4 x 32 tokens, in "
        f"{tmp_path / 'run'}",
        f"Trained. The model is in {tmp_path / 'run' / 'model'}",
        "",
        "Next:",
        f'  {program()} generate {tmp_path / "run"} --prompt "def "',
        f"  {program()} evaluate {tmp_path / 'run'} --lengths 32,64",
        f"  {program()} report {tmp_path / 'run'}",
    ]
    first, second = done.stderr.splitlines()
    assert first.startswith("step 4: loss ")
    assert second.startswith("step 8: loss ")
    assert " at 32, " in second
    assert read_config(tmp_path / "run") == tiny_config().to_dict()
    train(tiny_config(), tmp_path / "same")
    assert same_weights(weights(tmp_path / "run"), weights(tmp_path / "same"))
    again = run("-o", tmp_path / "run", *options())
    assert again.exit_code == 0
    assert again.stderr == ""
    assert again.stdout.splitlines()[1].startswith("Already trained. The model is in ")


def test_the_next_commands_can_be_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = "runs/a name with spaces"
    done = run("-o", folder, *options(steps=1))
    commands = [line.strip() for line in done.stdout.partition("Next:\n")[2].splitlines()]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.removeprefix(program()))
        used = CliRunner().invoke(app, words)
        assert used.exit_code == 0, used.output
    assert (tmp_path / "report" / "index.html").exists()


def test_the_next_command_of_another_task_is_its_own(tmp_path):
    fields = options(steps=1, length=64, validation_lengths=(64,))
    task = ("--task", "needles", "--task-options", "needles=1,digits=1")
    done = run("-o", tmp_path / "run", *fields, *task)
    assert done.exit_code == 0, done.output
    assert f"  {program()} needle {tmp_path / 'run'}\n" in done.stdout
    assert " evaluate " not in done.stdout


def test_a_log_gets_lines_of_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "seconds_between_lines", lambda elapsed: 0.0)
    done = run("-o", tmp_path / "run", *options(validate_every=0))
    lines = [line for line in done.stderr.splitlines() if "tokens/s" in line]
    assert len(lines) == 7
    assert lines[1].startswith("25% 2/8 loss ")


def test_one_file_of_text_is_enough(tmp_path):
    """The habit of nanoGPT: train, evaluate and generate from input.txt alone."""
    text = tmp_path / "input.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 200)
    done = run("-o", tmp_path / "run", *options(steps=2), "--data", f"text:{text}")
    assert done.exit_code == 0, done.output
    for words in (("evaluate", "--lengths", "32"), ("generate", "--max-new-tokens", "4")):
        used = CliRunner().invoke(app, [words[0], str(tmp_path / "run"), *words[1:]])
        assert used.exit_code == 0, used.output
    bare = run("-o", tmp_path / "bare", *options(steps=2), "--data", text)
    assert bare.exit_code == 2
    assert f"give 'text:{text}'" in bare.stderr


def test_shards_of_a_tokenizer_set_the_vocabulary(tmp_path):
    byte_level().save(str(tmp_path / "bpe.json"))
    (tmp_path / "input.txt").write_text("a wheel is a wheel is a wheel " * 200)
    words = ["data", "shards", tmp_path / "input.txt", "--tokenizer", tmp_path / "bpe.json"]
    made = CliRunner().invoke(app, [str(it) for it in (*words, "-o", tmp_path / "shards")])
    assert made.exit_code == 0, made.output
    done = run("-o", tmp_path / "run", *options(steps=1), "--data", f"shards:{tmp_path / 'shards'}")
    assert done.exit_code == 0, done.output
    assert read_config(tmp_path / "run")["vocab_size"] == byte_level().get_vocab_size() > 256


def test_event_files_are_written_on_request(tmp_path):
    plain, shown = tmp_path / "plain", tmp_path / "shown"
    assert run("-o", plain, *options(steps=2)).exit_code == 0
    assert not (plain / "tensorboard").exists()
    done = run("-o", shown, "--tensorboard", *options(steps=2))
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("step 2: loss ")
    events = EventAccumulator(str(shown / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("training/loss")] == [1, 2]
    assert read_config(plain) == read_config(shown)


def test_without_tensorboard_nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    done = run("-o", tmp_path / "run", "--tensorboard", *options())
    assert done.exit_code == 1
    assert 'pip install "scale-invariant-attention[tensorboard]"' in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_folder_is_named_by_recipe_and_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*options(steps=1, scheme="rope")).exit_code == 0
    assert (tmp_path / "runs" / "mini-rope" / "model" / "config.json").exists()


def test_a_stop_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(config, folder, *, watch, **more):
        def stop_after_two(progress):
            watch(progress)
            if progress.step == 2:
                signal.raise_signal(signal.SIGINT)

        return train(config, folder, watch=stop_after_two, **more)

    monkeypatch.setattr(module, "train", interrupted)
    done = run("-o", tmp_path / "run", *options())
    assert done.exit_code == 130
    assert "Stopping after this step, with a checkpoint." in done.stderr
    assert "Stopped and saved at step 3 of 8" in done.stderr
    assert "Rerun the same command to resume." in done.stderr
    assert "Trained" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "text:nowhere"), "nowhere"),
        (("--precision", "bfloat16", "--device", "cpu"), "precision must be float32 on cpu"),
        (("--head-rate", "1e6"), "Lower the learning rates or set clip_norm"),
    ],
)
def test_user_errors_are_one_sentence(tmp_path, monkeypatch, words, message):
    # As on a processor without units for bfloat16.
    monkeypatch.setattr(loop, "fast_in_bfloat16", lambda device: False)
    done = run("-o", tmp_path / "run", *options(), *words)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 10}, "vocab_size must be at least"),
        ({"task": "needles", "length": 32}, "length must be at least"),
        ({"validation_lengths": (999_999_999,)}, "lengths [999999999] need a multiple of"),
        ({"context_parallel": 2}, "context_parallel must divide the number of processes, 1"),
    ],
)
def test_arguments_that_do_not_suit_the_data_are_wrong_arguments(tmp_path, changes, message):
    done = run("-o", tmp_path / "run", *options(**changes))
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


def test_other_ranks_print_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "is_first_rank", lambda: False)
    done = run("-o", tmp_path / "run", "--tensorboard", *options(steps=1))
    assert (done.exit_code, done.output) == (0, "")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_folder_in_use_by_another_configuration(tmp_path):
    assert run("-o", tmp_path / "run", *options(steps=1)).exit_code == 0
    done = run("-o", tmp_path / "run", *options(steps=2))
    assert done.exit_code == 1
    assert "steps is 1 there, 2 here. Give another folder" in done.stderr


@pytest.mark.parametrize("backend", ["triton", "flex"])
def test_a_backend_that_cannot_train_here_is_refused_in_a_sentence(tmp_path, backend):
    done = run("-o", tmp_path / "run", "--backend", backend, *options(steps=1))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: backend {backend!r} cannot run this call: ")
