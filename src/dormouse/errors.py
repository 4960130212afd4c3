"""The errors a user can meet.

Each one carries the process exit code that the command line returns for it. A `UsageError` means: refused
before any work, nothing was written. Its message is one sentence (or a few lines) that names the field, its
value, what would have happened instead, and the way out.
"""


class DormouseError(Exception):
    """Base of every error that is reported to a user without a traceback."""

    exit_code = 1


class UsageError(DormouseError):
    """The request cannot be carried out as written; nothing has been changed."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, out of range, contradictory, or names a mechanism that is not built."""


class DataError(UsageError):
    """A corpus file is missing, unreadable, too small, or is not what its hash says."""


class RunDirError(UsageError):
    """A run directory is taken, locked, read-only, or holds foreign files."""


class CheckpointError(UsageError):
    """A checkpoint is incomplete, damaged, or does not fit the model."""


class ResumeMismatch(UsageError):  # noqa: N818 - the name says what is wrong
    """A resume asks for a configuration that is not the run's own."""


class TrainingHalted(DormouseError):  # noqa: N818
    """Training stopped itself: too many non-finite steps in a row, or an audit failed."""

    exit_code = 3
