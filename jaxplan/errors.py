"""The exception tree of jaxplan, drawn once.

    JaxplanError                 anything that jaxplan says on purpose; the command line prints it as one message
    ├── VerdictError             exit 1: a verdict against the plan (does not fit, drill failed)
    │   └── CheckpointError      a save failed, or no step can be restored; older steps stand
    │       └── NotFiniteError   a state with NaN or infinities was not saved
    ├── InputError               exit 2: what was given, what was expected, what to try
    └── MissingError             exit 3: something is not installed here, and how to install it
"""

from __future__ import annotations


class JaxplanError(Exception):
    """Base of every error that jaxplan raises on purpose."""

    exit_code = 2


class VerdictError(JaxplanError):
    """The plan was judged and failed: it does not fit, or it did not recover."""

    exit_code = 1


class CheckpointError(VerdictError):
    """A save failed, or no step can be restored; what was good before still is."""


class NotFiniteError(CheckpointError):
    """A state or a loss with NaN or infinities was refused as a checkpoint."""


class InputError(JaxplanError):
    """Bad input, told in three parts.

    Args:
        given: what was given, with its place (file, key, flag).
        expected: what was expected instead.
        suggestion: what to try, ready to paste where possible.
    """

    exit_code = 2

    def __init__(self, given: str, expected: str = "", suggestion: str = "") -> None:
        self.given, self.expected, self.suggestion = given, expected, suggestion
        parts = [given, expected and f"Expected {expected}", suggestion and f"Try {suggestion}"]
        super().__init__(" ".join(part.rstrip(".") + "." for part in parts if part))


class MissingError(JaxplanError):
    """Something that the command needs is not installed on this machine.

    Args:
        what: what is missing.
        install: the command that installs it.
    """

    exit_code = 3

    def __init__(self, what: str, install: str) -> None:
        self.what, self.install = what, install
        super().__init__(f"{what}. Install it with: {install}")
