"""Whether an expression is likely a tensor, told from the text of one function.

A living model answers that by running. From source alone it is a matter of evidence: how a
name is bound, annotated and used. Only what has some evidence of being a tensor is reported.
"""

import ast
import builtins
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from safemodules.linting.contexts import SourceContext
from safemodules.linting.outline import FunctionOutline
from safemodules.mutation.resolution import resolve


class Likeness(Enum):
    """What an expression is likely to be."""

    TENSOR = "tensor"
    TENSORS = "tensors"  # a tuple of them, or a tensor that is unpacked
    OTHER = "other"
    UNKNOWN = "unknown"


TENSOR, TENSORS, OTHER, UNKNOWN = Likeness

# Methods of tensors that lists, dictionaries, strings and arrays of numpy have not.
_SHARED_METHODS = frozenset(
    """all any apply apply_ argmax argmin backward clip conj copy count cumsum data data_ptr dim
    dot element_size fill flatten format get get_device index is_complex is_contiguous is_cuda
    is_floating_point is_leaf is_shared is_signed is_sparse item map_ max mean min mode name
    names ndimension nelement new numel numpy partition prod ravel register_hook repeat replace
    reshape resize round size sort split squeeze std storage storage_offset stride sum swapaxes
    take tolist trace transpose type values var view""".split()
)
_TENSOR_METHODS = (
    frozenset(name for name in dir(torch.Tensor) if not name.startswith("_")) - _SHARED_METHODS
)
_NUMBER_METHODS = frozenset(
    """item dim numel size ndimension nelement element_size stride tolist numpy is_contiguous
    is_complex is_floating_point get_device data_ptr storage_offset keys items index count
    format join startswith endswith strip lower upper pop""".split()
)
_NUMBER_ATTRIBUTES = frozenset(
    """shape ndim device dtype layout itemsize nbytes is_cuda requires_grad training names
    config""".split()
)
_SAME_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data", "grad"})
_UNPACKED_METHODS = frozenset(
    "chunk split unbind tensor_split topk sort max min unsafe_chunk hsplit vsplit dsplit".split()
)
_NO_TENSOR_FUNCTIONS = frozenset(
    """is_tensor is_storage is_complex is_floating_point is_nonzero is_grad_enabled
    is_autocast_enabled is_inference_mode_enabled is_autocast_cache_enabled numel device dtype
    Size finfo iinfo no_grad enable_grad inference_mode set_grad_enabled autocast compile
    Generator manual_seed load save get_default_dtype set_default_dtype set_printoptions
    broadcast_shapes result_type can_cast promote_types get_autocast_dtype
    get_autocast_gpu_dtype get_num_threads set_num_threads typename equal allclose
    is_autocast_cpu_enabled compiled_with_cxx11_abi get_device_module""".split()
)
_UNPACKED_FUNCTIONS = frozenset(
    """chunk split unbind tensor_split topk sort max min var_mean std_mean meshgrid unique
    broadcast_tensors cummax cummin kthvalue mode median aminmax lstm gru""".split()
)
_TUPLE_MODULES = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention)
_DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp)


class Likenesses:
    """Guesses for the expressions of one function.

    Args:
        function: the function.
        context: what is known of it.
        is_forward: it is a forward, whose first parameter is most likely a tensor.
    """

    def __init__(
        self, function: FunctionOutline, context: SourceContext, *, is_forward: bool
    ) -> None:
        self.context = context
        self.scope = function.scope
        self.bound: dict[str, list[tuple[ast.expr, str]]] = {}
        self.parameters: dict[str, Likeness] = {}
        self.names: dict[str, Likeness] = {}
        self._parameters(function.node, is_forward)
        for inner in function.nodes:
            for name, value, how in _bindings(inner):
                self.bound.setdefault(name, []).append((value, how))

    def _parameters(self, node: ast.AST, is_forward: bool) -> None:
        arguments = getattr(node, "args", None)
        if not isinstance(arguments, ast.arguments):
            return
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[str, ast.expr] = {}
        for argument, default in zip(positional[::-1], arguments.defaults[::-1], strict=False):
            defaults[argument.arg] = default
        for argument, keyword in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if keyword is not None:
                defaults[argument.arg] = keyword
        for index, argument in enumerate([*positional, *arguments.kwonlyargs]):
            guess = _annotated(argument.annotation)
            if guess is UNKNOWN and argument.arg in defaults:
                default = defaults[argument.arg]
                if not (isinstance(default, ast.Constant) and default.value is None):
                    guess = OTHER
            elif guess is UNKNOWN and argument.annotation is None and is_forward and index == 1:
                guess = TENSOR
            self.parameters[argument.arg] = guess
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                self.parameters[star.arg] = OTHER

    def of(self, node: ast.expr) -> Likeness:
        """What an expression is likely to be."""
        kind = _KINDS.get(type(node))
        return UNKNOWN if kind is None else kind(self, node)

    def may_be_container(self, node: ast.expr) -> bool:
        """Whether a name is bound to a list or a dictionary somewhere."""
        return isinstance(node, ast.Name) and any(
            isinstance(value, _DISPLAYS) and how == "whole"
            for value, how in self.bound.get(node.id, ())
        )

    # -- one method per kind of expression ------------------------------------------------

    def _other(self, node: Any) -> Likeness:
        return OTHER

    def _name(self, node: ast.Name) -> Likeness:
        name = node.id
        if name in self.names:
            return self.names[name]
        self.names[name] = UNKNOWN  # what refers to itself
        found = []
        if name in self.parameters:
            found.append(self.parameters[name])
        for value, how in self.bound.get(name, ()):
            guess = self._bound(value, how)
            if how != "augmented" or guess is TENSOR:
                found.append(guess)
        if not found and name not in self.parameters:
            values = self.context.outer(name)
            if values:
                found = [TENSOR if isinstance(values[0], torch.Tensor) else OTHER]
        self.names[name] = result = _together(found)
        return result

    def _bound(self, value: ast.expr, how: str) -> Likeness:
        """What a name is likely to be that is bound to a value, or to a part of it."""
        if how in ("whole", "augmented"):
            return self.of(value)
        if how == "part":
            return self._part(value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "range":
                return OTHER
            if value.func.id == "enumerate" and value.args:
                return OTHER if how == "item 0" else self._item(value.args[0])
            if value.func.id == "zip" and how.startswith("item "):
                index = int(how[5:])
                return self._item(value.args[index]) if index < len(value.args) else UNKNOWN
            return UNKNOWN
        return self._item(value) if how == "item" else UNKNOWN

    def _item(self, value: ast.expr) -> Likeness:
        guess = self.of(value)
        return TENSOR if guess in (TENSOR, TENSORS) else UNKNOWN

    def _part(self, value: ast.expr) -> Likeness:
        if self._is_shape(value):
            return OTHER
        guess = self.of(value)
        if guess is OTHER and not isinstance(value, ast.Tuple | ast.List):
            return UNKNOWN
        return TENSOR if guess in (TENSOR, TENSORS) else UNKNOWN

    def _is_shape(self, value: ast.expr) -> bool:
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(value, ast.Attribute):
            return value.attr == "shape"
        return (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "size"
        )

    def _attribute(self, node: ast.Attribute) -> Likeness:
        if node.attr in _NUMBER_ATTRIBUTES:
            return OTHER
        if node.attr in _SAME_ATTRIBUTES:
            return self.of(node.value)
        values = resolve(node, self.scope, self.context)
        if values:
            return TENSOR if isinstance(values[0], torch.Tensor) else OTHER
        return self._assigned(node) if isinstance(node.value, ast.Name) else UNKNOWN

    def _assigned(self, node: ast.Attribute) -> Likeness:
        """What ``self.<name>`` is by the calls whose results the methods assign to it."""
        cls, outline = self.context.class_outline, self.context.outline
        name = f"self.{node.attr}"
        if (
            cls is None
            or outline is None
            or getattr(node.value, "id", "") != self.context.self_name
        ):
            return UNKNOWN
        if name not in self.names:
            self.names[name] = UNKNOWN  # what refers to itself
            values = [
                v for base in outline.bases(cls) for v, _ in base.own_attributes.get(node.attr, ())
            ]
            self.names[name] = _together([self.of(v) for v in values if isinstance(v, ast.Call)])
        return self.names[name]

    def _subscript(self, node: ast.Subscript) -> Likeness:
        if self._is_shape(node.value):
            return OTHER
        guess = self.of(node.value)
        return TENSOR if guess in (TENSOR, TENSORS) else UNKNOWN

    def _binary(self, node: ast.BinOp) -> Likeness:
        if isinstance(node.op, ast.MatMult):
            return TENSOR
        return _operated([self.of(node.left), self.of(node.right)])

    def _compare(self, node: ast.Compare) -> Likeness:
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            return OTHER
        return _operated([self.of(node.left), *map(self.of, node.comparators)])

    def _unary(self, node: ast.UnaryOp) -> Likeness:
        return OTHER if isinstance(node.op, ast.Not) else self.of(node.operand)

    def _choice(self, node: ast.IfExp) -> Likeness:
        return _together([self.of(node.body), self.of(node.orelse)])

    def _either(self, node: ast.BoolOp) -> Likeness:
        return _together([self.of(value) for value in node.values])

    def _walrus(self, node: ast.NamedExpr) -> Likeness:
        return self.of(node.value)

    def _call(self, node: ast.Call) -> Likeness:
        values = resolve(node.func, self.scope, self.context)
        if values:
            return _called(values[0], node)
        if not isinstance(node.func, ast.Attribute):
            return UNKNOWN
        holder, name = node.func.value, node.func.attr
        if isinstance(holder, ast.Name) and holder.id == self.context.self_name:
            return UNKNOWN if self._is_method(name) else TENSOR
        if name in _NUMBER_METHODS:
            return OTHER
        if any(isinstance(v, ModuleType) for v in resolve(holder, self.scope, self.context)):
            return OTHER  # a function of another library, such as numpy
        guess = self.of(holder)
        if name in _UNPACKED_METHODS and guess is not OTHER:
            return TENSORS if guess is TENSOR or name in _TENSOR_METHODS else UNKNOWN
        if name in _TENSOR_METHODS:
            return TENSOR if guess is not OTHER else UNKNOWN
        return TENSOR if guess is TENSOR and hasattr(torch.Tensor, name) else UNKNOWN

    def _is_method(self, name: str) -> bool:
        cls, outline = self.context.class_outline, self.context.outline
        assert cls is not None and outline is not None
        return not any(name in base.own_attributes for base in outline.bases(cls))


def _called(called: Any, node: ast.Call) -> Likeness:
    """What a call of a known object returns."""
    if isinstance(called, nn.Module):
        return TENSORS if isinstance(called, _TUPLE_MODULES) else TENSOR
    if isinstance(called, type):
        return TENSOR if issubclass(called, torch.Tensor) else OTHER
    name = getattr(called, "__name__", "")
    if getattr(torch, name, None) is called or getattr(F, name, None) is called:
        if name in _NO_TENSOR_FUNCTIONS:
            return OTHER
        return TENSORS if name in _UNPACKED_FUNCTIONS else TENSOR
    if getattr(builtins, name, None) is called:
        return UNKNOWN if name in ("sum", "max", "min", "next", "getattr", "abs", "pow") else OTHER
    return UNKNOWN


def _together(guesses: list[Likeness]) -> Likeness:
    """What a name is that is bound in several ways."""
    for guess in (TENSOR, TENSORS):
        if guess in guesses:
            return guess
    return OTHER if guesses and all(guess is OTHER for guess in guesses) else UNKNOWN


def _operated(guesses: list[Likeness]) -> Likeness:
    if TENSOR in guesses or TENSORS in guesses:
        return TENSOR
    return OTHER if all(guess is OTHER for guess in guesses) else UNKNOWN


def _annotated(annotation: ast.expr | None) -> Likeness:
    """What a parameter is by its annotation."""
    if annotation is None:
        return UNKNOWN
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return UNKNOWN
    if isinstance(annotation, ast.BinOp):
        return _together([_annotated(annotation.left), _annotated(annotation.right)])
    if isinstance(annotation, ast.Subscript):
        head = _last_name(annotation.value)
        if head in ("Optional", "Union", "Annotated", "Final"):
            inner = annotation.slice
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _together([_annotated(part) for part in parts])
        return OTHER
    name = _last_name(annotation)
    if name.endswith("Tensor"):
        return TENSOR
    return UNKNOWN if name in ("Any", "object", "T") else OTHER


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """Names that a node binds, what to, and how: as a whole, a part, an item of an iteration."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value, "augmented"
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        if isinstance(node.target, ast.Tuple | ast.List):
            for index, element in enumerate(node.target.elts):
                if isinstance(element, ast.Name):
                    yield element.id, node.iter, f"item {index}"
        elif isinstance(node.target, ast.Name):
            yield node.target.id, node.iter, "item"


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr, str]]:
    if isinstance(target, ast.Name):
        yield target.id, value, "whole"
    elif isinstance(target, ast.Starred):
        yield from ()
    elif isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for index, element in enumerate(target.elts):
            if same:
                yield from _targets(element, value.elts[index])  # type: ignore[attr-defined]
            elif isinstance(element, ast.Name):
                yield element.id, value, "part"


_KINDS: dict[type, Any] = {
    ast.Constant: Likenesses._other,
    ast.JoinedStr: Likenesses._other,
    ast.List: Likenesses._other,
    ast.Tuple: Likenesses._other,
    ast.Dict: Likenesses._other,
    ast.Set: Likenesses._other,
    ast.ListComp: Likenesses._other,
    ast.SetComp: Likenesses._other,
    ast.DictComp: Likenesses._other,
    ast.GeneratorExp: Likenesses._other,
    ast.Lambda: Likenesses._other,
    ast.Name: Likenesses._name,
    ast.Attribute: Likenesses._attribute,
    ast.Subscript: Likenesses._subscript,
    ast.BinOp: Likenesses._binary,
    ast.Compare: Likenesses._compare,
    ast.UnaryOp: Likenesses._unary,
    ast.IfExp: Likenesses._choice,
    ast.BoolOp: Likenesses._either,
    ast.NamedExpr: Likenesses._walrus,
    ast.Call: Likenesses._call,
}
