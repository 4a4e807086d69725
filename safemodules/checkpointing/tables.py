"""What is known about modules of torch, as data."""

from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["IGNORED_ATTRIBUTES", "SAVES_TOO_EARLY", "always_copied"]

# Attributes of every module that its forward does not read.
IGNORED_ATTRIBUTES: Final = frozenset(
    {
        "_non_persistent_buffers_set",
        "_backward_pre_hooks",
        "_backward_hooks",
        "_is_full_backward_hook",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)

# Randomized ReLU saves its noise before it fills it, so a recomputation that stops as soon as
# everything is saved would find it unfilled.
SAVES_TOO_EARLY: Final = frozenset({"rrelu", "rrelu_", "rrelu_with_noise", "RReLU"})

_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


def always_copied(module: nn.Module) -> tuple[str, ...]:
    """Names of tensors that a module's forward writes, whatever their size.

    The statistics of batch and instance norm are written without their versions saying so;
    an embedding with a ``max_norm`` renormalises rows of its weight.

    Example:
        >>> always_copied(nn.BatchNorm1d(2)), always_copied(nn.BatchNorm1d(2).eval())
        (('running_mean', 'running_var', 'num_batches_tracked'), ())
    """
    if isinstance(module, _NormBase):
        return _STATISTICS if module.training and module.track_running_stats else ()
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return ("weight",)
    return ()
