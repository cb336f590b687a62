"""Reading command lines of `sia` without running them."""

import typer

from scale_invariant_attention.cli import app
from scale_invariant_attention.training import TrainingConfig


def parse(words):
    """Parse a line of `sia` without running it; raises what the command line would print."""
    command, context, name = typer.main.get_command(app), None, "sia"
    while words[:1] == ["--import"]:
        words = words[2:]
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        context = command.context_class(command, info_name=name, parent=context)
        name, command, words = command.resolve_command(context, words)
    context = command.make_context(name, words, parent=context)
    fields = {word[2:].replace("-", "_") for word in context.args if word.startswith("--")}
    assert fields <= set(TrainingConfig.__dataclass_fields__), fields
