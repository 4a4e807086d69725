"""A residual block: a branch and a shortcut, added without overwriting either."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from safemodules.blocks.activations import without_overwriting
from safemodules.blocks.paths import describe_place
from safemodules.blocks.projection import KINDS, LazyProjection, Projection
from safemodules.errors import OptionError, OverwrittenInputError, ResidualError
from safemodules.state import tensor_bits

__all__ = ["SafeResidual"]

Part = Callable[..., Any]

_OVERWROTE: Final = (
    "{place}: {who} overwrote the input of the block, which the shortcut reads, so that the sum "
    "is not branch(x) + shortcut(x). Take inplace=True off its first activation (or write "
    "`x = x + ...` for `x += ...` there); safemodules.diagnose names the line."
)


def _drop_rows(residual: Tensor, probability: float) -> Tensor:
    """Set whole rows to zero and scale the others up; draws what torchvision's form draws."""
    survival = 1.0 - probability
    shape = (residual.size(0),) + (1,) * (residual.dim() - 1)
    noise = torch.empty(shape, dtype=residual.dtype, device=residual.device)
    noise.bernoulli_(survival)  # noqa: SM102
    return residual * (noise / survival if survival > 0.0 else noise)


class SafeResidual(nn.Module):
    r"""Add a branch to a shortcut of the same input, with nothing overwritten.

    .. math:: y = \operatorname{act}(d \cdot s \cdot \operatorname{branch}(\operatorname{norm}(x))
        + \operatorname{shortcut}(x))

    where :math:`s` is ``scale`` and :math:`d` drops whole rows while training. All parts but the
    branch may be left out. Give the parts, or derive a class that has methods ``branch`` and
    ``shortcut``. Tensors overwritten inside the branch are its own affair, save the input.

    * post-activation (ResNet): ``SafeResidual(branch, downsample, activation=nn.ReLU())``
    * pre-activation: ``SafeResidual(branch, norm=nn.Sequential(bn, nn.ReLU()))``, where the
      shape changes with ``shortcut=conv, shared_norm=True``
    * U-Net: ``SafeResidual(double_conv, "project", activation=nn.ReLU())``
    * transformer: ``SafeResidual(attention, norm=nn.LayerNorm(C), shortcut_first=True)``; with
      norm after the sum ``SafeResidual(attention, activation=nn.LayerNorm(C))``
    * layer scale: ``scale=nn.Parameter(torch.full((C,), 1e-6))``, ReZero: ``scale=0.0``
    * squeeze and excite: as the last module of the branch

    Args:
        branch: Any callable of the input and of what else the block is called with; a module
            is registered as ``branch``.
        shortcut: Any callable of the input; ``None`` adds the input itself. ``"project"`` builds
            a 1x1 convolution over dimension 1 from the shapes of the first call, as
            ``nn.LazyConv2d`` does, ``"linear"`` a linear map of the last dimension.
        activation: Applied to the sum. One with ``inplace=True`` computes out of place and keeps
            for backward what it would keep in place.
        norm: Applied to the input of the branch.
        shared_norm: The shortcut reads the normalised input, too.
        scale: Factor of the branch: a number (a parameter without dimensions that starts there),
            a parameter that broadcasts, or a module.
        drop_path: Probability in [0, 1] that the branch of a row of the batch is dropped while
            training; the others are divided by the probability to survive.
        shortcut_first: Add in the order ``shortcut(x) + branch(x)``, as ``x = x + f(x)`` does.
            The numbers are the same, but a sum has the strides of its first operand.
        stride: Of ``"project"``; ``None`` takes the smallest that fits.
        device: Of parameters made here.
        dtype: Of parameters made here.

    Shape:
        - Input: any that the parts take; (N, C, ...) for ``"project"``.
        - Output: that of the branch, which must be that of the shortcut.

    Raises:
        ResidualError: There is no branch, or it is given twice; in a call, the shapes differ.
        OptionError: An argument has a value that is not available.
        OverwrittenInputError: In a call, the branch overwrote what the shortcut reads.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import safemodules as sm
        >>> branch = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8))
        >>> block = sm.SafeResidual(branch, "project", activation=nn.ReLU())
        >>> block(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 8, 16, 16])
        >>> [name for name, _ in block.named_parameters()][-2:]
        ['shortcut.weight', 'shortcut.bias']

    Reference:
        Deep Residual Learning (arXiv 1512.03385), Identity Mappings (1603.05027), Stochastic
        Depth (1603.09382), ReZero (2003.04887), CaiT's layer scale (2103.17239).
    """

    branch: Any
    shortcut: Any

    def __init__(
        self,
        branch: Part | None = None,
        shortcut: Part | str | None = None,
        *,
        activation: Part | None = None,
        norm: Part | None = None,
        shared_norm: bool = False,
        scale: float | nn.Parameter | Part | None = None,
        drop_path: float = 0.0,
        shortcut_first: bool = False,
        stride: int | tuple[int, ...] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= drop_path <= 1.0:
            raise OptionError(f"drop_path is a probability in [0, 1], not {drop_path!r}")
        if shared_norm and norm is None:
            raise OptionError("shared_norm=True needs norm=, the module that is shared")
        if stride is not None and shortcut != "project":
            raise OptionError('stride= is that of shortcut="project"; set it on your own module')
        self._set_part("branch", branch)
        if isinstance(shortcut, str):
            if shortcut not in KINDS:
                raise OptionError(
                    f"shortcut={shortcut!r} is unknown; it is a callable, None, or one of "
                    f"{', '.join(map(repr, KINDS))}"
                )
            shortcut = LazyProjection(shortcut, stride, device=device, dtype=dtype)
        self._set_part("shortcut", shortcut)
        self.activation = (
            without_overwriting(activation) if isinstance(activation, nn.Module) else activation
        )
        self.norm = norm
        self.shared_norm = shared_norm
        self.scale = self._as_scale(scale, device, dtype)
        self.drop_path = drop_path
        self.shortcut_first = shortcut_first
        self._inferred: frozenset[bool] = frozenset()

    def _set_part(self, name: str, part: Part | None) -> None:
        overridden = hasattr(type(self), name)
        if part is not None and overridden:
            raise ResidualError(
                f"{type(self).__name__} has a method {name} and was given {name}= as well; "
                f"drop one of the two"
            )
        if name == "branch" and part is None and not overridden:
            raise ResidualError(
                f"{type(self).__name__} has no branch: give one as the first argument, or derive "
                f"a class with a method `branch(self, x)`"
            )
        if not overridden:
            setattr(self, name, part)

    @staticmethod
    def _as_scale(scale: Any, device: Any, dtype: torch.dtype | None) -> Any:
        if isinstance(scale, bool) or (
            isinstance(scale, Tensor) and not isinstance(scale, nn.Parameter)
        ):
            raise OptionError(
                f"scale= is a number, an nn.Parameter or a callable, not a {type(scale).__name__}; "
                f"wrap a tensor in nn.Parameter (requires_grad=False for a fixed one)"
            )
        if isinstance(scale, int | float):
            return nn.Parameter(torch.tensor(float(scale), device=device, dtype=dtype))
        return scale

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block.

        Args:
            x: The input.
            *args: Handed on to the branch (a mask, an embedding).
            **kwargs: Handed on to the branch.

        Returns:
            The activated sum.
        """
        total = self._add(x, args, kwargs)
        if not torch.compiler.is_compiling() and x.is_inference():
            self._inferred = self._inferred | {self.training}
        if self.activation is None:
            return total
        activated: Tensor = self.activation(total)
        return activated

    def _add(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        before = self._state_of(x)
        entered = x if self.norm is None else self.norm(x)
        self._require_unwritten(x, before, "norm")
        source = entered if self.shared_norm else x
        before = self._state_of(source)
        residual = self.branch(entered, *args, **kwargs)
        self._require_unwritten(source, before, "the branch")
        del before
        del entered
        if not isinstance(residual, Tensor):
            raise ResidualError(
                f"{describe_place(self)}: the branch returned a {type(residual).__name__}, but a "
                f"tensor is added to the shortcut. Wrap it so that it returns the tensor alone "
                f"(nn.MultiheadAttention returns a pair)."
            )
        if isinstance(self.scale, Tensor):
            residual = residual * self.scale
        elif self.scale is not None:
            residual = self.scale(residual)
        if self.training and self.drop_path > 0.0:
            residual = _drop_rows(residual, self.drop_path)
        skip = self._skip(source, residual)
        if residual.shape != skip.shape:
            self._raise_shapes(x, residual, skip)
        total: Tensor = skip + residual if self.shortcut_first else residual + skip
        return total

    def _skip(self, source: Tensor, residual: Tensor) -> Tensor:
        shortcut = self.shortcut
        if shortcut is None:
            return source
        lazy = isinstance(shortcut, Projection)
        skip: Tensor = shortcut(source, residual) if lazy else shortcut(source)
        return skip

    def _state_of(self, tensor: Tensor) -> int | Tensor | None:
        """Read the tensor's count of writes.

        Inference tensors have none. In the first such call of each mode the values are kept
        instead, which costs one tensor; later ones rely on that call. A compiler cannot trace
        the question, so that a compiled block relies on an earlier run, too.
        """
        if torch.compiler.is_compiling():
            return None
        if not tensor.is_inference():
            return tensor._version
        return None if self.training in self._inferred else tensor.clone()

    def _require_unwritten(self, tensor: Tensor, before: int | Tensor | None, who: str) -> None:
        if isinstance(before, Tensor):
            unwritten = torch.equal(tensor_bits(tensor), tensor_bits(before))
        else:
            unwritten = before is None or before == tensor._version
        if not unwritten:
            raise OverwrittenInputError(_OVERWROTE.format(place=describe_place(self), who=who))

    def _raise_shapes(self, x: Tensor, residual: Tensor, skip: Tensor) -> None:
        if self.shortcut is None:
            mend = (
                'Give a shortcut that brings the input there: shortcut="project" builds a 1x1 '
                'convolution with stride, shortcut="linear" a linear map of the last dimension.'
            )
        else:
            mend = (
                "Mend the shortcut's channels and stride, or the branch's padding; a shortcut "
                "that is to broadcast must do so itself (.expand_as)."
            )
        raise ResidualError(
            f"{describe_place(self)}: the branch has shape {tuple(residual.shape)}, the shortcut "
            f"{tuple(skip.shape)} (the input {tuple(x.shape)}), and the two are added element by "
            f"element. {mend}"
        )

    def extra_repr(self) -> str:
        """Show what is no module."""
        shown = []
        if self.shared_norm:
            shown.append("shared_norm=True")
        if isinstance(self.scale, Tensor):
            shown.append(f"scale={tuple(self.scale.shape)}")
        if self.shortcut_first:
            shown.append("shortcut_first=True")
        if self.drop_path:
            shown.append(f"drop_path={self.drop_path}")
        return ", ".join(shown)
