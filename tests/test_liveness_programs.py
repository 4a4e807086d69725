"""Without inputs a model computes what it did, whatever code of the user's a forward runs."""

import copy
import inspect

import programs_of_callers
import programs_of_changes
import programs_of_identity
import programs_of_iteration
import programs_of_lists
import programs_of_own_code
import programs_of_recomputation
import programs_of_regions
import programs_of_setters
import pytest
import torch
from programs import Program
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree

import safemodules as sm

TABLES = (
    programs_of_callers,
    programs_of_changes,
    programs_of_identity,
    programs_of_iteration,
    programs_of_lists,
    programs_of_own_code,
    programs_of_recomputation,
    programs_of_regions,
    programs_of_setters,
)
PROGRAMS = {
    f"{table.__name__.removeprefix('programs_of_')}: {name}": program
    for table in TABLES
    for name, program in table.PROGRAMS.items()
}
# What changes `switch.mode`, by code of the class of `switch`.
TRIGGERS = {
    "truth": "if switch:\n    pass",
    "a choice": "1 if switch else 2",
    "a claim": "assert switch",
    "and": "switch and 1",
    "bool": "bool(switch)",
    "a text": 'f"{switch}"',
    "str": "str(switch)",
    "format": '"{}".format(switch)',
    "a store": "switch[0] = 1",
    "a look": "switch[0]",
    "a key": "{switch: 1}",
    "equality": "switch == 1",
    "membership": "1 in switch",
    "negation": "-switch",
    "remainder": '"%s" % switch',
    "a context": "with switch:\n    pass",
    "iteration": "for i in switch:\n    pass",
    "a list": "list(switch)",
    "a star": "[*switch]",
    "unpacking": "(i,) = switch",
    "a sum": "sum(switch)",
    "a property": "switch.p",
    "a setter": "switch.p = 1",
    "hasattr": 'hasattr(switch, "p")',
    "a method by its name": "getattr(switch, 'set_%d' % x.shape[0])()",
}
# What the caller passes, by the name of the parameter.
GIVEN = {
    "x": lambda x: x,
    "l": lambda x: [x * 1, x * 2],
    "lst": lambda x: [x * 3],
    "d": lambda x: {"a": x * 1, "b": x * 2},
}
SWITCH = """
class Switch(BASE):
    mode = "a"

    def set_4(self):
        self.mode = "b"

    def __bool__(self):
        self.mode = "b"
        return True

    def __str__(self):
        self.mode = "b"
        return "s"

    def __getitem__(self, i):
        self.mode = "b"
        return i

    def __setitem__(self, i, v):
        self.mode = "b"

    def __hash__(self):
        self.mode = "b"
        return 1

    def __eq__(self, other):
        self.mode = "b"
        return True

    def __contains__(self, other):
        self.mode = "b"
        return True

    def __neg__(self):
        self.mode = "b"
        return self

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.mode = "b"

    def __iter__(self):
        self.mode = "b"
        return iter([1])

    @property
    def p(self):
        self.mode = "b"
        return 1

    @p.setter
    def p(self, value):
        self.mode = "b"
"""
# Hashing and comparing modules is what `nn.Module` itself does with them.
MODULE = SWITCH.replace("def __hash__", "def hashed").replace("def __eq__", "def equals")
HOLDERS = {
    "an object": (SWITCH.replace("BASE", "object"), "self.switch = Switch()", "self.switch"),
    "a global": (SWITCH.replace("BASE", "object") + "\n\nG = Switch()", "", "G"),
    "a module": (MODULE.replace("BASE", "nn.Module"), "self.switch = Switch()", "self.switch"),
}


def ran(model, *, grad):
    """What two calls give: results and gradients."""
    found = []
    for call in range(2):
        torch.manual_seed(call)
        x = torch.linspace(-1, 2, 12).view(4, 3) * (call + 1)
        given = [GIVEN[name](x) for name in inspect.signature(model.forward).parameters]
        with torch.set_grad_enabled(grad):
            try:
                result = model(*given)
            except Exception as error:
                found.append(torch.tensor([hash(type(error).__name__)]))
                continue
        found += [each.clone() for each in pytree.tree_leaves(given)]  # as the caller finds it
        results = result if isinstance(result, tuple) else (result,)
        tensors = [torch.as_tensor(each).as_subclass(torch.Tensor) for each in results]
        found += [tensor.detach().clone() for tensor in tensors]
        model.zero_grad()
        if any(tensor.requires_grad for tensor in tensors):
            try:
                sum(t.sum() for t in tensors if t.requires_grad).backward()
            except RuntimeError:  # what backward needs is overwritten
                found.append(None)
                continue
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def agree(expected, found):
    """Whether results are equal, and gradients where the original has some."""
    return len(expected) == len(found) and all(
        one is None or (other is not None and torch.equal(one, other))
        for one, other in zip(expected, found, strict=True)
    )


def check(program, directory):
    for grad in (True, False):
        models = [program.load(directory).Net() for _ in range(2)]  # each with its own globals
        models[1].load_state_dict(copy.deepcopy(models[0].state_dict()))
        sm.convert_model(models[1])
        expected, found = (ran(model, grad=grad) for model in models)
        assert agree(expected, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_same_is_computed(tmp_path, program):
    check(program, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_code_of_an_object_changes_what_a_branch_looks_at(tmp_path, trigger, holder):
    definitions, init, switch = HOLDERS[holder]
    change = TRIGGERS[trigger].replace("switch", switch)
    branch = f"y = h if {switch}.mode == 'b' else x\nh += 1\nreturn y"
    check(Program(f"{change}\nh = self.lin(x)\n{branch}", definitions, init), tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_hook_of_all_modules_keeps_a_result(tmp_path):
    kept = []
    hook = register_module_forward_hook(lambda m, args, out: kept.append(out))
    try:
        model = Program("h = self.lin(x)\nh += 1\nreturn h").load(tmp_path).Net()
        sm.convert_model(model)
        model(torch.ones(3, 3))
        assert torch.equal(kept[0], kept[1])  # of `lin`, overwritten, and of the whole
    finally:
        hook.remove()
