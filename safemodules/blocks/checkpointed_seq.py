"""A sequence of modules that keeps the inputs of its segments only."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import nn

from safemodules.blocks.balance import boundaries, saved_bytes
from safemodules.blocks.segment_runs import run_children, run_spans, unused_keywords
from safemodules.blocks.segments import SQRT, Segmentation, Span, regroup, spans_of, starts_of
from safemodules.blocks.seq_classes import original_class, wrapped_class
from safemodules.checkpointing.policies import policy_contexts
from safemodules.errors import ModuleTypeError, OptionError
from safemodules.mutation.internals import is_parametrized_class, is_sharded
from safemodules.rewriting.classes import generated_class
from safemodules.rewriting.swapping import swap_class

__all__ = ["CheckpointedSeq"]

Self = TypeVar("Self", bound="CheckpointedSeq")
Segments = int | str | Sequence[int] | None

# Kept in the __dict__ of a sequence; a child cannot have that name by accident.
_SEGMENTATION: Final = "_safemodules_segmentation"
_DEFAULT: Final = Segmentation()


class CheckpointedSeq(nn.Sequential):
    r"""An ``nn.Sequential`` that computes its activations again instead of keeping them.

    Outputs, gradients, buffers, random numbers and ``state_dict`` keys are those of
    ``nn.Sequential``, bit for bit on CPU. Of :math:`n` like children, :math:`k` segments keep
    :math:`k` inputs and, in turn, the activations of :math:`n/k` children; each child but those
    of the last segment is computed once more. ``segments="log"`` halves, and halves the halves:
    at most :math:`\log_2 n` inputs and the activations of one child are alive, for up to
    :math:`\log_2 n` computations more of a child.

    It runs as ``nn.Sequential`` does in eval mode, where no gradient is recorded, and in
    ``torch.export``. A child that overwrites its input (``nn.ReLU(inplace=True)``) belongs to
    the segment of the one before it.

    Args:
        *args: children, or one ``OrderedDict`` of them.
        segments: None for a segment per child; a number of segments; ``"sqrt"`` for about as
            many as the square root of the children; ``"log"`` for nested ones; or the indices
            at which the segments after the first begin. Children that are added later keep
            these boundaries where they are.
        policy: results to keep, as :func:`safemodules.checkpoint` takes it.
        spread: whether a tuple that a child returns becomes the positional arguments of the
            next one, and the sequence takes several. ``nn.Sequential`` hands a tuple on as one.
        checkpoint_last: whether the last segment is checkpointed too. By default it is not: if
            nothing comes after it, its recomputation follows its forward at once.
        example_inputs: a tensor, or a tuple of positional arguments. The sequence is run on
            them once, and the segments are chosen so that the one that saves most bytes saves
            as few as possible. ``segments`` must be a number or ``"sqrt"``.

    Shape:
        As ``nn.Sequential``. Keyword arguments are given to every child whose ``forward`` takes
        them, and have to be taken by one at least.

    Raises:
        OptionError: unknown ``segments`` or ``policy``, or ``example_inputs`` for segments that
            are given already.
        TypeError: a forward with several inputs without ``spread``, or with a keyword argument
            that no child takes.
        CheckpointError: in backward, see :func:`safemodules.checkpoint`.

    Example:
        >>> import torch
        >>> import safemodules as sm
        >>> layers = [torch.nn.Linear(4, 4) for _ in range(6)]
        >>> net = sm.CheckpointedSeq(*layers, segments=3)
        >>> [(span.start, span.stop, span.is_checkpointed) for span in net.segment_spans()]
        [(0, 2, True), (2, 4, True), (4, 6, False)]
        >>> x = torch.randn(2, 4)
        >>> torch.equal(net(x), torch.nn.Sequential(*layers)(x))
        True

    Reference:
        T. Chen, B. Xu, C. Zhang, C. Guestrin, *Training Deep Nets with Sublinear Memory Cost*,
        https://arxiv.org/abs/1604.06174: segments of :math:`\sqrt n`, and recursion.
    """

    _safemodules_wraps = True

    def __init__(
        self,
        *args: Any,
        segments: Segments = None,
        policy: Any = None,
        spread: bool = False,
        checkpoint_last: bool = False,
        example_inputs: Any = None,
    ) -> None:
        super().__init__(*args)
        _set_up(self, segments, policy, spread, checkpoint_last, example_inputs)

    # -- wrapping ---------------------------------------------------------------------------

    @staticmethod
    def wrap(
        seq: nn.Sequential,
        *,
        segments: Segments = None,
        policy: Any = None,
        spread: bool = False,
        checkpoint_last: bool = False,
        example_inputs: Any = None,
    ) -> "CheckpointedSeq":
        """Make an existing sequence a checkpointed one, in place.

        It stays the same object with the same children, keys and hooks; its class becomes
        :class:`CheckpointedSeq`, or one that is that and its own. One that is checkpointed
        already gets the new options.

        Args:
            seq: a sequence whose ``forward`` is that of ``nn.Sequential``.
            segments: see :class:`CheckpointedSeq`, and so for the others.
            policy: results to keep.
            spread: whether tuples are spread.
            checkpoint_last: whether the last segment is checkpointed too.
            example_inputs: inputs to balance the segments by.

        Returns:
            ``seq``.

        Raises:
            ModuleTypeError: it is no plain sequence, or its class cannot be exchanged now.
            OptionError: as for the class; or a child has the name of one of its methods.

        Example:
            >>> import torch
            >>> import safemodules as sm
            >>> seq = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
            >>> sm.CheckpointedSeq.wrap(seq) is seq, type(seq).__name__
            (True, 'CheckpointedSeq')
            >>> type(sm.CheckpointedSeq.unwrap(seq)).__name__
            'Sequential'
        """
        _refuse(seq)
        before = seq.__dict__.get(_SEGMENTATION)
        try:
            _set_up(seq, segments, policy, spread, checkpoint_last, example_inputs)
            if not isinstance(seq, CheckpointedSeq):
                swap_class(seq, wrapped_class(_user_class(seq), CheckpointedSeq))
        except BaseException:
            seq.__dict__.pop(_SEGMENTATION, None)
            if before is not None:
                seq.__dict__[_SEGMENTATION] = before
            raise
        assert isinstance(seq, CheckpointedSeq)
        return seq

    @staticmethod
    def unwrap(seq: "CheckpointedSeq") -> nn.Sequential:
        """Make a checkpointed sequence a plain one again, in place.

        Args:
            seq: a sequence that was wrapped, or made as a :class:`CheckpointedSeq`.

        Returns:
            ``seq``, of the class that it had.

        Raises:
            ModuleTypeError: it is no checkpointed sequence, or of a class that was derived
                from one, or its class cannot be exchanged now.
        """
        _refuse_other_swaps(seq)
        original = original_class(_user_class(seq), CheckpointedSeq)
        if original is None:
            raise ModuleTypeError(
                f"unwrap was given {type(seq).__name__}. Expected a CheckpointedSeq, or a "
                f"sequence that CheckpointedSeq.wrap has returned."
            )
        swap_class(seq, original)
        seq.__dict__.pop(_SEGMENTATION, None)
        return seq

    # -- segments ---------------------------------------------------------------------------

    @property
    def _safemodules_is_sequential(self) -> bool:
        own = type(self).forward is not CheckpointedSeq.forward
        return not own and not _segmentation(self).spread

    def segment_spans(self) -> tuple[Span, ...]:
        """Return the spans of children that a forward runs, checkpointed or plain."""
        return spans_of(tuple(self), _segmentation(self))

    def balance(
        self: Self, example_inputs: Any, example_kwargs: Mapping[str, Any] | None = None
    ) -> Self:
        """Move the boundaries of the segments to where they cost least.

        The sequence is run once on the example inputs, in its present mode, and left as it was.
        The segment that saves most bytes will save as few as possible.

        Args:
            example_inputs: a tensor, or a tuple of positional arguments.
            example_kwargs: keyword arguments.

        Returns:
            The sequence.

        Raises:
            OptionError: ``segments`` is neither a number nor ``"sqrt"``, nor was balanced.
        """
        before = _segmentation(self)
        self.__dict__[_SEGMENTATION] = _balanced(
            self, before, example_inputs, dict(example_kwargs or {})
        )
        return self

    def forward(self, input: Any, *others: Any, **kwargs: Any) -> Any:  # noqa: A002
        """Run the children one after the other.

        Args:
            input: the first child's argument.
            *others: further ones, with ``spread``.
            **kwargs: keyword arguments, for every child that takes them.
        """
        children, segmentation = tuple(self), _segmentation(self)
        # Proxies of torch.fx stand for both where it traces this very sequence.
        more = others if type(others) is tuple else ()
        given = kwargs if type(kwargs) is dict else {}
        if more and not segmentation.spread:
            raise TypeError(
                f"CheckpointedSeq was called with {1 + len(more)} positional arguments; with "
                f"spread=False it takes one, as nn.Sequential does. Make it with spread=True, "
                f"or pass one tuple."
            )
        if given and (unused := unused_keywords(children, given)):
            raise TypeError(
                f"CheckpointedSeq was called with the keyword argument {unused[0]!r}, which none "
                f"of its {len(children)} children takes."
            )
        args = (input, *more)
        if not children:
            return args if more else input
        if not self.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return run_children(children, segmentation.spread, args, given)
        return run_spans(children, spans_of(children, segmentation), segmentation, args, given)

    def extra_repr(self) -> str:
        """Return the options that differ from the defaults."""
        found = _segmentation(self)
        names = ("segments", "policy", "spread", "checkpoint_last")
        pairs = [(name, getattr(found, name)) for name in names]
        return ", ".join(f"{n}={v!r}" for n, v in pairs if v != getattr(_DEFAULT, n))

    # -- the protocol of nn.Sequential ------------------------------------------------------

    def __getitem__(self, idx: Any) -> Any:
        found = super().__getitem__(idx)
        if isinstance(idx, slice) and isinstance(found, CheckpointedSeq):
            _inherit(found, self, range(len(self))[idx])
        return found

    def __delitem__(self, idx: Any) -> None:
        kept = list(range(len(self)))
        super().__delitem__(idx)
        del kept[idx]
        _inherit(self, self, kept)

    def insert(self: Self, index: int, module: nn.Module) -> Self:
        """Insert a child; it joins the segment of the child that was there.

        Args:
            index: where to.
            module: the child.
        """
        length = len(self)
        super().insert(index, module)
        at = index + length if index < 0 else index
        _inherit(self, self, [*range(at), min(at, length - 1), *range(at, length)])
        return self

    def __add__(self, other: Any) -> "CheckpointedSeq":
        made = CheckpointedSeq(*super().__add__(other))
        _inherit(made, self, [*range(len(self)), *[len(self)] * len(other)])
        return made

    def __mul__(self, other: int) -> "CheckpointedSeq":
        made = CheckpointedSeq(*super().__mul__(other))
        _inherit(made, self, [*range(len(self))] * other)
        return made

    def __prepare_scriptable__(self) -> nn.Sequential:
        plain = nn.Sequential(OrderedDict(self.named_children()))
        return plain.train(self.training)


_METHODS: Final = frozenset(vars(CheckpointedSeq)) - frozenset(dir(nn.Sequential))


def _segmentation(seq: nn.Sequential) -> Segmentation:
    found: Segmentation = seq.__dict__.get(_SEGMENTATION, _DEFAULT)
    return found


def _inherit(made: nn.Sequential, source: nn.Sequential, kept: Sequence[int]) -> None:
    found = _segmentation(source)
    made.__dict__[_SEGMENTATION] = Segmentation(
        regroup(found.segments, kept), found.policy, found.spread, found.checkpoint_last
    )


def _set_up(
    seq: nn.Sequential, segments: Any, policy: Any, spread: bool, last: bool, examples: Any
) -> None:
    """Check the options and keep them."""
    if policy is not None:
        policy_contexts(policy)
    found = Segmentation.checked(segments, policy, spread, last, len(seq))
    if examples is not None:
        found = _balanced(seq, found, examples, {})
    seq.__dict__[_SEGMENTATION] = found


def _balanced(
    seq: nn.Sequential, before: Segmentation, examples: Any, kwargs: dict[str, Any]
) -> Segmentation:
    children = tuple(seq)
    segments = before.segments
    if isinstance(segments, tuple):
        segments = len(segments) + 1
    elif segments == SQRT:
        segments = round(len(starts_of(children)) ** 0.5)
    if not isinstance(segments, int):
        raise OptionError(
            f"segments={segments!r} cannot be balanced by example inputs. Give the number of "
            f"segments, or {SQRT!r}."
        )
    args = examples if isinstance(examples, tuple) else (examples,)
    costs = saved_bytes(seq, args, kwargs, before.spread)
    bounds = boundaries(children, costs, segments)
    return Segmentation(bounds, before.policy, before.spread, before.checkpoint_last)


def _user_class(seq: nn.Module) -> type:
    cls = type(seq)
    return cls.__bases__[0] if is_parametrized_class(cls) else cls


def _refuse(seq: Any) -> None:
    """Refuse what cannot be wrapped."""
    if not isinstance(seq, nn.Sequential):
        raise ModuleTypeError(
            f"CheckpointedSeq.wrap was given {type(seq).__name__}. Expected an nn.Sequential."
        )
    _refuse_other_swaps(seq)
    forward: Callable[..., Any] = type(seq).forward
    own = forward not in (nn.Sequential.forward, CheckpointedSeq.forward)
    if own or "forward" in seq.__dict__:
        raise ModuleTypeError(
            f"{type(seq).__name__} has a forward of its own, so it is no plain sequence. Wrap "
            f"the nn.Sequential inside of it, or call safemodules.checkpoint in its forward."
        )
    taken = sorted(_METHODS & set(seq._modules))
    if taken:
        raise OptionError(
            f"a child of the sequence is named {taken[0]!r}, as a method of CheckpointedSeq is. "
            f"Rename the child."
        )


def _refuse_other_swaps(seq: Any) -> None:
    if generated_class(type(seq)) is not None or is_sharded(seq):
        how = "fully_shard" if is_sharded(seq) else "convert_model"
        raise ModuleTypeError(
            f"{type(seq).__name__} was given another class by {how}. Exchange its class before: "
            f"wrap first, then {how}."
        )
