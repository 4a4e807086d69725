"""A loop over a body whose iterations do not all stay alive until backward."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from safemodules.blocks.items import Splitting
from safemodules.blocks.leaves import modules_reached, named_parameters_of
from safemodules.blocks.outputs import NOTHING
from safemodules.blocks.paths import Place
from safemodules.blocks.plans import Call, Kind, Reduction
from safemodules.blocks.running import run_plain, run_recomputed, run_taken
from safemodules.blocks.stepping import run_steps
from safemodules.blocks.weights import Weighing, Weights, require_weights
from safemodules.checkpointing.plainly import is_plain
from safemodules.errors import LoopBodyError, OptionError
from safemodules.mutation import internals
from safemodules.rewriting.classes import as_converted

__all__ = ["AccumulatingLoop"]

_REDUCTIONS: Final = ("mean", "sum", "stack", "cat")
_WEIGHTED: Final = ("mean", "sum")
_STORES: Final = ("auto", "gradients", "recompute")


class AccumulatingLoop(nn.Module):
    r"""Run a body over items and keep one iteration's activations alive, not all of them.

    .. math:: L = \frac{\sum_i w_i \, \operatorname{body}(x_i)}{\sum_i w_i}, \qquad
        \nabla L = \frac{\sum_i w_i \nabla \operatorname{body}(x_i)}{\sum_i w_i}

    for ``reduction="mean"``. What the body returns decides how:

    * **losses** (tensors without dimensions): each gradient is taken as soon as the iteration
      has run, and its graph freed. ``loop(...)`` returns a loss as any other, whose backward
      multiplies the gradients kept by the one that comes in. Nothing is computed twice. The
      gradients are summed in the order of the items (autograd sums in the reverse order, so
      the last bits may differ from those of a plain loop); value, buffers and random numbers
      are those of the plain loop bit for bit.
    * **tensors**: each iteration is recomputed in backward (:func:`safemodules.checkpoint`);
      everything is that of the plain loop bit for bit.

    Args:
        body: Called as ``body(item, *shared, **kwargs)``; with ``carry=`` as
            ``body(item, carry, *shared, **kwargs)``. A module is registered as ``body``; of a
            function the modules and tensors that it reads by name are found. It returns a loss,
            a pair (loss, auxiliary), or tensors; with ``carry=`` a pair of that and the next
            state. A class derived from this one may override :meth:`step` instead.
        reduction: ``"mean"`` or ``"sum"`` of losses or tensors, ``"stack"`` or ``"cat"`` of
            tensors, or a differentiable function of the vector of all losses (``torch.max``,
            ``lambda v: torch.logsumexp(v, 0)``).
        weights: For ``"mean"`` and ``"sum"``: a number per item, a function of the item (for
            instance its count of tokens), or ``"size"``, the size along ``dim`` of its first
            tensor. ``None`` gives each item one, and chunks of different sizes their size.
        dim: Dimension that tensors are split along.
        chunks: Number of chunks that a tensor, or a tuple or mapping of tensors, is split into.
        chunk_size: Size of the chunks, instead of their number.
        output_dim: Dimension that ``"stack"`` and ``"cat"`` put outputs together along.
        truncate: With ``carry=``: number of iterations after which the state is cut off its
            graph. ``None`` backpropagates through all iterations, recomputing each.
        store: What is kept of each iteration: ``"gradients"``, nothing (``"recompute"``: also
            for losses, whose gradient can then be differentiated again), or under a function of
            the losses whichever is smaller (``"auto"``).
        check_ranks: Where processes train together, check that they run the same number of
            iterations.

    Shape:
        - Items: a tensor (single slices along ``dim``, or chunks), a mapping of tensors, a
          list, a generator, a DataLoader; an item may be anything.
        - Output: the reduced value; (value, auxiliary) with what came along with the losses,
          detached and stacked; with ``carry=`` the pair of that and the last state.

    Raises:
        LoopItemsError: In a call, if there is no item, or items cannot be split as asked.
        LoopBodyError: In a call, if the body uses a tensor that needs a gradient and that the
            loop does not know of, changes a parameter, returns what cannot be put together, or
            runs another number of times on another process; in backward, if a second
            derivative is asked for.
        OptionError: An argument has a value that is not available.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import safemodules as sm
        >>> net = nn.Linear(8, 1)
        >>> loop = sm.AccumulatingLoop(lambda chunk: net(chunk).square().mean(), chunks=4)
        >>> batch = torch.randn(10, 8)  # chunks of 3, 3, 2 and 2 rows, weighted by their size
        >>> loss = loop(batch)
        >>> loss.backward()
        >>> bool(torch.allclose(loss, net(batch).square().mean()))
        True

    Reference:
        Gradient accumulation inside of the graph; for functions of the losses the idea of
        gradient caching (arXiv 2101.06983).
    """

    def __init__(
        self,
        body: Callable[..., Any] | None = None,
        *,
        reduction: Reduction = "mean",
        weights: Weights = None,
        dim: int = 0,
        chunks: int | None = None,
        chunk_size: int | None = None,
        output_dim: int = 0,
        truncate: int | None = None,
        store: str = "auto",
        check_ranks: bool = True,
    ) -> None:
        super().__init__()
        if body is None and "step" not in self._own_methods():
            raise OptionError(
                f"{type(self).__name__} has no body: give one as the first argument, or derive a "
                f"class with a method `step(self, item, *shared)`"
            )
        if isinstance(reduction, str) and reduction not in _REDUCTIONS:
            raise OptionError(
                f"reduction={reduction!r} is unknown; it is a function of the losses or one of "
                f"{', '.join(map(repr, _REDUCTIONS))}"
            )
        if store not in _STORES:
            raise OptionError(f"store={store!r} is none of {', '.join(map(repr, _STORES))}")
        if truncate is not None and truncate < 1:
            raise OptionError(f"truncate= is a positive number of iterations, not {truncate!r}")
        self.body = body
        self.reduction = reduction
        self.weights = weights
        self.splitting = Splitting(dim, chunks, chunk_size)
        self.output_dim = output_dim
        self.truncate = truncate
        self.store = store
        self.check_ranks = check_ranks
        self._kind = Kind()
        self._require_weights(weights)

    def step(self, item: Any, *shared: Any, **kwargs: Any) -> Any:
        """Run one iteration; override it to write the body as a method.

        Args:
            item: The item; with ``carry=`` the state comes next.
            *shared: What the loop was called with.
            **kwargs: What the loop was called with.

        Returns:
            What the body returns.
        """
        assert self.body is not None
        return as_converted(self.body)(item, *shared, **kwargs)

    def forward(
        self,
        items: Any,
        *shared: Any,
        carry: Any = NOTHING,
        weights: Weights = None,
        **kwargs: Any,
    ) -> Any:
        """Run the loop.

        Args:
            items: What to run over.
            *shared: Handed to every iteration; tensors among them get their gradient.
            carry: Initial state.
            weights: Instead of those given to the constructor.
            **kwargs: Handed to every iteration.

        Returns:
            The reduced value, see the class.
        """
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            # The compiler cannot trace gradients taken in forward; a body that was compiled
            # itself stays so.
            disable: Any = torch.compiler.disable
            run = disable(self._run)
            return run(items, shared, kwargs, carry, weights)
        return self._run(items, shared, kwargs, carry, weights)

    def _run(
        self, items: Any, shared: tuple[Any, ...], kwargs: Any, carry: Any, weights: Weights
    ) -> Any:
        call = self._call(items, shared, kwargs, carry, weights)
        if not torch.is_grad_enabled() or torch.compiler.is_exporting() or is_plain():
            return run_plain(call)
        if self._is_recomputed(call):
            return run_recomputed(call)
        return run_taken(call)

    def steps(
        self,
        items: Any,
        *shared: Any,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        total: float | None = None,
        weights: Weights = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Run backward after each iteration, for training loops that want ``.grad`` filled.

        Each loss is multiplied by its weight and divided by the sum of the weights before its
        backward, so that ``.grad`` grows by the gradient of the reduced loss. Tensors handed
        over that come from a graph get their gradient when the iteration ends; run it to the
        end.

        Args:
            items: What to run over.
            *shared: Handed to every iteration.
            backward: Runs a backward, for instance ``accelerator.backward``,
                ``self.manual_backward`` or ``lambda loss: scaler.scale(loss).backward()``.
            total: Sum of the weights, where it cannot be known before the items have come.
            weights: Instead of those given to the constructor.
            **kwargs: Handed to every iteration.

        Yields:
            The loss of each iteration as the body returned it, detached; with an auxiliary
            value in a pair.

        Example:
            >>> import torch
            >>> import safemodules as sm
            >>> net = torch.nn.Linear(2, 1)
            >>> loop = sm.AccumulatingLoop(lambda x: net(x).mean())
            >>> losses = [loss.item() for loss in loop.steps(torch.randn(3, 5, 2))]
            >>> len(losses), tuple(net.weight.grad.shape)
            (3, (1, 2))
        """
        if self.reduction not in _WEIGHTED:
            raise OptionError(
                f"steps() runs backward for each loss, which a reduction of all of them does not "
                f'allow; use reduction="mean" or "sum", not {self.reduction!r}'
            )
        call = self._call(items, shared, kwargs, NOTHING, weights)
        return run_steps(call, backward, total)

    def _call(
        self, items: Any, shared: tuple[Any, ...], kwargs: Any, carry: Any, weights: Weights
    ) -> Call:
        place = Place(self)
        pieces = self.splitting.pieces(items, place)
        chosen = self.weights if weights is None else weights
        self._require_weights(chosen)
        if chosen is None and pieces.sizes is not None and self.reduction == "mean":
            chosen = pieces.sizes
        parameters = named_parameters_of(self.step, self.body) if torch.is_grad_enabled() else {}
        return Call(
            step=self.step,
            pieces=pieces,
            shared=shared,
            kwargs=kwargs,
            carry=carry,
            truncate=self.truncate,
            reduction=self.reduction,
            dim=self.output_dim,
            weighing=Weighing(chosen, self.splitting.dim, place),
            store=self.store,
            parameters=parameters,
            check_ranks=self.check_ranks,
            place=place,
            kind=self._kind,
        )

    def _is_recomputed(self, call: Call) -> bool:
        if self.store == "recompute" or self.reduction in ("stack", "cat"):
            return True
        if call.carries and (self.truncate is None or callable(self.reduction)):
            return True
        for module in modules_reached(self.step, self.body):
            if isinstance(module, nn.parallel.DistributedDataParallel):
                raise LoopBodyError(
                    f"{call.place}: the body holds a DistributedDataParallel, which expects one "
                    f"backward after each forward. Wrap the model that holds the loop instead."
                )
            if internals.is_sharded(module) and module is not self:
                return True
        return call.kind.losses is False

    @classmethod
    def _own_methods(cls) -> set[str]:
        """Names that derived classes define."""
        bases = cls.__mro__[: cls.__mro__.index(AccumulatingLoop)]
        return {name for base in bases for name in vars(base)}

    def _require_weights(self, weights: Weights) -> None:
        require_weights(weights)
        if weights is not None and self.reduction not in _WEIGHTED:
            raise OptionError(
                f'weights= are those of reduction="mean" and "sum", not of {self.reduction!r}; '
                f"a function of the losses can weigh them itself"
            )

    def extra_repr(self) -> str:
        """Show what is no module."""
        shown = [f"reduction={self.reduction!r}"]
        for name in ("chunks", "chunk_size"):
            if getattr(self.splitting, name) is not None:
                shown.append(f"{name}={getattr(self.splitting, name)}")
        if self.truncate is not None:
            shown.append(f"truncate={self.truncate}")
        return ", ".join(shown)
