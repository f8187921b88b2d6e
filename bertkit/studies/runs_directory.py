"""The directory of a study or a suite: it contains several runs, which several processes may train."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import RunInterrupted
from bertkit.run_directory import RUN, RunDir
from bertkit.settings.run_settings import RunConfig
from bertkit.utils import locks
from bertkit.utils.files import check_output_directory, join_command


@contextmanager
def name_resuming_command(command: str, folder: Path, can_resume: Callable[[], bool]) -> Iterator[None]:
    """If Ctrl-C or SIGTERM interrupts the block, name the command that resumes the runs in a directory."""
    try:
        yield
    except (RunInterrupted, KeyboardInterrupt) as error:
        if not can_resume():
            raise
        resume = ["bertkit", *command.split(), "--resume", "--output-dir", str(folder)]
        raise RunInterrupted(f"interrupted; resume with: {join_command(resume)}") from error


@contextmanager
def join_if_resumed(config: RunConfig, folder: Path) -> Iterator[None]:
    """Prevent other processes from replacing the runs to resume during the block.

    The caller resolves its settings again at the beginning of the block, because another process may have
    replaced the runs until then.
    """
    with locks.join_directory(folder) if config.resume else nullcontext():
        yield


@dataclass(frozen=True)
class RunsDirectory:
    """A directory that contains several runs.

    Attributes:
        folder: The directory.
        command: The command, such as "study classify".
        output_names: Patterns of the names of files and directories that the command may write in addition
            to those of every run directory. `--overwrite` removes them.
    """

    folder: Path
    command: str
    output_names: Sequence[str]

    @contextmanager
    def open(self, config: RunConfig, fingerprints: Mapping[str, str]) -> Iterator[None]:
        """Create the directory, or resume the runs in it.

        With `--overwrite`, the files of a previous command are in a backup until a run has started. During
        the block, a shared lock prevents other processes from replacing them.

        Args:
            config: The settings of the command.
            fingerprints: Fingerprints by split of the data that all runs have in common.
        """
        with ExitStack() as stack:
            if config.resume:
                stack.enter_context(locks.join_directory(self.folder))
            else:
                stack.callback(locks.remove_if_unused, self.folder)  # when no lock file is open any more
                with locks.lock_directory(self.folder):
                    self._create(config, fingerprints)
                    stack.enter_context(locks.share_directory(self.folder))
                stack.callback(self._clean_up)
            with name_resuming_command(self.command, self.folder, self._has_runs):
                yield

    def _create(self, config: RunConfig, fingerprints: Mapping[str, str]) -> None:
        check_output_directory(self.folder, RUN, config.overwrite)
        locks.require_unshared(self.folder)
        for path in [*self._find(), *self._find("/*/")]:
            locks.require_unlocked(path)
        RunDir(self.folder).back_up(self.output_names)
        RunDir(self.folder).write_settings(self.command, config, fingerprints)

    def _find(self, pattern: str = "") -> list[Path]:
        """Return the outputs, or paths in them that match a pattern."""
        return [path for name in self.output_names for path in self.folder.glob(name + pattern)]

    def _has_runs(self) -> bool:
        """Return whether a run has started."""
        return bool(self._find(f"/**/{RunDir.SETTINGS_FILE}"))

    def _clean_up(self) -> None:
        """Delete the backup of the replaced runs, or restore the backup if no run has started."""
        if self._has_runs():
            RunDir(self.folder).delete_backup()
            return
        for path in self._find():
            shutil.rmtree(path, ignore_errors=True)
        RunDir(self.folder).discard_unstarted()
