"""The commands by help panel, the Typer app that is built from them, and the exit statuses."""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from bertkit._version import __version__
from bertkit.cli import info
from bertkit.cli.launch import exit_with_launcher, handle_signals, launch
from bertkit.cli.options import CommandGroup, SingleCommand, build_command
from bertkit.commands import configs
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.experiments.config import (
    LADDER_HELP,
    STUDY_HELP,
    SUITES,
    list_experiment_tasks,
    make_task_config,
)
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import Settings, get_settings
from bertkit.settings.recipes import Recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.tasks import list_definitions, task_definition
from bertkit.utils import distributed, system
from bertkit.utils.compat import get_command_error
from bertkit.utils.files import expand_home
from bertkit.utils.plugins import warn_about_hidden
from bertkit.utils.reporting import Reporter, use_reporter
from bertkit.utils.system import EXIT_OUTPUT_CLOSED, postpone_collection
from bertkit.utils.text import replace_control_characters

CommandError = get_command_error()


# ---- the commands


@dataclass(frozen=True)
class Command:
    """A command: what `--help` shows, and what runs it.

    The module is imported when the command runs. Its function `run_command` is called with `name` unless it
    is empty, with the settings that the user passed and with the value of `--json`; if there is `--recipe`,
    also with the recipe or None.
    """

    config: type[Settings]
    help: str
    module: str
    name: str = ""  # of the task or suite that the function runs
    has_recipe: bool = False  # whether `--recipe` accepts the recipes of this task or suite
    starts_workers: bool = False  # whether the function starts the processes of `--nproc` itself

    @property
    def has_ranks(self) -> bool:
        """Whether several processes, which a launcher starts, can run the command together."""
        return "nproc" in get_settings(self.config) and not self.starts_workers

    def build(self) -> Callable[..., int | None]:
        """Return the command for Typer."""
        return build_command(self.config, self.help, self.run, self.name if self.has_recipe else None)

    def run(self, settings: dict[str, Any], as_json: bool, *recipe: Recipe | None) -> int | None:
        """Run the command, in several processes if `--nproc` says so; return its exit status, None for 0."""
        self._require_inputs(settings, *recipe)
        processes = settings.get("nproc", 1) if self.has_ranks else 1
        if processes > 1 and system.get_launched_world_size() == 1:
            sys.exit(launch(processes, settings.get("device", "auto")))
        exit_with_launcher()
        name = [self.name] if self.name else []
        status: int | None = import_module(self.module).run_command(*name, settings, as_json, *recipe)
        return status

    def _require_inputs(self, settings: dict[str, Any], recipe: Recipe | None = None) -> None:
        """Report missing runs, and missing rows of a fine-tuning task, before slow imports."""
        definition = DEFINITIONS.get(self.name.rpartition(" ")[2])
        if definition and definition.predicts_rows and issubclass(self.config, RunConfig):
            from bertkit.data.sources import require_sources  # `--help` needs none of its imports

            config = self.config(**(recipe.settings if recipe else {}) | settings)
            data = config.resolve_data_name()
            sources = {"data": data, "validation": config.validation, "test": config.test}
            if data == config.output_dir:
                del sources["data"]  # it is refused later
            require_sources(sources, config.data_dir)
        elif not settings.get("minimal_pairs"):  # also of models on the Hub
            runs = settings.get("run", [])
            for run in map(expand_home, [runs] if isinstance(runs, str) else runs):
                if not run.exists():
                    RunDir(run).require_metrics()


def _train(task: str) -> Command:
    spec = task_definition(task)
    return Command(spec.config, spec.help, "bertkit.commands.train", task, has_recipe=True)


def _run_suite(suite: str) -> Command:
    spec = SUITES[suite]
    return Command(spec.config, spec.help, "bertkit.experiments.experiment", suite, has_recipe=True)


def _build_group(help: str, commands: Mapping[str, Command]) -> typer.Typer:
    group = typer.Typer(cls=CommandGroup, help=help, no_args_is_help=True)
    for name, command in commands.items():
        group.command(name, cls=SingleCommand)(command.build())
    return group


def _build_experiment(name: str, help: str, task_help: str) -> typer.Typer:
    """Return the group of the commands `study TASK` or `ladder TASK`."""
    commands = {
        task: Command(
            make_task_config(name, task),
            task_help.format(task),
            "bertkit.experiments.experiment",
            f"{name} {task}",
            has_recipe=True,
        )
        for task in list_experiment_tasks(name)
    }
    return _build_group(help, commands)


def _refuse_plugin(problem: str) -> Callable[..., None]:
    """Return a command for the task of a plugin that cannot be used, whose help and error say why."""

    def refuse() -> None:
        raise UserError(problem)

    refuse.__doc__ = f"Cannot be used: {problem}"
    return refuse


DEFINITIONS, PLUGIN_PROBLEMS = list_definitions()

# The commands by help panel. Tasks that predict rows are fine-tuning tasks.
COMMANDS: dict[str, dict[str, Any]] = {
    "Fine-tune": {
        **{task: _train(task) for task, definition in DEFINITIONS.items() if definition.predicts_rows},
        **{suite: _run_suite(suite) for suite in SUITES if suite != "ablation"},
        "ladder": _build_experiment(
            "ladder", LADDER_HELP, "Compare models of several kinds for `bertkit {}`."
        ),
        "study": _build_experiment(
            "study", STUDY_HELP, "Study `bertkit {}` over folds, seeds and hyperparameter trials."
        ),
    },
    "Pre-train": {
        **{task: _train(task) for task, definition in DEFINITIONS.items() if not definition.predicts_rows},
        "train-tokenizer": Command(
            configs.TokenizerConfig,
            "Train a WordPiece vocabulary on your own text: a tokenizer for BERT.",
            "bertkit.commands.train_tokenizer",
        ),
        "ablation": _run_suite("ablation"),
    },
    "Before training": {
        "check": _build_group(
            configs.CHECK_HELP,
            {
                task: Command(
                    configs.make_check_config(definition.config),
                    f"Check data for `bertkit {task}`.",
                    "bertkit.commands.check",
                    task,
                )
                for task, definition in DEFINITIONS.items()
            },
        ),
        "fetch": Command(
            configs.FetchConfig,
            "Fetch models and datasets of the Hub to a directory, for a machine without a network.",
            "bertkit.commands.fetch",
        ),
        "recipes": info.recipes,
        "data": info.data,
        "env": info.env,
        "skill": info.skill,
    },
    "After training": {
        "predict": Command(
            configs.PredictConfig,
            "Predict with a finished run: rows of a file, texts, or lines on standard input.",
            "bertkit.commands.predict",
            starts_workers=True,
        ),
        "serve": Command(
            configs.ServeConfig,
            "Serve predictions of finished runs over HTTP, with a page to try them.",
            "bertkit.serve",
        ),
        "evaluate": Command(
            configs.EvaluateConfig,
            "Score a finished run on other data, with confidence intervals and baselines; --compare tests "
            "it against another run.",
            "bertkit.commands.evaluate",
        ),
        "calibrate": Command(
            configs.CalibrateConfig,
            "Calibrate the probabilities of a finished run: fit a temperature on its validation rows, or "
            "on other labeled rows, and fold it into the model. Optionally, fit thresholds and "
            "abstention.",
            "bertkit.commands.calibrate",
        ),
        "report": Command(
            configs.ReportConfig,
            "Write the report page of a finished run again, or compare several runs on one page.",
            "bertkit.commands.report",
        ),
        "embed": Command(
            configs.EmbedConfig,
            "Write vectors of texts, or of one word in its contexts, to a file; --query searches them.",
            "bertkit.commands.embed",
        ),
        "fill-mask": Command(
            configs.FillMaskConfig,
            "Print the most probable words for each [MASK] in a text.",
            "bertkit.commands.fill_mask",
        ),
        "export": Command(
            configs.ExportConfig,
            "Export a finished run to ONNX and compare it with the PyTorch model on the validation rows.",
            "bertkit.commands.export",
        ),
        "label-issues": Command(
            configs.LabelIssuesConfig,
            "List the training rows of a study whose labels are probably wrong, and write a page to "
            "review them.",
            "bertkit.commands.label_issues",
        ),
        "distill": Command(
            configs.DistillConfig,
            "Train a smaller model, the student, on the predictions of a finished run, its teacher. The "
            "settings of the run are the defaults.",
            "bertkit.commands.distill",
        ),
    },
}


# ---- the app


class WarningReporter(Reporter):
    """The reporter of a command before it begins to report its progress: of recipes and settings."""

    def warn(self, message: str) -> None:
        from bertkit.utils.console import ConsoleReporter  # imports rich

        if distributed.is_main_process():
            ConsoleReporter().warn(message)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"bertkit {__version__}")
        raise typer.Exit


def _prepare(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    """Handle the options before a command, and refuse a launcher for commands that run in one process."""
    command = context.invoked_subcommand
    if command and system.get_launched_world_size() > 1:
        declared = next((panel[command] for panel in COMMANDS.values() if command in panel), None)
        if not (isinstance(declared, Command) and declared.has_ranks):
            raise UserError(
                f"{command}: runs in one process; start it without a launcher (torchrun, accelerate launch)"
            )
    context.with_resource(use_reporter(WarningReporter()))
    warn_about_hidden("task", command)


if PLUGIN_PROBLEMS:
    COMMANDS["Plugins that cannot be used"] = {
        name: _refuse_plugin(problem) for name, problem in PLUGIN_PROBLEMS.items()
    }
app = typer.Typer(
    cls=CommandGroup,
    name="bertkit",
    help="Pre-train, fine-tune, evaluate and use BERT models. Options: `bertkit COMMAND --help`.",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    callback=_prepare,
)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
            continue
        if isinstance(_command, Command):
            _command = _command.build()
        # a plugin that cannot be used is refused with any arguments
        _context = dict.fromkeys(["ignore_unknown_options", "allow_extra_args"], _name in PLUGIN_PROBLEMS)
        app.command(_name, cls=SingleCommand, rich_help_panel=_panel, context_settings=_context)(_command)


def main() -> None:
    """Run the app and exit.

    The exit status is 0 for success, 1 for a bug (with its traceback) and 2 for an error that the user can
    fix; 3 and 4 are results of a comparison, see `EXIT_STATUSES`. It is 130 after an interrupt, and 141 if
    the reader of the output has closed the pipe.
    """
    postpone_collection()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the encoding of the terminal lacks must not raise an error.
            stream.reconfigure(errors="backslashreplace" if stream.encoding.lower() == "utf-8" else "replace")
    with guard_streams(), handle_signals():
        status = _run_app()
    sys.exit(status)


def _run_app() -> int:
    try:
        status = app(standalone_mode=False) or 0
        print(end="", flush=True)  # a plugin may print without rich, which flushes each line
        # Typer returns 130 if it caught an interrupt itself.
        return _report_error("interrupted; nothing was saved", 130) if status == 130 else status
    except UserError as error:
        return _report_error(str(error), error.exit_code, error.should_report)
    except CommandError as error:
        return _report_error(_format_usage_error(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _report_error("interrupted", 130)


def _report_error(message: str, status: int, should_report: bool | None = None) -> int:
    """Print an error message as one line, unless help was printed instead, and return `status`.

    By default, one process per machine prints the message.
    """
    should_report = distributed.is_local_main_process() if should_report is None else should_report
    if message and should_report:
        with suppress(UserError):  # standard error is closed; the exit status still reports the failure
            print(f"bertkit: {replace_control_characters(' '.join(message.split()))}", file=sys.stderr)
    return status


def _format_usage_error(error: Any) -> str:
    """Format an error of Typer as one line; for an unknown flag, suggest a similar flag or other commands."""
    context = getattr(error, "ctx", None)
    if hasattr(error, "possibilities"):  # only NoSuchOption has it
        flag, params = error.option_name, error.ctx.command.params
        others = error.ctx.parent.command.commands if error.ctx.parent else {}
        commands = [
            name for name, other in others.items() if any(flag in param.opts for param in other.params)
        ]
        known_flags = [name for param in params for name in (*param.opts, *param.secondary_opts)]
        hint = (
            f"; it is a flag of {format_list(commands)}" if commands else suggest_similar(flag, known_flags)
        )
        return f"{flag}: no such option of {error.ctx.command_path}{hint}"
    message = str(getattr(error, "format_message", error.__str__)())
    if context is None or not message:  # the message is empty if help was printed instead
        return message
    problem = message[0].lower() + message[1:].rstrip(".")
    return f"{context.command_path}: {problem}; see {context.command_path} --help"


# ---- standard output and error that cannot be written: a full device, or a closed pipe


class OutputClosedError(UserError):
    """Error for a pipe whose reader is closed, as with `| head`; the program ends without a message."""

    exit_code = EXIT_OUTPUT_CLOSED


class GuardedStream:
    """A stream that raises `UserError` instead of `OSError` if writing fails.

    An `OSError` would be reported as a bug, and Typer and rich would exit with status 1 for a closed reader.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> Any:
        with self._translate_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._translate_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            raise UserError(f"{self._name}: cannot be written ({error.strerror})") from None


@contextmanager
def guard_streams() -> Iterator[None]:
    """Replace standard output and standard error with guarded streams; either may be missing."""
    out, err = sys.stdout, sys.stderr
    sys.stdout = GuardedStream(out, "standard output") if out else out  # type: ignore[assignment]
    sys.stderr = GuardedStream(err, "standard error") if err else err  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        for stream in filter(None, (out, err)):
            try:
                stream.flush()
            except OSError:
                # Otherwise Python would write the buffered text again at exit, and print the error.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
