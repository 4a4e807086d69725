"""Which functions the forwards of a tree of files reach.

A name is followed through imports to the file that defines it, a method up and down the
classes that inherit it. What is only mentioned counts as called: handed on, it may be.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from safemodules.linting.summaries import ClassSummary, Summary

_DEPTH = 12
#: Functions that run before or between forwards, although methods of the same object mention them.
SET_UP = frozenset(
    """__init__ _init_weights _initialize_weights _reset_parameters from_pretrained init_weights
    initialize_weights load_adapter load_state_dict post_init reset_parameters save_pretrained
    enable_input_require_grads gradient_checkpointing_enable""".split()
)
Key = tuple[str, str]  # file and qualified name


def module_name(path: str) -> tuple[str, ...]:
    """Dotted name of a file, from the outermost folder that is a package."""
    absolute = os.path.abspath(path)
    folder, name = os.path.split(absolute)
    stem = name.rpartition(".")[0]
    parts = [] if stem == "__init__" else [stem]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        if not name:
            break
        parts.insert(0, name)
    return tuple(parts)


class Tree:
    """The summaries of a tree of files.

    Args:
        summaries: of the files that were parsed.
        names: dotted name of each file that may be parsed, parsed or not.
    """

    def __init__(self, summaries: Iterable[Summary], names: Mapping[str, tuple[str, ...]]) -> None:
        self.files = {summary.path: summary for summary in summaries}
        self.names = names
        self.by_name: dict[tuple[str, ...], str] = {}
        for path, name in names.items():
            self.by_name.setdefault(name, path)
        self.missing: set[str] = set()
        self.reached: set[Key] = set()
        self._modules: dict[Key, bool] = {}

    # -- names --------------------------------------------------------------------------

    def _target(self, path: str, module: str) -> tuple[str, ...]:
        """Absolute name of a module that a file imports."""
        level = len(module) - len(module.lstrip("."))
        parts = tuple(part for part in module.lstrip(".").split(".") if part)
        if level == 0:
            return parts
        own = self.names[path]
        is_package = os.path.basename(path).startswith("__init__.")
        base = own if is_package else own[:-1]
        return (*base[: len(base) - level + 1], *parts)

    def look_up(self, path: str, name: str, depth: int = 0) -> Key | None:
        """The definition that a dotted name of a file leads to."""
        summary = self.files.get(path)
        if summary is None or depth > _DEPTH:
            return None
        if name in summary.functions or name in summary.classes:
            return path, name
        head, _, rest = name.partition(".")
        if head in summary.classes:
            return None if rest not in summary.classes[head].methods else (path, name)
        if head in summary.imports:
            module, attribute = summary.imports[head]
            return self._follow(self._target(path, module), attribute, rest, depth)
        for star in summary.stars:
            found = self._follow(self._target(path, star), head, rest, depth)
            if found is not None:
                return found
        return None

    def _follow(self, module: tuple[str, ...], name: str, rest: str, depth: int) -> Key | None:
        if not name:  # `import a.b`, and then `a.b.f`
            parts = [part for part in rest.split(".") if part]
            while parts and (*module, parts[0]) in self.by_name:
                module = (*module, parts.pop(0))
            return self._in_module(module, ".".join(parts), depth)
        found = self._in_module(module, f"{name}.{rest}" if rest else name, depth)
        if found is None and (*module, name) in self.by_name and rest:
            found = self._in_module((*module, name), rest, depth)
        return found

    def _in_module(self, module: tuple[str, ...], name: str, depth: int) -> Key | None:
        path = self.by_name.get(module)
        if path is None or not name:
            return None
        if path not in self.files:
            self.missing.add(path)
            return None
        return self.look_up(path, name, depth + 1)

    # -- classes ------------------------------------------------------------------------

    def class_at(self, key: Key) -> ClassSummary | None:
        """The summary of a class."""
        summary = self.files.get(key[0])
        return None if summary is None else summary.classes.get(key[1])

    def bases(self, key: Key) -> list[Key]:
        """Direct bases that are defined in the tree."""
        cls = self.class_at(key)
        found = [self.look_up(key[0], base) for base in (cls.bases if cls is not None else ())]
        return [base for base in found if base is not None and self.class_at(base) is not None]

    @cached_property
    def derived(self) -> dict[Key, list[Key]]:
        """Classes derived directly from each class."""
        found: dict[Key, list[Key]] = {}
        for path, summary in self.files.items():
            for name in summary.classes:
                for base in self.bases((path, name)):
                    found.setdefault(base, []).append((path, name))
        return found

    def is_module(self, key: Key) -> bool:
        """Whether a class is one of modules."""
        if key not in self._modules:
            self._modules[key] = False  # a class that is its own base
            self._modules[key] = self._is_module(key)
        return self._modules[key]

    def _is_module(self, key: Key) -> bool:
        cls = self.class_at(key)
        if cls is None:
            return False
        if cls.is_module is not None:
            return cls.is_module
        bases = self.bases(key)
        if any(map(self.is_module, bases)):
            return True
        return len(bases) < len(cls.bases) and cls.looks_like_module

    # -- reach --------------------------------------------------------------------------

    def run(self) -> set[Key]:
        """Every function that is reached, by file and qualified name."""
        rest: list[Key] = []
        seen: set[tuple[Key, str]] = set()

        def reach(key: Key) -> None:
            if key not in self.reached and key[1].rpartition(".")[2] not in SET_UP:
                self.reached.add(key)
                rest.append(key)

        for path, summary in self.files.items():
            for name in summary.classes:
                if self.is_module((path, name)):
                    for method in ("forward", "__call__", "training_step"):
                        self._method((path, name), method, reach, seen, up=False)
        while rest:
            path, qualname = rest.pop()
            for mention in self.files[path].functions.get(qualname, ()):
                self._mention(path, qualname, mention, reach, seen)
        return self.reached

    def _mention(
        self,
        path: str,
        qualname: str,
        mention: str,
        reach: Callable[[Key], None],
        seen: set[tuple[Key, str]],
    ) -> None:
        head, _, name = mention.partition(".")
        owner = path, qualname.rpartition(".")[0]
        if head == "self" and self.class_at(owner) is not None:
            self._method(owner, name, reach, seen)
        elif head == "super" and self.class_at(owner) is not None:
            for base in self.bases(owner):
                self._method(base, name, reach, seen, down=False)
        elif head == "?":
            for cls in self.files[path].classes:
                if name in self.files[path].classes[cls].methods and self.is_module((path, cls)):
                    reach((path, f"{cls}.{name}"))
        else:
            found = self.look_up(path, mention)
            if found is not None and found[1] in self.files[found[0]].functions:
                reach(found)

    def _method(
        self,
        owner: Key,
        name: str,
        reach: Callable[[Key], None],
        seen: set[tuple[Key, str]],
        *,
        up: bool = True,
        down: bool = True,
    ) -> None:
        """A method as its class, the bases and the derived classes define it."""
        if (owner, name) in seen:
            return
        seen.add((owner, name))
        cls = self.class_at(owner)
        if cls is None:
            return
        if name in cls.methods:
            reach((owner[0], f"{owner[1]}.{name}"))
        elif up:
            for base in self.bases(owner):
                self._method(base, name, reach, seen, down=False)
        for derived in self.derived.get(owner, ()) if down else ():
            self._method(derived, name, reach, seen, up=False)
