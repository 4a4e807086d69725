"""What calls do with the memory of their arguments, as tables and as torch itself declares it."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from safemodules.mutation import fresh_tables, internals
from safemodules.mutation.liveness.values import Known, Value
from safemodules.mutation.operators import flagged_functions

# Builtins that run nothing of the objects which they are given.
BUILTINS_OF_OBJECTS = frozenset(
    """isinstance issubclass hasattr callable getattr setattr delattr len type""".split()
)
# Results that share the memory of the first argument; values are not read.
VIEWS = frozenset(
    """T H mT mH adjoint as_strided chunk conj data detach diagonal dsplit expand expand_as hsplit
    imag movedim moveaxis narrow permute real select split split_with_sizes
    squeeze swapaxes swapdims t tensor_split transpose unbind unflatten unfold unsafe_chunk
    unsafe_split unsqueeze view view_as view_as_complex view_as_real vsplit __getitem__""".split()
)
# Those of them whose strides are not those of new memory.
STRIDED_VIEWS = frozenset(
    """T H mT mH adjoint as_strided diagonal expand expand_as movedim moveaxis narrow permute select
    swapaxes swapdims t transpose unfold""".split()
)
# Results that are the first argument itself, a view of it, or a copy.
PERHAPS_COPIES = frozenset(
    """alpha_dropout as_tensor asarray atleast_1d atleast_2d atleast_3d bfloat16 bool
    broadcast_tensors byte char contiguous cpu cuda dequantize double dropout dropout1d dropout2d
    dropout3d einsum feature_alpha_dropout flatten float half int long meshgrid nan_to_num numpy
    pad pixel_shuffle pixel_unshuffle ravel requires_grad_ reshape reshape_as resize resize_as
    resolve_conj resolve_neg short to to_dense type type_as""".split()
)
# Nothing of a tensor is read but its shape, dtype or place; the result is no tensor.
SILENT = frozenset(
    """device dim dtype element_size get_device is_complex is_contiguous is_cuda is_floating_point
    is_sparse itemsize layout name ndim ndimension nelement numel shape size stride""".split()
)
# Which tensor it is: to ask that is to read it, as another one stands for it out of place.
IDENTITY = frozenset(
    """_base _is_view _version as_strided data_ptr grad_fn storage storage_offset untyped_storage
    """.split()
)
# What has become of a tensor: in place it changes with the values.
HISTORY = frozenset({"is_leaf", "requires_grad"})
ASKED = IDENTITY | HISTORY
# Builtins whose results tell objects apart for good.
IDENTIFYING = frozenset({"id", "hash"})
# Packages whose functions answer the same when they are asked again.
REPEATABLE = frozenset(
    """_operator _warnings abc builtins collections contextlib copy dataclasses enum functools
    inspect itertools logging math numbers numpy operator os pathlib re string torch types typing
    warnings""".split()
)
# Builtins through which code sees names that it does not mention.
NAMESPACES = frozenset("locals vars eval exec dir".split())
# New tensors that take no memory from an argument.
FACTORIES = fresh_tables.FACTORIES | frozenset(
    "logspace new_tensor randint_like scalar_tensor".split()
)
# Results are new memory. Composite operators, for which torch declares nothing that can be
# relied on; each was looked up in the source of torch 2.14.
FRESH_COMPOSITES = frozenset(
    """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d affine_grid avg_pool1d batch_norm bilinear binary_cross_entropy
    binary_cross_entropy_with_logits clone concat concatenate conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity cross_entropy cumsum
    diff embedding_bag gelu grid_sample group_norm gumbel_softmax hardswish instance_norm
    interpolate kl_div l1_loss layer_norm linear local_response_norm log_softmax logsigmoid
    matmul max max_pool1d max_pool2d max_pool3d mean min mse_loss nll_loss norm normalize
    one_hot outer relu6 repeat_interleave rms_norm scaled_dot_product_attention selu silu
    smooth_l1_loss softmax softmin softplus sort std stack tanhshrink tensor tile topk upsample
    vander var where""".split()
)
# Operators of Python and methods of numbers; their results hold no tensor.
NUMBERS = frozenset({"item", "tolist", "is_same_size", "equal", "allclose"})
CONTAINER_WRITERS = frozenset(
    "append extend insert update setdefault appendleft extendleft put put_nowait".split()
)
# Methods of lists, dicts and the like that change nothing.
UNCHANGING = frozenset(
    """__contains__ __eq__ __getitem__ __iter__ __len__ copy count difference get index intersection
    isdisjoint issubset issuperset items keys symmetric_difference union values""".split()
)
# Methods that compare what they are given with what is held: first by which object it is.
COMPARING = frozenset("__contains__ count discard index remove".split())
CONTAINER_READERS = frozenset("pop popitem get values items keys copy popleft index".split())
BUILTINS_OF_VALUES = frozenset(
    """bool int float complex str repr format print len isinstance issubclass hasattr callable type
    ord chr range""".split()
)
BUILTINS_OF_NUMBERS = frozenset("sum max min abs round any all divmod pow".split())

# Modules of torch whose result is new memory in every mode.
FRESH_MODULES = frozenset(cls.__name__ for cls in fresh_tables.FRESH_MODULES) | frozenset(
    """AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d CrossEntropyLoss GRU L1Loss LSTM
    MSELoss MaxPool1d MaxPool2d MaxPool3d MultiheadAttention RMSNorm RNN Upsample
    UpsamplingBilinear2d UpsamplingNearest2d""".split()
)
# Modules of torch whose result is their input, a view of it, or a copy.
ALIASING_MODULES = frozenset(
    """ConstantPad1d ConstantPad2d ConstantPad3d Flatten Identity PixelShuffle PixelUnshuffle
    ReflectionPad1d ReflectionPad2d ReplicationPad2d Unflatten ZeroPad1d ZeroPad2d
    ZeroPad3d""".split()
)
DROPOUTS = frozenset(cls.__name__ for cls in fresh_tables.TRANSPARENT_MODULES) - {"Identity"}
DROPOUT_FUNCTIONS = frozenset(
    "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout".split()
)


@functools.cache
def _flag_positions() -> dict[str, int]:
    return {function.__name__: position for function, position in flagged_functions().items()}


def may_write(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether an operator may overwrite what it is given, by ``out`` or by its flag."""
    flag = kwargs.get("inplace")
    position = _flag_positions().get(name)
    if flag is None and position is not None and len(args) > position:
        flag = args[position]
    off = flag is None or (isinstance(flag, Known) and not flag.object)
    out = kwargs.get("out")
    return not off or not (out is None or (isinstance(out, Known) and out.object is None))


@functools.cache
def is_fresh(name: str) -> bool:
    """Whether a torch operator of that name always returns new memory.

    Torch declares for each overload of a primitive operator whether a result shares memory
    with an argument. A composite operator declares nothing binding (``dropout`` may return its
    input), so those that are known stand in a table.
    """
    if name in FRESH_COMPOSITES:
        return True
    if name in VIEWS or name in PERHAPS_COPIES or name.endswith("_"):
        return False
    return internals.returns_new_memory(name) or _is_operator(name)


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and hasattr(torch.Tensor, name)


# Where the operators live that these tables name. Elsewhere in torch, in ``torch.distributed`` say,
# functions of the same names do something else.
_OPERATOR_NAMESPACES = (
    torch,
    torch.Tensor,
    torch.nn.functional,
    torch.special,
    torch.linalg,
    torch.fft,
    torch.sparse,
    torch.nested,
    torch.functional,
)


def is_operator(called: Any, name: str) -> bool:
    """Whether a function of torch's is the operator of its name."""
    if type(called).__module__ == "torch._ops":
        return str(called).startswith("aten.")
    return any(getattr(space, name, None) == called for space in _OPERATOR_NAMESPACES)


def takes_form_of_first(name: str) -> bool:
    """Whether an operator looks at the shape, dtype and place of its first argument alone."""
    return name.endswith("_like") or name.startswith("new_")
