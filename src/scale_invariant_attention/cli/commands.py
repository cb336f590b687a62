"""The commands of `sia`, each imported when it is used."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from .errors import fitted_usage_errors
from .printable import printable_streams, use_printable_streams

# Each command is a function in the module of the same name, or that module's `app`.
GROUPS = {
    "Start here": {
        "demo": "Train small models on short contexts and test them on long ones.",
        "doctor": "Show versions and hardware, and check every backend.",
        "pretrained": "List small pretrained models, to try the commands with.",
    },
    "Train and use models": {
        "train": "Train a model, or resume a run that was interrupted.",
        "generate": "Generate text with a model.",
        "data": "Show, create, download and check corpora and token shards.",
    },
    "Measure models": {
        "evaluate": "Measure a model's loss by context length and by position.",
        "needle": "Measure what a model retrieves from long contexts.",
        "diagnose": "Show where a model's attention goes, and what to fix.",
        "report": "Write a web page about runs: tables, charts, heat maps.",
    },
    "Hugging Face": {
        "extend": "Extend the context of a Hugging Face model.",
        "export": "Convert a model to or from Hugging Face transformers.",
    },
    "Reproduce and compare": {
        "reproduce": "Reproduce the paper's tables and figures.",
        "figures": "Draw the paper's figures from records and from theory.",
        "bench": "Measure the speed and memory of attention.",
    },
}
COMMANDS = {name: sentence for group in GROUPS.values() for name, sentence in group.items()}
# Shown at the end of a command's help, by its words. One that is not listed is run as it is.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "doctor": ("sia doctor", "sia doctor --json"),
    "train": (
        "sia train --scheme rope -o runs/rope",
        "sia train --scheme-options base=16 -o runs/ours",
        "sia train --start runs/ours --task needles -o runs/ours-needles",
    ),
    "pretrained": ("sia pretrained", "sia pretrained sia-mini-spread"),
    "generate": (
        'sia generate sia-mini-spread --prompt "def "',
        'sia generate runs/ours --prompt "def "',
    ),
    "evaluate": (
        "sia evaluate sia-mini-spread --lengths 256,1024,4096",
        "sia evaluate runs/ours --lengths 256,1024,4096",
        "sia evaluate runs/ours --json > losses.json",
    ),
    "needle": (
        "sia needle sia-needles-spread --examples 20",
        "sia needle runs/ours-needles --lengths 256,1024",
        "sia needle runs/ours-needles --examples 10 --json > needles.json",
    ),
    "diagnose": ("sia diagnose sia-mini-rope", "sia diagnose runs/ours --json > diagnosis.json"),
    "report": ("sia report runs -o report", "sia report sia-mini-rope sia-mini-spread"),
    "extend": ("sia extend my-model --factor 16 --text my-text -o extended",),
    "export": (
        "sia export runs/ours --to hf -o ours-hf",
        "sia export ours-hf --to sia -o ours-again",
    ),
    "bench": ("sia bench --quick", "sia bench --lengths 1024,4096 --passes forward --no-flex"),
    "bench ratios": ("sia bench ratios --quick",),
    "bench models": ("sia bench models --quick",),
    "bench plot": ("sia bench plot --results benchmark-output/attention.csv",),
    "bench page": ("sia bench page --results benchmark-output/attention.csv",),
    "data": ("sia data show standard-library",),
    "data show": ("sia data show standard-library",),
    "data shards": ("sia data shards books -o shards",),
    "data fetch": ("sia data fetch fineweb10B --shards 4",),
    "data check": ("sia data check shards",),
    "reproduce": ("sia reproduce table1", "sia reproduce page"),
}


class LazyGroup(TyperGroup):
    """Lists every command, and imports one when it runs or shows its own help."""

    _names_only = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run a command line; nothing that it prints can give orders to the terminal."""
        with printable_streams():
            return super().main(*arguments, **settings)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, or None."""
        if cmd_name not in COMMANDS:
            return None
        if self._names_only:
            return TyperCommand(cmd_name, short_help=COMMANDS[cmd_name])
        module = import_module(f".{cmd_name}", __package__)
        if hasattr(module, "app"):
            return _with_examples(typer.main.get_command(module.app), cmd_name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command()(getattr(module, cmd_name))
        return _with_examples(typer.main.get_command(single), cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and wrap its usage errors to the terminal."""
        with fitted_usage_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", it) for name, it in commands.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command without importing any."""
        self._names_only = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._names_only = False


def _with_examples(command: Any, name: str) -> Any:
    """A command, and the commands below it, with examples as their epilogs."""
    lines = EXAMPLES.get(name, (f"sia {name}",))
    heading = "Example:" if len(lines) == 1 else "Examples:"
    # The first character keeps the lines as they are, to be copied.
    command.epilog = "\b\n" + "\n".join([heading, *(f"  {line}" for line in lines)])
    for word, below in getattr(command, "commands", {}).items():
        _with_examples(below, f"{name} {word}")
    return command


app = typer.Typer(
    cls=LazyGroup,
    help="Scale-invariant attention: train on short contexts, work on long ones.",
    epilog="sia COMMAND --help shows the options of a command, with examples.",
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
    modules: Annotated[
        list[str] | None,
        Option(
            "--import",
            metavar="MODULE",
            help="Import a module first, such as one that registers schemes of your own; the current "
            "folder is searched too. Can be repeated.",
        ),
    ] = None,
    version: Annotated[
        bool, Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = tuple(modules or ())
    _import_modules(context.obj)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _import_modules(modules: tuple[str, ...]) -> None:
    """Import modules as ``python -m`` finds them: in the current folder too."""
    here = str(Path.cwd())
    if modules and here not in sys.path:
        sys.path.insert(0, here)
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            # A module that is missing inside it is another error, with its own traceback.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise typer.BadParameter(
                f"there is no module {module!r} in the current folder or among the installed packages; "
                f"give its name without .py",
                param_hint="'--import'",
            ) from error


def main() -> None:
    """Run the command line."""
    # Until the process ends, for tracebacks too.
    use_printable_streams()
    app(prog_name="sia")
