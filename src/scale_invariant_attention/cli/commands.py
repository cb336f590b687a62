"""The commands of `sia`, gathered."""

from typing import Annotated

import typer

from .. import __version__
from . import bench, data, reproduce
from .demo import demo
from .diagnose import diagnose_command
from .doctor import doctor
from .evaluate import evaluate
from .export import export
from .figures import figures
from .generate import generate
from .needle import needle
from .report import report
from .train import SETTINGS, train_command

app = typer.Typer(
    help="Scale-invariant attention: train on short contexts, work on long ones.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain messages: a box around an error would break paths and reasons across its lines.
    rich_markup_mode=None,
)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")
app.command()(demo)
app.command()(doctor)
app.command(name="train", **SETTINGS)(train_command)
app.command()(evaluate)
app.command()(needle)
app.command()(report)
app.command(name="diagnose")(diagnose_command)
app.command()(figures)
app.command()(generate)
app.command()(export)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scale-invariant-attention {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sia(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line."""
    app(prog_name="sia")
