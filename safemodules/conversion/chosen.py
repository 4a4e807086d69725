"""Modules that are checkpointed because the caller says so: by name, class or predicate."""

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from safemodules.errors import OptionError

__all__ = ["LOOPS", "chosen_modules", "wants_loops"]

LOOPS = "loops"

Predicate = Callable[[str, nn.Module], bool]


def _choices(checkpoint: Any) -> tuple[Any, ...]:
    """Every single choice."""
    if checkpoint is False:
        return ()
    return tuple(checkpoint) if isinstance(checkpoint, (list, tuple, set)) else (checkpoint,)


def wants_loops(checkpoint: Any) -> bool:
    """Whether loop bodies are to be checkpointed.

    Example:
        >>> wants_loops("loops"), wants_loops(("loops", nn.Linear)), wants_loops(False)
        (True, True, False)
    """
    return any(isinstance(choice, str) and choice == LOOPS for choice in _choices(checkpoint))


def chosen_modules(model: nn.Module, checkpoint: Any) -> list[tuple[str, nn.Module]]:
    """The modules that a value of ``checkpoint=`` names, each once, by dotted path.

    Args:
        model: the model.
        checkpoint: ``False``, ``"loops"``, a dotted name, a class, a predicate
            ``(name, module) -> bool``, or a list of such.

    Raises:
        OptionError: it is none of these, or chooses nothing.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> [name for name, _ in chosen_modules(net, nn.Linear)]
        ['0']
        >>> [name for name, _ in chosen_modules(net, ["1", lambda name, module: name == "0"])]
        ['1', '0']
    """
    found: dict[int, tuple[str, nn.Module]] = {}
    for choice in _choices(checkpoint):
        if isinstance(choice, str) and choice == LOOPS:
            continue
        named = list(_named(model, choice))
        if not named:
            raise OptionError(f"checkpoint={choice!r} chooses no module of this model.")
        for path, module in named:
            found.setdefault(id(module), (path, module))
    return list(found.values())


def _named(model: nn.Module, choice: Any) -> Iterator[tuple[str, nn.Module]]:
    modules = dict(model.named_modules())
    if isinstance(choice, str):
        if choice not in modules:
            close = difflib.get_close_matches(choice, modules, n=3)
            hint = f" Close to it: {', '.join(map(repr, close))}." if close else ""
            raise OptionError(
                f"checkpoint={choice!r} names no module of this model; expected False, 'loops' or "
                f"a dotted name.{hint} model.named_modules() lists the names."
            )
        yield choice, modules[choice]
    elif isinstance(choice, type) and issubclass(choice, nn.Module):
        yield from ((path, m) for path, m in modules.items() if isinstance(m, choice))
    elif callable(choice) and not isinstance(choice, type):
        yield from ((path, m) for path, m in modules.items() if choice(path, m))
    else:
        raise OptionError(
            f"checkpoint={choice!r} is not available; expected False, 'loops', the dotted name of "
            f"a module, a class of modules, a predicate (name, module) -> bool, or a list of those."
        )
