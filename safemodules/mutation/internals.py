"""The private names of torch that this package reads, all of them.

What each is needed for stands with it; ``tests/test_internals.py`` fails if a version of
torch no longer has one, or if another file reads one.
"""

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

# What `parametrize` calls the classes that it makes; `type` gives them its own module.
_PARAMETRIZED = "Parametrized"
# Classes that fully_shard and replicate put on top; they skip exactly one class of the MRO.
_SHARDING_CLASSES = frozenset({"FSDPModule", "ReplicateModule"})
# Attributes that `torch.nn.Module.__init__` sets, and that hold what it registers.
REGISTRIES = ("_parameters", "_buffers", "_modules")


def is_initialised(module: nn.Module) -> bool:
    """Whether ``torch.nn.Module.__init__`` has run, which makes the registry of children."""
    return getattr(module, "_modules", None) is not None


def children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Children by name with every one of their names; ``named_children`` drops repeated ones."""
    return module._modules


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def hooks_of(module: nn.Module) -> list[Any]:
    """Forward hooks, also those of all modules: they may keep what a module is given or returns."""
    everywhere = torch.nn.modules.module
    own = {**module._forward_hooks, **module._forward_pre_hooks}
    others = {**everywhere._global_forward_hooks, **everywhere._global_forward_pre_hooks}
    return [*own.values(), *others.values()]


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called, so that its forward is not run as written."""
    return getattr(module, "_compiled_call_impl", None) is not None


def is_optimized(module: nn.Module) -> bool:
    """Whether a module is what ``torch.compile(model)`` returns."""
    return any(
        (base.__module__, base.__qualname__) == ("torch._dynamo.eval_frame", "OptimizedModule")
        for base in type(module).__mro__
    )


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` or ``replicate`` has put its class on top of a module's."""
    return any(
        base.__name__ in _SHARDING_CLASSES and base.__module__.startswith("torch.distributed.")
        for base in type(module).__mro__
    )


def is_lazy(module: nn.Module) -> bool:
    """Whether a module has not run yet, and changes its class when it does."""
    lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)
    return lazy and bool(module.has_uninitialized_params())  # type: ignore[operator]


def is_parametrized_class(cls: type) -> bool:
    """Whether a class was made by ``torch.nn.utils.parametrize``, for one module.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        >>> is_parametrized_class(type(layer)), is_parametrized_class(nn.Linear)
        (True, False)
    """
    return cls.__module__ == parametrize.__name__ and cls.__name__.startswith(_PARAMETRIZED)


def why_opaque(module: nn.Module) -> str | None:
    """Why neither a module nor anything that it holds can be converted, if so."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__}
    if "torch.nn.cpp.ModuleWrapper" in names:
        return "a C++ module: it has no Python source"
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule: its code is compiled. Convert the model before scripting it"
    if is_optimized(module):
        return "compiled by torch.compile. Convert the model before compiling it"
    if is_compiled_in_place(module):
        return "compiled in place. Convert the model before calling compile()"
    if isinstance(module, torch.fx.GraphModule):
        return "a GraphModule: its forward is generated from a graph. Convert before tracing"
    # FloatFunctional stands among them, and is what float models call for observed arithmetic
    quantized = any(".quantized" in name and name.startswith("torch.") for name in names)
    if quantized and type(module).__name__ != "FloatFunctional":
        return "quantized: it has no gradients to keep exact"
    return None


# -- the class that a user wrote ------------------------------------------------------------

# Entries of a generated class (see NOTE [ Class swap ] in rewriting/classes.py).
USER_CLASS = "_safemodules_user_class"
# True of a sequence of ours that computes what `nn.Sequential` does.
SEQUENTIAL = "_safemodules_is_sequential"


def user_class_of(cls: type) -> type:
    """A class as its user knows it: below parametrizations and our own generated class."""
    if is_parametrized_class(cls):
        cls = cls.__bases__[0]
    for base in cls.__mro__:
        if USER_CLASS in vars(base):
            found: Any = vars(base)[USER_CLASS]
            return found  # type: ignore[no-any-return]
    return cls


# -- what the recorder reads ------------------------------------------------------------------

# The descriptor behind `tensor.data = other`, which replaces a storage unseen by versions.
DATA: Any = Tensor.__dict__.get("data", torch._C.TensorBase.__dict__.get("data"))


def next_sequence_number() -> int:
    """Number that the next node of the autograd graph gets in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def saved_tensor_hooks_active() -> bool:
    """Whether saved-tensor hooks are active, under which torch makes no version check."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def top_saved_tensor_hooks() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The pair of hooks that packs what is saved now; ``torch.autograd.graph`` only sets them.

    Raises:
        RuntimeError: there is none.
    """
    found = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if found is None:
        raise RuntimeError("no saved-tensor hooks are active")
    return found


def save_tensor(tensor: Tensor) -> Any:
    """Save a tensor as an operation would, through the hooks that are active; has ``unpack()``."""
    return torch._C._autograd._make_saved_tensor(tensor, is_output=False)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors at once: on an accelerator one kernel in place of as many."""
    if targets:
        torch._foreach_copy_(targets, sources)


# What torch says of a saved tensor that was overwritten.
VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_roles: dict[type, tuple[str, ...]] = {}


def saved_roles(node: Any) -> tuple[str, ...]:
    """Names of what a node saves: ``"self"``, ``"result"``, ``"tensors"``."""
    kind = type(node)
    if kind not in _roles:
        prefix = "_raw_saved_"
        _roles[kind] = tuple(n[len(prefix) :] for n in dir(kind) if n.startswith(prefix))
    return _roles[kind]


def raw_saved(node: Any, role: str) -> list[Any]:
    """What a node saved under a name, not unpacked: neither checked nor recomputed."""
    try:
        found = getattr(node, f"_raw_saved_{role}")
    except RuntimeError:  # freed by a backward
        return []
    return list(found) if isinstance(found, tuple | list) else [found]


def raw_tensor(raw: Any) -> Tensor | None:
    """The saved tensor as it is now, whatever its version; ``None`` if hooks packed it."""
    if getattr(raw, "unpack_hook", None) is not None:
        return None
    try:
        data = raw.data
    except (AttributeError, RuntimeError):  # an older torch; freed
        return None
    return data if isinstance(data, Tensor) else None


def is_packed(raw: Any) -> bool:
    """Whether saved-tensor hooks packed a saved tensor, so that reading it runs them."""
    return getattr(raw, "unpack_hook", None) is not None


def touch_saved(node: Any, role: str) -> None:
    """Read what a node saved, which makes torch check its version.

    Raises:
        RuntimeError: it was overwritten, or freed.
    """
    getattr(node, "saved_tensors" if role == "tensors" and is_custom(node) else f"_saved_{role}")


def is_custom(node: Any) -> bool:
    """Whether a node is that of an autograd Function, whose own code decides what it reads."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def as_plain_tensors() -> Any:
    """Read tensors of subclasses as tensors, without running the subclass's code."""
    return torch._C.DisableTorchFunctionSubclass()


def leave_mode(mode: TorchFunctionMode) -> list[Any]:
    """Take a function mode off this thread's stack; returns the stack as it was."""
    stack = _mode_stack()
    if any(entry is mode for entry in stack):
        _set_modes([entry for entry in stack if entry is not mode])
    return stack


def restore_modes(stack: list[Any]) -> None:
    """Put a stack of function modes back."""
    if any(a is not b for a, b in zip_longest(stack, _mode_stack())):
        _set_modes(stack)


def _mode_stack() -> list[Any]:
    return list(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _set_modes(stack: list[Any]) -> None:
    for _ in _mode_stack():
        torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
    for entry in stack:
        torch.overrides._push_mode(entry)  # type: ignore[no-untyped-call]


@contextmanager
def engine_wrapped(run: Callable[..., Any]) -> Iterator[None]:
    """Put a function between ``torch.autograd.backward`` and the engine that it calls."""
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    torch.autograd._engine_run_backward = functools.partial(  # type: ignore[attr-defined]
        run, engine
    )
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


def code_that_runs_the_engine() -> CodeType:
    """Code of the function in whose frame a thread waits for a backward to be done."""
    code: CodeType = torch.autograd.graph._engine_run_backward.__code__
    return code


def compiles_ahead() -> bool:
    """Whether what Dynamo traces now goes through AOTAutograd, which traces the backward too."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    compiler = InstructionTranslator.current_tx().output.compiler_fn
    name = str(getattr(compiler, "_compiler_name", ""))
    inner = getattr(compiler, "compiler_fn", None)
    return name == "inductor" or name.startswith("aot_") or type(inner).__name__ == "AotAutograd"


class CompiledCalls:
    """Calls something around each call into code that ``torch.compile`` has compiled.

    Whatever is compiled (a module, in place or not, or a function) is entered through one
    function of Dynamo, `compile_wrapper`. It asks `_callback_from_stance` for its callback
    just before the compiled code runs, and gives the former callback to
    `_maybe_set_eval_frame` in a `finally` right after. Both names are wrapped while this is
    installed; a call is told from another by its frame.

    Args:
        enter: called before; what it returns is handed to ``leave``.
        leave: called after, with that and the frame of the call.

    Attributes:
        seen: compiled code has run.
    """

    _MODULE = "torch._dynamo.eval_frame"

    def __init__(self, enter: Callable[[], Any], leave: Callable[[Any, FrameType], None]) -> None:
        self.seen = False
        self._enter, self._leave = enter, leave
        # Per call: its frame, what `enter` returned, and whether its code has been let run.
        self._open: list[tuple[FrameType, Any, list[bool]]] = []
        self._dynamo: Any = None
        self._functions: tuple[Any, Any] | None = None

    def install(self) -> None:
        """Wrap Dynamo's two functions, if it is imported and they are not wrapped yet."""
        if self._dynamo is not None or self._MODULE not in sys.modules:
            return
        dynamo: Any = sys.modules[self._MODULE]
        callback = getattr(dynamo, "_callback_from_stance", None)
        setter = getattr(dynamo, "_maybe_set_eval_frame", None)
        if callback is None or setter is None:
            return  # it is half imported, or another version
        thread = threading.get_ident()

        def ask(*args: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_code.co_name == "compile_wrapper" and threading.get_ident() == thread:
                self.seen = True
                self._open.append((frame, self._enter(), []))
            return callback(*args)

        def put(*args: Any) -> Any:
            result = setter(*args)
            if self._open and self._open[-1][0] is sys._getframe(1):
                frame, entered, ran = self._open[-1]
                if ran:
                    self._open.pop()
                    self._leave(entered, frame)
                ran.append(True)
            return result

        self._dynamo, self._functions = dynamo, (callback, setter)
        dynamo._callback_from_stance, dynamo._maybe_set_eval_frame = ask, put

    def remove(self) -> None:
        """Put Dynamo's own functions back."""
        if self._dynamo is not None and self._functions is not None:
            callback, setter = self._functions
            self._dynamo._callback_from_stance = callback
            self._dynamo._maybe_set_eval_frame = setter
        self._dynamo = self._functions = None


# -- what operators declare -----------------------------------------------------------------


@functools.cache
def returns_new_memory(name: str) -> bool:
    """Whether all functional overloads of an ATen operator are primitive and return no alias."""
    found = False
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        if "out" in schema.overload_name:
            continue
        if any(returned.alias_info is not None for returned in schema.returns):
            return False
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        try:
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}{overload}", "CompositeImplicitAutograd"
            )
        except RuntimeError:  # of the interpreter of TorchScript only
            continue
        if composite:
            return False
        found = True
    return found


# -- calls of modules -----------------------------------------------------------------------


@contextmanager
def module_calls(
    enter: Callable[[nn.Module, Any], None], leave: Callable[[nn.Module, Any, Any, Any], None]
) -> Iterator[None]:
    """Call functions when any module is called and when it returns, keywords included.

    Removing the global hook forgets that it took keywords, which ``torch.compile`` takes for a
    hook that is still there.
    """
    hooks = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, with_kwargs=True, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
            torch.nn.modules.module._global_forward_hooks_with_kwargs.pop(hook.id, None)
