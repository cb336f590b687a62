"""The commands of `sia`, each imported when it is used."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

# Each command is a function in the module of the same name, or that module's `app`.
COMMANDS = {
    "demo": "Train small models on short contexts and test them on long ones.",
    "doctor": "Show versions and hardware, and check every backend.",
    "train": "Train a model, or resume a run that was interrupted.",
    "evaluate": "Measure a model's loss by context length and by position.",
    "needle": "Measure what a model retrieves from long contexts.",
    "report": "Write a web page about runs: tables, charts, heat maps.",
    "diagnose": "Show where a model's attention goes, and what to fix.",
    "figures": "Draw the paper's figures from records and from theory.",
    "generate": "Generate text with a model.",
    "extend": "Extend the context of a Hugging Face model.",
    "export": "Convert a model to or from Hugging Face transformers.",
    "bench": "Measure the speed and memory of attention.",
    "data": "Show, create, download and check corpora and token shards.",
    "reproduce": "Reproduce the paper's tables and figures.",
}


class LazyGroup(TyperGroup):
    """Lists every command, and imports one when it runs or shows its own help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{cmd_name}", __package__)
        if hasattr(module, "app"):
            return typer.main.get_command(module.app)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command()(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    help="Scale-invariant attention: train on short contexts, work on long ones.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain messages: a box around an error would break paths and reasons across its lines.
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        typer.echo(f"scale-invariant-attention {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sia(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line."""
    app(prog_name="sia")
