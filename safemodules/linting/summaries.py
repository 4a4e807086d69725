"""What of a file tells which functions its forwards reach, in a form that processes can send."""

import ast
import re
from dataclasses import dataclass, field

import torch
from torch import nn

from safemodules.linting.contexts import SourceContext
from safemodules.linting.outline import ClassOutline, FunctionOutline, Import, Outline
from safemodules.mutation.resolution import resolve
from safemodules.mutation.scopes import Scope

_NAMES = re.compile(rb"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_BEHIND_BRACKETS = re.compile(rb"[)\]]\s*\.\s*([A-Za-z_]\w*)")
_SUPER = re.compile(rb"super\([^()]*\)\s*\.\s*(\w+)")
#: Bases from other packages that are modules.
MODULE_BASES = frozenset(
    """BaseModule GradientCheckpointingLayer LightningModule ModelMixin Module PreTrainedModel
    PyTorchModelHubMixin ScriptModule""".split()
)


@dataclass(frozen=True)
class ClassSummary:
    """One class.

    Attributes:
        bases: dotted names as they are written.
        methods: names of its functions.
        is_module: its own file shows that it is one; ``None`` where other files decide.
        looks_like_module: it has a forward, and a base that no file may show.
    """

    bases: tuple[str, ...]
    methods: frozenset[str]
    is_module: bool | None
    looks_like_module: bool


@dataclass(frozen=True)
class Summary:
    """One file.

    Attributes:
        path: the file.
        imports: name -> (module, name in it).
        stars: modules whose names are all imported.
        classes: by qualified name.
        functions: qualified name of each function -> dotted names that it mentions.
    """

    path: str
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    stars: tuple[str, ...] = ()
    classes: dict[str, ClassSummary] = field(default_factory=dict)
    functions: dict[str, frozenset[str]] = field(default_factory=dict)


def summarise(path: str, outline: Outline) -> Summary:
    """Summarise a file."""
    imports = {}
    for name, bindings in outline.names.items():
        for binding in bindings:
            if isinstance(binding, Import):
                imports[name] = (binding.module, binding.name)
    methods = {function.node.name for function in outline.functions if function.owner is not None}
    known = {*outline.names}
    functions = {
        function.qualname: _mentions(function, outline, known, methods)
        for function in outline.functions
    }
    classes = {name: _class(cls, outline) for name, cls in outline.classes.items()}
    return Summary(path, imports, tuple(outline.stars), classes, functions)


def _class(cls: ClassOutline, outline: Outline) -> ClassSummary:
    forward = cls.methods.get("forward")
    context = SourceContext.of(outline, None)
    scope = Scope(ast.Module([], []), None)
    decided: bool | None = None
    torch_base = False
    for base in cls.node.bases:
        for value in resolve(base, scope, context):
            if isinstance(value, type):
                torch_base = torch_base or issubclass(value, torch.autograd.Function)
                if issubclass(value, nn.Module):
                    decided = True
    bases = tuple(ast.unparse(base) for base in cls.node.bases)
    if decided is None and any(base.rpartition(".")[2] in MODULE_BASES for base in bases):
        decided = True
    takes_self = forward is not None and forward.self_name == "self"
    looks = takes_self and bool(bases) and not torch_base and b"torch" in outline.file.data
    return ClassSummary(bases, frozenset(cls.methods), decided, looks)


def _mentions(
    function: FunctionOutline, outline: Outline, known: set[str], methods: set[str]
) -> frozenset[str]:
    """Names that may be functions: of the module, behind ``self``, or methods of the file."""
    start, end = outline.file.start(function.node), outline.file.end(function.node)
    text = outline.file.data[start:end]
    own = function.self_name
    found: set[str] = set()
    lasts = {raw.decode() for raw in set(_BEHIND_BRACKETS.findall(text))}
    for raw in set(_NAMES.findall(text)):
        name = raw.decode()
        head, _, rest = name.partition(".")
        if head == own:
            first, _, rest = rest.partition(".")
            found.add(f"self.{first}")
        elif head in known:
            found.add(name)
        lasts.add(rest.rpartition(".")[2])
    found |= {f"?.{name}" for name in lasts & methods}
    if b"super" in text:
        found |= {f"super.{name.decode()}" for name in _SUPER.findall(text)}
    return frozenset(found)
