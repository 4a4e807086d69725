"""Arguments for every in-place method, function and flagged function of torch."""

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tensor_strategy import COMPLEX, FLOATS, broadcastable, operands, tensors

TARGETS = ("dense", "gaps", "transposed", "expanded", "odd ones", "channels last")
small = st.integers(-2, 3)
numbers = st.sampled_from([0, 1, -1, 2, 0.5, -0.5, 2.5])


def _none(draw, t):
    return (), {}


def _operand(draw, t):
    return (draw(operands(t)),), {}


def _tensor(draw, t):
    return (draw(operands(t, tensor_only=True)),), {}


def _alpha(draw, t):
    kwargs = {"alpha": draw(numbers)} if draw(st.booleans()) else {}
    return (draw(operands(t)),), kwargs


def _rounding(draw, t):
    mode = draw(st.sampled_from([None, "floor", "trunc"]))
    return (draw(operands(t)),), ({} if mode is None else {"rounding_mode": mode})


def _two_tensors(draw, t):
    kwargs = {"value": draw(numbers)} if draw(st.booleans()) else {}
    return (draw(operands(t, tensor_only=True)), draw(operands(t, tensor_only=True))), kwargs


def _lerp(draw, t):
    weight = draw(st.one_of(st.just(0.5), st.just(0.25), operands(t, tensor_only=True)))
    return (draw(operands(t, tensor_only=True)), weight), {}


def _dim(draw, t):
    kwargs = {"dtype": draw(st.sampled_from([torch.float64, t.dtype]))} if t.dim() % 2 else {}
    return (draw(st.integers(-1, 1)),), kwargs


def _bounds(draw, t):
    return (draw(st.sampled_from([None, -1, 0, 0.5])), draw(st.sampled_from([None, 0, 1]))), {}


def _bounds_or_tensors(draw, t):
    if draw(st.booleans()):
        return _bounds(draw, t)
    return (), {"min": draw(operands(t, tensor_only=True)), "max": None}


def _decimals(draw, t):
    return (), draw(st.sampled_from([{}, {"decimals": 1}]))


def _eps(draw, t):
    return draw(st.sampled_from([(), (1e-3,), (None,)])), {}


def _order(draw, t):
    return (draw(st.integers(0, 2)),), {}


def _diagonal(draw, t):
    return (draw(small),), {}


def _nan_to_num(draw, t):
    return draw(st.sampled_from([(), (1.0,), (None, 2.0, -2.0)])), {}


def _renorm(draw, t):
    return (draw(st.sampled_from([1, 2, 2.5])), draw(st.integers(-1, 1)), 1.5), {}


def _mask(draw, t):
    shape = draw(broadcastable(tuple(t.shape)))
    return draw(tensors((torch.bool,), shape, ("dense", "transposed")))


def _masked_fill(draw, t):
    value = draw(st.one_of(numbers, tensors((t.dtype, torch.float32), (), ("dense",))))
    return (_mask(draw, t), value), {}


def _masked_scatter(draw, t):
    return (_mask(draw, t), draw(tensors((t.dtype,), (48,), ("dense",)))), {}


def _size(t, dim):
    return t.shape[dim] if t.dim() else 1


def _indices(draw, t, dim, count=None):
    size = max(_size(t, dim), 1)
    chosen = draw(st.lists(st.integers(0, size - 1), min_size=count or 1, max_size=count or 3))
    return torch.tensor(chosen)


def _index_fill(draw, t):
    value = draw(st.one_of(numbers, tensors((t.dtype,), (), ("dense",))))
    return (0, _indices(draw, t, 0), value), {}


def _source(draw, t, count):
    shape = (count, *t.shape[1:]) if t.dim() else (count,)
    return draw(tensors((t.dtype,), shape, ("dense", "transposed")))


def _index_source(draw, t):
    index = _indices(draw, t, 0)
    return (0, index, _source(draw, t, len(index))), {}


def _index_copy(draw, t):
    index = _indices(draw, t, 0).unique()
    return (0, index, _source(draw, t, len(index))), {}


def _index_reduce(draw, t):
    args, _ = _index_source(draw, t)
    how = draw(st.sampled_from(["prod", "mean", "amax", "amin"]))
    return (*args, how), {"include_self": draw(st.booleans())}


def _index_put(draw, t):
    value = draw(tensors((t.dtype,), (), ("dense",)))
    return ((_indices(draw, t, 0),), value), {"accumulate": draw(st.booleans())}


def _scatter_index(draw, t):
    shape = tuple(min(size, 2) for size in t.shape)
    index = torch.zeros(shape, dtype=torch.int64)
    return index + (draw(st.integers(0, 1)) if _size(t, 0) > 1 else 0)


def _scatter(draw, t):
    index = _scatter_index(draw, t)
    source = draw(tensors((t.dtype,), tuple(t.shape), ("dense", "transposed")))
    return (0, index, draw(st.sampled_from([source, 2]))), {}


def _scatter_add(draw, t):
    index = _scatter_index(draw, t)
    return (0, index, draw(tensors((t.dtype,), tuple(t.shape), ("dense",)))), {}


def _scatter_reduce(draw, t):
    args, _ = _scatter_add(draw, t)
    how = draw(st.sampled_from(["sum", "prod", "mean", "amax", "amin"]))
    return (*args, how), {"include_self": draw(st.booleans())}


def _put(draw, t):
    count = draw(st.integers(1, 2))
    index = torch.tensor(draw(st.lists(st.integers(0, 0), min_size=count, max_size=count)))
    source = draw(tensors((t.dtype,), (count,), ("dense",)))
    return (index, source), {"accumulate": draw(st.booleans())}


def _factors(shapes_of):
    """Matrix products: ``shapes_of(shape)`` are the shapes of the factors."""

    def made(draw, t):
        shapes = shapes_of(t.shape)
        factors = [draw(tensors((t.dtype,), shape, ("dense", "transposed"))) for shape in shapes]
        scale = {"beta": draw(st.sampled_from([1, 0, 2])), "alpha": draw(st.sampled_from([1, 3]))}
        return tuple(factors), scale if draw(st.booleans()) else {}

    return made


def _ends(shape, count):
    return (*(2,) * (count - len(shape)), *shape[max(len(shape) - count, 0) :])


def _addmm(shape):
    rows, columns = _ends(shape, 2)
    return [(rows, 3), (3, columns)]


def _addmv(shape):
    (rows,) = _ends(shape, 1)
    return [(rows, 3), (3,)]


def _addr(shape):
    rows, columns = _ends(shape, 2)
    return [(rows,), (columns,)]


def _baddbmm(shape):
    batch, rows, columns = _ends(shape, 3)
    return [(batch, rows, 3), (batch, 3, columns)]


def _addbmm(shape):
    rows, columns = _ends(shape, 2)
    return [(2, rows, 3), (2, 3, columns)]


def _copy(draw, t):
    return (draw(operands(t, tensor_only=True)),), {}


def _fill(draw, t):
    return (draw(st.one_of(numbers, tensors((t.dtype,), (), ("dense",)))),), {}


def _fill_diagonal(draw, t):
    return (draw(numbers),), {"wrap": draw(st.booleans())}


def _probability(draw, t):
    p = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return draw(st.sampled_from([(p,), (torch.full(t.shape, p),)])), {}


def _one(*values):
    def made(draw, t):
        return draw(st.sampled_from(values)), {}

    return made


def _by(maker, names):
    return dict.fromkeys(names.split(), maker)


METHODS = {
    **_by(
        _none,
        """abs_ absolute_ acos_ acosh_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_
        asinh_ atan_ atanh_ bitwise_not_ ceil_ conj_physical_ cos_ cosh_ deg2rad_ digamma_ erf_
        erfc_ erfinv_ exp2_ exp_ expm1_ fix_ floor_ frac_ i0_ lgamma_ log10_ log1p_ log2_ log_
        logical_not_ neg_ negative_ rad2deg_ reciprocal_ relu_ rsqrt_ sgn_ sigmoid_ sign_ sin_
        sinc_ sinh_ sqrt_ square_ tan_ tanh_ trunc_ zero_""",
    ),
    **_by(
        _operand,
        """bitwise_and_ bitwise_left_shift_ bitwise_or_ bitwise_right_shift_ bitwise_xor_
        clamp_max_ clamp_min_ copysign_ eq_ float_power_ floor_divide_ fmod_ ge_ greater_
        greater_equal_ gt_ le_ less_ less_equal_ lt_ mul_ multiply_ ne_ not_equal_ pow_
        remainder_ true_divide_ xlogy_""",
    ),
    **_by(
        _tensor,
        """arctan2_ atan2_ gcd_ heaviside_ hypot_ igamma_ igammac_ lcm_ ldexp_ logical_and_
        logical_or_ logical_xor_ nextafter_""",
    ),
    **_by(_alpha, "add_ sub_ subtract_"),
    **_by(_rounding, "div_ divide_"),
    **_by(_two_tensors, "addcdiv_ addcmul_"),
    **_by(_dim, "cumprod_ cumsum_"),
    **_by(_bounds_or_tensors, "clamp_ clip_"),
    **_by(_order, "mvlgamma_ polygamma_"),
    **_by(_diagonal, "tril_ triu_"),
    **_by(_index_source, "index_add_"),
    "lerp_": _lerp,
    "round_": _decimals,
    "logit_": _eps,
    "nan_to_num_": _nan_to_num,
    "renorm_": _renorm,
    "masked_fill_": _masked_fill,
    "masked_scatter_": _masked_scatter,
    "index_fill_": _index_fill,
    "index_copy_": _index_copy,
    "index_reduce_": _index_reduce,
    "index_put_": _index_put,
    "scatter_": _scatter,
    "scatter_add_": _scatter_add,
    "scatter_reduce_": _scatter_reduce,
    "put_": _put,
    "addmm_": _factors(_addmm),
    "addmv_": _factors(_addmv),
    "addr_": _factors(_addr),
    "baddbmm_": _factors(_baddbmm),
    "addbmm_": _factors(_addbmm),
    "copy_": _copy,
    "fill_": _fill,
    "fill_diagonal_": _fill_diagonal,
    "bernoulli_": _probability,
    "cauchy_": _one((), (1.0, 2.0)),
    "exponential_": _one((), (2.0,)),
    "geometric_": _one((0.3,), (2.0,)),
    "log_normal_": _one((), (0.5, 0.5)),
    "normal_": _one((), (1.0, 2.0), (0.0, -1.0)),
    "random_": _one((), (5,), (1, 4)),
    "uniform_": _one((), (-1.0, 1.0), (2.0, 1.0)),
}


# functions of torch and torch.nn.functional whose name is not that of a method above
def _scaled_addmm(draw, t):
    # no CPU has the kernel: both are to say so in the same words
    matrix = torch.zeros(16, 16).to(torch.float8_e4m3fn)
    scale = (torch.ones(()), F.ScalingType.TensorWise)
    return (matrix, matrix.t(), *scale, *scale), {"beta": draw(numbers)}


FUNCTIONS = {
    "alpha_dropout_": _one((0.5, True), (0.5, False), (2.0, True)),
    "celu_": _one((), (0.5,)),
    "dropout_": _one((0.5, True), (0.5, False), (0.0, True), (1.0, True)),
    "elu_": _one((), (0.5,)),
    "feature_alpha_dropout_": _one((0.5, True), (0.5, False)),
    "feature_dropout_": _one((0.5, True), (0.5, False)),
    "hardtanh_": _one((), (-0.5, 0.5)),
    "leaky_relu_": _one((), (0.2,)),
    "rrelu_": _one((), (0.1, 0.3, True), (0.1, 0.3, False)),
    "scaled_addmm_": _scaled_addmm,
    "selu_": _none,
    "threshold_": _one((0.5, 2.0)),
}

# positional arguments up to the flag
FLAGGED = {
    F.dropout: [(0.5, True), (0.5, False), (0.0, True), (1.0, True), (1.5, True)],
    F.alpha_dropout: [(0.5, True), (0.5, False), (-1.0, True)],
    F.dropout1d: [(0.5, True), (0.5, False)],
    F.dropout2d: [(0.5, True), (0.5, False)],
    F.dropout3d: [(0.5, True), (0.5, False)],
    F.feature_alpha_dropout: [(0.5, True), (0.5, False)],
    F.threshold: [(0.5, 2.0)],
    F.relu: [()],
    F.hardtanh: [(-0.5, 0.5), (1.0, 0.0)],
    F.relu6: [()],
    F.elu: [(0.5,)],
    F.selu: [()],
    F.celu: [(0.5,), (0.0,)],
    F.leaky_relu: [(0.2,), (-0.2,)],
    F.rrelu: [(0.1, 0.3, True), (0.1, 0.3, False)],
    F.hardsigmoid: [()],
    F.silu: [()],
    F.mish: [()],
    F.hardswish: [()],
}


@st.composite
def inplace_targets(draw, name):
    """A tensor that a method is likely to accept."""
    floats = (*FLOATS, *FLOATS, *COMPLEX, torch.int64, torch.bool)
    integers = name.startswith("bitwise") or name in {"gcd_", "lcm_"}
    dtypes = (torch.int64, torch.uint8, torch.bool) if integers else floats
    ranks = {"addmm_": 2, "addmv_": 1, "addr_": 2, "baddbmm_": 3, "addbmm_": 2}
    ranks |= {"fill_diagonal_": 2, "tril_": 2, "triu_": 2}
    size = st.sampled_from([2, 3, 1, 4])
    # out of bounds, torch's words depend on whether the storage is empty too
    if name in {"index_copy_", "index_fill_"}:
        shape = tuple(draw(st.lists(size, max_size=4)))
    elif name in ranks:
        rank = ranks[name]
        shape = tuple(draw(st.lists(size, min_size=rank, max_size=rank)))
    else:
        shape = tuple(draw(st.lists(st.one_of(size, st.just(0)), max_size=4)))
    return draw(tensors(dtypes, shape, TARGETS))
