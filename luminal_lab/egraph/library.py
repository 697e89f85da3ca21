"""Kernels that are called and not derived: their declarations, and what a call needs to know.

A rule makes `(Lib name tensors maps map roles numbers)`: which tensors are read at which
index maps, where the result is stored, and which axes play which *role*. The declaration of
the kernel says what its roles are called and which of them each operand has. From both
follows a `LibraryForm`: extents and strides, as numbers. An index map that does not fit
(strides that are not linear or not numbers, a unit stride that is not there) makes no call: the
e-node is dropped.

A kernel written by hand is one file of C. Its first comment declares it:

    // kernel: softmax_rows
    // law: y = softmax of x over n
    // roles: m n
    // read x: f32 m n
    // write y: f32 m n
    // unit: x.n y.n
    // parallel: m
    // cost: vector 8*m*n special m*n
    // reference: torch.softmax(x, -1)

The file defines `static void softmax_rows(const float *x, float *y, long lo, long hi)`, which
does the points `lo <= m < hi`. What else it defines (functions, types, macros) has a name that
begins with its own: it is compiled once for each set of sizes. Extents are macros named like
their roles (`M`, `N`), strides in elements like operand and role (`X_M`), numbers `NUMBER0`.
The reference is an expression of PyTorch over the operands, each a float64 tensor whose dims
are its roles in order; it gives a tensor with the roles of what is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.gemm import Stored, merge_axes
from luminal_lab.errors import RuleError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.sizes import Dim, is_symbolic
from luminal_lab.resources import kernels_dir

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Operand:
    """What a kernel reads or writes.

    Arguments:
        name: What its source calls it.
        dtype: Name of its element type; `"any"` when the kernel takes several.
        roles: The roles that its axes play, in the order of the reference's dims.
    """

    name: str
    dtype: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Declaration:
    """What the head of a kernel says.

    Arguments:
        name: What rules call it.
        law: What it computes, in words.
        roles: The names of its roles, in the order in which a rule gives them.
        reads, write: Its operands, in order.
        unit: `(operand, role)` whose stride must be 1.
        parallel: The role over which threads share the work.
        cost: `(unit, expression)`: operations as an expression of the roles' extents.
        reference: The expression that defines it.
        source: Its C; empty for a routine of a library.
        several: Roles that may have several axes that do not merge into one.
    """

    name: str
    law: str
    roles: tuple[str, ...]
    reads: tuple[Operand, ...]
    write: Operand
    unit: tuple[tuple[str, str], ...] = ()
    parallel: str = ""
    cost: tuple[tuple[str, str], ...] = ()
    reference: str = ""
    source: str = ""
    several: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What it reads, then what it writes."""
        return (*self.reads, self.write)


@dataclass(frozen=True)
class LibraryForm:
    """A call, as numbers.

    Arguments:
        name: The kernel's.
        extents: For each role the extents of its axes, outermost first.
        strides: For each operand, reads first, and each role the strides of its axes, in
            elements; 0 where the operand lacks the role.
        numbers: What the rule gave.
        source: The file, for a kernel written by hand.
    """

    name: str
    extents: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[tuple[int, ...], ...], ...]
    numbers: tuple[float, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        sizes = [f"{role}={n}" for role, n in self.sizes().items()]
        return " ".join((self.name, *sizes, *map(repr, self.numbers)))

    @property
    def declaration(self) -> Declaration:
        """The declaration of its kernel."""
        return declared(self.source) if self.source else LIBRARY[self.name]

    def sizes(self) -> dict[str, int]:
        """The extent of each role."""
        out = {}
        for role, extents in zip(self.declaration.roles, self.extents):
            out[role] = 1
            for n in extents:
                out[role] *= n
        return out

    def view(self, operand: int, tensor: Tensor) -> Tensor:
        """An operand's memory with a dim for each axis of its roles (`several` keep theirs)."""
        said = self.declaration
        sizes: list[int] = []
        steps: list[int] = []
        for role in said.operands[operand].roles:
            at = said.roles.index(role)
            sizes += self.extents[at]
            steps += self.strides[operand][at]
        return tensor.contiguous().view(-1).as_strided(sizes, steps)


def library_form(
    said: Declaration,
    stored: Sequence[Stored],
    dtypes: Sequence[str],
    roles: Sequence[Sequence[str]],
    numbers: Sequence[float],
    extents: Mapping[str, Dim],
) -> LibraryForm | None:
    """What a call needs to know; None when the kernel does not take these maps or sizes.

    Arguments:
        said: The kernel's declaration.
        stored: Each operand's shape and index map, what is written last.
        dtypes: Their dtypes' names.
        roles: The axes of each role.
        numbers: What the rule gave besides.
        extents: The extent of every axis.
    """
    if len(stored) != len(said.operands) or len(roles) != len(said.roles):
        return None
    strides = [s.strides() for s in stored]
    if any(s is None for s in strides):
        return None
    known = [s or {} for s in strides]
    seen = [n for s, have in zip(stored, known) for n in (*s.shape, *have.values())]
    if any(is_symbolic(n) for n in (*seen, *(extents[a] for axes in roles for a in axes))):
        return None
    for operand, have, dtype in zip(said.operands, known, dtypes):
        allowed = {a for role in operand.roles for a in roles[said.roles.index(role)]}
        if not {*have} <= allowed or operand.dtype not in ("any", dtype):
            return None
    sizes: list[tuple[int, ...]] = []
    steps: list[list[tuple[int, ...]]] = [[] for _ in known]
    for role, axes in zip(said.roles, roles):
        users = [k for k, o in enumerate(said.operands) if role in o.roles]
        maps = [{a: known[k].get(a, 0) for a in axes} for k in range(len(known))]
        merged = merge_axes(sorted(axes), [maps[k] for k in users], extents)
        if merged is not None:
            sizes.append((merged[0],))
            of = dict(zip(users, merged[1]))
            for k, out in enumerate(steps):
                out.append((of.get(k, 0),))
        elif role in said.several:
            order = sorted(axes, key=lambda a: (-maps[users[-1]][a], a))
            sizes.append(tuple(extents[a] for a in order))
            for k, out in enumerate(steps):
                out.append(tuple(maps[k][a] for a in order))
        else:
            return None
    for name, role in said.unit:
        k = [o.name for o in said.operands].index(name)
        at = said.roles.index(role)
        if steps[k][at] != (1,) and sizes[at] != (1,):
            return None
    return LibraryForm(
        said.name, tuple(sizes), tuple(tuple(s) for s in steps), tuple(numbers), said.source
    )


def reference(form: LibraryForm, tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """What a call leaves in memory, in float64, by the kernel's reference expression."""
    import torch

    said = form.declaration
    names: dict[str, Any] = {
        o.name: form.view(k, t) for k, (o, t) in enumerate(zip(said.reads, tensors))
    }
    names |= {"torch": torch, "numbers": form.numbers, **form.sizes()}
    value = eval(said.reference, {"__builtins__": {}}, names)
    out = torch.zeros(tuple(shape), dtype=value.dtype)
    form.view(len(said.reads), out).copy_(value)
    return out


def operations(form: LibraryForm) -> dict[str, float]:
    """Operations by unit: `dot`, `vector`, `special`."""
    sizes = form.sizes()
    return {
        unit: float(eval(text, {"__builtins__": {}}, dict(sizes)))
        for unit, text in form.declaration.cost
    }


_HEAD = re.compile(r"//\s*(read|write)?\s*(\w+)\s*:\s*(.*)$")
_FIELDS = ("kernel", "law", "roles", "unit", "parallel", "cost", "reference")


@cache
def declared(source: str, where: str = "") -> Declaration:
    """The declaration at the head of a kernel's source.

    Raises:
        RuleError: when something is missing or not understood, with the line.
    """
    said: dict[str, str] = {}
    operands: dict[str, list[Operand]] = {"read": [], "write": []}
    for number, line in enumerate(source.splitlines(), 1):
        if not line.startswith("//"):
            break
        found = _HEAD.match(line.rstrip())
        if found is None:
            continue
        kind, name, text = found.groups()
        if kind:
            dtype, *roles = text.split()
            if dtype not in DTYPES:
                raise _misread(f"{dtype!r} is no dtype", where, number)
            operands[kind].append(Operand(name, dtype, tuple(roles)))
        elif name in _FIELDS:
            said[name] = text
        else:
            raise _misread(f"{name!r} is none of {', '.join(_FIELDS)}", where, number)
    missing = [
        f for f in ("kernel", "law", "roles", "parallel", "reference") if not said.get(f)
    ]
    if len(operands["write"]) != 1 or not operands["read"]:
        missing.append("read … and one write")
    if missing:
        raise _misread(f"its head lacks {', '.join(missing)}", where, 1)
    roles = tuple(said["roles"].split())
    every = (*operands["read"], *operands["write"])
    for role in (said["parallel"], *(r for o in every for r in o.roles)):
        if role not in roles:
            raise _misread(f"{role!r} is none of its roles {', '.join(roles)}", where, 1)
    words = said.get("cost", "").split()
    return Declaration(
        said["kernel"],
        said["law"],
        roles,
        tuple(operands["read"]),
        operands["write"][0],
        tuple(_pair(u) for u in said.get("unit", "").split()),
        said["parallel"],
        tuple(zip(words[::2], words[1::2])),
        said["reference"],
        source,
    )


def _pair(text: str) -> tuple[str, str]:
    name, _, role = text.partition(".")
    return name, role


def _misread(what: str, where: str, line: int) -> RuleError:
    return RuleError(
        f"the head of a kernel is not understood: {what}",
        where=f"{where}:{line}" if where else None,
        fix="see docs/howto/bring-a-kernel.md",
    )


def read_kernels(paths: Sequence[Path]) -> dict[str, Declaration]:
    """Kernels of some files and folders, by name; what comes later wins.

    Raises:
        RuleError: for a file that is not understood.
    """
    out: dict[str, Declaration] = {}
    for path in paths:
        for file in sorted(path.glob("*.c")) if path.is_dir() else [path]:
            if not file.is_file():
                raise RuleError(f"there is no kernel {str(file)!r}", where=str(file))
            said = declared(file.read_text(encoding="utf-8"), str(file))
            out[said.name] = said
    return out


def kernels_of(classes: Iterable[Any]) -> dict[str, Declaration]:
    """The hand-written kernels that e-nodes call, by name."""
    forms = [n.attrs[0] for c in classes for n in c.nodes if n.op == "library"]
    return {form.name: form.declaration for form in forms if form.source}


@cache
def shipped_kernels() -> Mapping[str, Declaration]:
    """The kernels for the CPU that come with the compiler."""
    return read_kernels([kernels_dir() / "c"])


_ATTENTION = (
    "torch.nn.functional.scaled_dot_product_attention("
    "q, k, v, scale=numbers[0] * 0.6931471805599453)"
)

# Routines of PyTorch, with more than one batch axis where their strides want it.
LIBRARY: Mapping[str, Declaration] = {
    "sdpa": Declaration(
        name="sdpa",
        law="attention of q over keys k and values v; number: the scale, in powers of 2",
        roles=("batch", "s", "t", "d", "e"),
        reads=(
            Operand("q", "any", ("batch", "s", "d")),
            Operand("k", "any", ("batch", "t", "d")),
            Operand("v", "any", ("batch", "t", "e")),
        ),
        write=Operand("o", "any", ("batch", "s", "e")),
        unit=(("q", "d"), ("k", "d"), ("v", "e"), ("o", "e")),
        cost=(
            ("dot", "2*batch*s*t*(d+e)"),
            ("special", "batch*s*t"),
            ("vector", "4*batch*s*t"),
        ),
        reference=_ATTENTION,
        several=("batch",),
    ),
}
