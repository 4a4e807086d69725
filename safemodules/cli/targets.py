"""TARGET: how a model is named on the command line."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from safemodules.cli.command import UsageError

#: Shown in ``--help`` and in errors.
TARGET_FORMS = "package.module:factory, torchvision:NAME or path/file.py:Class"


class TargetError(UsageError):
    """A TARGET names no model that can be built."""


def load_target(target: str) -> nn.Module:
    """Build the model that ``target`` names.

    Args:
        target: ``package.module:factory`` (imported, with the current folder on the path),
            ``torchvision:NAME`` (built without weights), or ``path/file.py:Class``. What
            stands after the last colon may be dotted, and is a class or a function that
            needs no arguments, or a model.

    Returns:
        A fresh instance, or the model itself where the name is bound to one.

    Raises:
        TargetError: If the name leads to nothing, needs arguments, raises, or gives no
            ``torch.nn.Module``.
    """
    source, colon, name = target.rpartition(":")
    if not (colon and source and name):
        raise TargetError(
            f"TARGET {target!r} has no colon with a name on either side; expected {TARGET_FORMS}"
        )
    if source == "torchvision":
        return _build_torchvision(target, name)
    if source.endswith(".py"):
        module = _import_file(target, Path(source))
    elif os.sep in source:
        raise TargetError(
            f"TARGET {target!r}: {source!r} is a path but not one of a .py file; "
            f"expected {TARGET_FORMS}"
        )
    else:
        module = _import_module(target, source)
    return _build(target, _look_up(target, module, name))


def _build_torchvision(target: str, name: str) -> nn.Module:
    try:
        from torchvision import models  # loaded only when asked for
    except ImportError as error:
        raise TargetError(f"TARGET {target!r} needs torchvision: {error}") from error
    if name not in models.list_models():
        raise TargetError(
            f"TARGET {target!r}: torchvision has no model {name!r}"
            f"{_suggestion(name, models.list_models())}; "
            "torchvision.models.list_models() lists all"
        )
    builder = models.get_model_builder(name)
    # Detection and segmentation builders download a backbone's weights unless told not to.
    options = {
        option: None
        for option in ("weights", "weights_backbone")
        if option in inspect.signature(builder).parameters
    }
    return _call(target, builder, options)


def _import_file(target: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(
            f"TARGET {target!r}: there is no file {str(path)!r} (current folder: {Path.cwd()})"
        )
    path = path.resolve()
    _put_on_path(path.parent)  # siblings import each other, as under `python file.py`
    # One name for each path: two files may have equal stems, and even equal text.
    name = f"_safemodules_target_{zlib.crc32(os.fsencode(path)):08x}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"TARGET {target!r}: {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "; a file of a package is named package.module:Class"
        raise TargetError(
            f"TARGET {target!r}: importing {str(path)!r} raised {_describe(error)}{hint}"
        ) from error
    return module


def _import_module(target: str, name: str) -> ModuleType:
    _put_on_path(Path.cwd())  # the console script's own path starts in bin/
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetError(
                f"TARGET {target!r}: there is no module {error.name!r}; it is "
                "looked for in the current folder and in the installed packages. "
                f"Expected {TARGET_FORMS}"
            ) from error
        raise TargetError(
            f"TARGET {target!r}: importing {name!r} raised {_describe(error)}"
        ) from error
    except Exception as error:
        raise TargetError(
            f"TARGET {target!r}: importing {name!r} raised {_describe(error)}"
        ) from error


def _look_up(target: str, module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            candidates = [key for key, value in vars(module).items() if callable(value)]
            where = getattr(module, "__file__", None) or module.__name__
            raise TargetError(
                f"TARGET {target!r}: {where} has no {name!r}{_suggestion(name, candidates)}"
            ) from error
    return found


def _build(target: str, found: Any) -> nn.Module:
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise TargetError(
            f"TARGET {target!r} is a {type(found).__name__}; expected a class, "
            "a function that returns a model, or a model"
        )
    return _call(target, found, {})


def _call(target: str, factory: Any, options: dict[str, None]) -> nn.Module:
    missing = _required(factory, given=options)
    if missing:
        raise TargetError(
            f"TARGET {target!r} needs arguments ({', '.join(missing)}); name a "
            "function that takes none and returns the model, for instance "
            "`def build(): return Net(…)` and file.py:build"
        )
    try:
        model = factory(**options)
    except Exception as error:
        raise TargetError(
            f"TARGET {target!r}: building the model raised {_describe(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"TARGET {target!r} returned a {type(model).__name__}; expected a torch.nn.Module"
        )
    return model


def _required(factory: Any, given: dict[str, None]) -> list[str]:
    """Return the names of the arguments without a default that ``given`` does not hold."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C: calling it will tell
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in given
    ]


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _suggestion(name: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(candidates), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
