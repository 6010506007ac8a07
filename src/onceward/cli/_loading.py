"""Loading the user's app: its Inbox, or an error that points at the user's own lines."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.runtime.code_location import is_own, short_path
from onceward.runtime.redact import redact
from onceward.runtime.suggest import did_you_mean, is_misspelling

FORMS: Final = "use file.py, file.py:inbox or module:inbox"

_MISSING_NAME: Final = re.compile(
    r"(?P<reason>cannot import name '(?P<name>\w+)' from "
    r"(?P<partial>partially initialized module )?'[\w.]+')"
)
"""Python adds the path of the module, which is long and says nothing about the fault."""

_CIRCULAR: Final = (
    "; the modules import each other: import the second one below the line that creates the inbox"
)
_OS_MODULE: Final = ("<frozen os>", os.__file__)
_IMPORT_MACHINERY: Final = ("<frozen importlib", f"{Path(importlib.__file__).parent}{os.sep}")

_GENERATED: Final = "<string>"
"""The file name of generated code, such as the ``__init__`` of a dataclass."""


class AppFailed(OncewardError):
    """The user's code raised an error while it was imported. `frames` shows where."""

    def __init__(self, message: str, hint: str, frames: str) -> None:
        self.hint = hint
        self.frames = frames
        super().__init__(message)


@cache
def load_inbox(app: str) -> Inbox:
    """Import ``file.py``, ``file.py:name`` or ``module:name`` once, and return its Inbox.

    Raises ConfigurationError if there is no such Inbox, or several and no name chooses one, and
    AppFailed if the code of the app raises an error.
    """
    location, _, name = app.partition(":")
    module = _import(location)
    inboxes = {key: value for key, value in vars(module).items() if isinstance(value, Inbox)}
    if name:
        return _named_inbox(module, location, name, inboxes)
    if not inboxes:
        raise ConfigurationError(
            f"{location} defines no Inbox; it needs one at the top level: inbox = Inbox()"
        )
    if len(inboxes) > 1:
        names, first = ", ".join(inboxes), next(iter(inboxes))
        msg = f"{location} defines several inboxes: {names}; choose one, such as {location}:{first}"
        raise ConfigurationError(msg)
    return next(iter(inboxes.values()))


def _named_inbox(module: ModuleType, location: str, name: str, inboxes: dict[str, Inbox]) -> Inbox:
    if name in inboxes:
        return inboxes[name]
    if hasattr(module, name):
        kind = type(getattr(module, name)).__name__
        found = f"its {name!r} is of type {kind}"
    else:
        found = f"it has no {name!r}"
    listed = f"; use {location}:{next(iter(inboxes))}" if inboxes else ""
    hint = did_you_mean(name, inboxes) or listed
    raise ConfigurationError(f"{location} has no Inbox named {name!r}: {found}{hint}")


def _import(location: str) -> ModuleType:
    try:
        return _load_file(Path(location)) if location.endswith(".py") else _load_module(location)
    except ConfigurationError as error:
        line = _user_line(error)
        faults = [fault if line in fault else f"{line}: {fault}" for fault in error.faults]
        raise ConfigurationError(faults) from error
    except Exception as error:
        raise _app_failed(location, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(_missing_file(path))
    name = path.stem
    if name in sys.modules:
        raise ConfigurationError(
            f"{path} has the name of the module {name!r}, which Onceward uses; rename the file"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _missing_file(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder; {FORMS}"
    folder = path.parent
    if not folder.is_dir():
        return f"no such file: {path}; there is no folder {folder} in {Path.cwd()}"
    files = [str(file) for file in sorted(folder.glob("*.py"))]
    hint = did_you_mean(str(path), files) or f"; the current folder is {Path.cwd()}"
    return f"no such file: {path}{hint}"


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if not all(part.isidentifier() for part in name.split(".")):
        is_file = Path(f"{name}.py").is_file()
        hint = f"did you mean {name + '.py'!r}?" if is_file else FORMS
        raise ConfigurationError(f"no such module: {name!r}; {hint}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            modules = [file.stem for file in sorted(Path.cwd().glob("*.py"))]
            hint = did_you_mean(name, modules) or f"; the current folder is {Path.cwd()}; {FORMS}"
            raise ConfigurationError(f"no such module: {name!r}{hint}") from error
        raise


# Errors of the user's code.


def _app_failed(location: str, error: Exception) -> AppFailed:
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, ImportError) and (missing := _MISSING_NAME.search(summary)):
        is_app = error.name == Path(location).stem  # Python does not know that it is being loaded
        is_circular = is_app or missing["partial"] is not None
        note = _CIRCULAR if is_circular else _similar_name(error, missing["name"])
        summary = summary[: missing.end("reason")] + note
    message = f"{location} cannot be loaded: {redact(summary)}"
    return AppFailed(message, _hint(location, error), user_frames(error))


def _similar_name(error: ImportError, name: str) -> str:
    names = [each for each in dir(sys.modules.get(error.name or "")) if not each.startswith("_")]
    return did_you_mean(name, names)


def user_frames(error: BaseException) -> str:
    """Return the traceback as Python prints it, without Onceward's and importlib's frames."""
    trace = traceback.TracebackException.from_exception(error)
    parts: list[Any] = [trace]
    while parts:
        part = parts.pop()
        part.stack = traceback.StackSummary.from_list(
            [_without_secrets(frame) for frame in part.stack if _is_users(frame)]
        )
        parts += [cause for cause in (part.__cause__, part.__context__) if cause is not None]
    if trace.__cause__ or (trace.__context__ and not trace.__suppress_context__):
        return "".join(trace.format())
    lines = [*trace.stack.format()]
    if isinstance(error, SyntaxError):
        lines += [*trace.format_exception_only()][:-1]
    return "".join(lines)


def _is_users(frame: traceback.FrameSummary) -> bool:
    path = frame.filename
    left_out = (*_IMPORT_MACHINERY, *_OS_MODULE, _GENERATED)
    return not is_own(path) and not path.startswith(left_out)


def _without_secrets(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """Return a frame whose source line shows no secret that is written in the code."""
    line = redact(frame.line or "")
    if line == frame.line:
        return frame
    return traceback.FrameSummary(frame.filename, frame.lineno, frame.name, line=line)


def _user_line(error: Exception) -> str:
    """Return the last of the user's lines that led to an error, or an empty text."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if _is_users(frame):
            return f"{short_path(frame.filename)}:{frame.lineno}"
    return ""


def _hint(location: str, error: Exception) -> str:
    """Return advice on an error that newcomers often see, or an empty text."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_module(location, error.name.partition(".")[0])
    if isinstance(error, ImportError) and "relative import" in str(error):
        return f"A file of a package is loaded as a module: {_module_form(location)}"
    if isinstance(error, KeyError) and (variable := _missing_variable(error)):
        return f"Set the environment variable {variable}."
    return ""


def _missing_module(location: str, name: str) -> str:
    if (Path.cwd() / name).is_dir() or (Path.cwd() / f"{name}.py").is_file():
        return (
            f"{name} is in the current folder. Load the app as a module: {_module_form(location)}"
        )
    if is_misspelling(name, "onceward"):
        return "Did you mean 'onceward'?"
    return (
        f"Install it with `{sys.executable} -m pip install …` (the package may have another name "
        f"than {name}), or run the command in the folder that contains {name}."
    )


def _module_form(location: str) -> str:
    """Return the command that is running, with the app as a module."""
    module = ".".join(Path(location).with_suffix("").parts)
    context = click.get_current_context(silent=True)
    if context is None:
        return f"onceward serve {module}"
    is_option = any(
        isinstance(each, click.Option) for each in context.command.params if each.name == "app"
    )
    return f"onceward {context.info_name} {'… --app ' if is_option else ''}{module}"


def _missing_variable(error: KeyError) -> str | None:
    """Return the variable, if the error comes from ``os.environ[…]``."""
    frames = traceback.extract_tb(error.__traceback__)
    is_environment = frames[-1].filename in _OS_MODULE
    return str(error.args[0]) if is_environment and error.args else None
