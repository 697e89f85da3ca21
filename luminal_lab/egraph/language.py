"""The language of the e-graph as data: signatures, and what the op table generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.ops import BINARY, UNARY

MEMORY = "@"  # among what a value is free in: the contents of tensors that vary between calls
WEIGHTS = "@w"  # ... and the contents of weights, which are known when a program is built
MARKS = frozenset({MEMORY, WEIGHTS})
_CODE = 1 << 20  # a provenance stamp is iteration * _CODE + rule
FRESH = 1 << 40  # added to the rule while the iteration is not known yet


@dataclass(frozen=True)
class Signature:
    """The sorts of a constructor's arguments, and its own."""

    args: tuple[str, ...]
    sort: str


SIGNATURES: Mapping[str, Signature] = {
    **{op: Signature(("V",), "V") for op in UNARY},
    **{op: Signature(("V", "V"), "V") for op in BINARY},
    "Const": Signature(("f64", "String"), "V"),
    "NegZero": Signature(("String",), "V"),
    "Int": Signature(("i64", "String"), "V"),
    "Iota": Signature(("Ix", "String"), "V"),
    "Table": Signature(("Numbers", "V", "String"), "V"),
    "Cast": Signature(("V", "String"), "V"),
    "Select": Signature(("V", "V", "V"), "V"),
    "Red": Signature(("String", "String", "V"), "V"),
    "Carry": Signature(("String", "String", "V", "V"), "V"),
    "Online": Signature(("String", "V", "V", "V"), "V"),
    "Load": Signature(("T", "String"), "V"),
    "LoadAt": Signature(("T", "String", "Vs"), "V"),
    "Affine": Signature(("String",), "Ix"),
    "Number": Signature(("i64",), "Ix"),
    "Plus": Signature(("Ix", "Ix"), "Ix"),
    "Times": Signature(("i64", "Ix"), "Ix"),
    "Rem": Signature(("Ix", "i64"), "Ix"),
    "Input": Signature(("String",), "T"),
    "Kernel": Signature(("V", "String"), "T"),
    "Planes": Signature(("V", "String"), "T"),
    "Custom": Signature(("i64", "Ts"), "T"),
    "Scatter": Signature(("String", "T", "V", "String", "String", "Vs"), "T"),
    "Gemm": Signature(("T", "String", "T", "String", "String", "Axes", "f64", "String"), "T"),
    "Lib": Signature(("String", "Ts", "Maps", "String", "Roles", "Numbers"), "T"),
    "GemmPlus": Signature(
        (*("T", "String") * 3, "String", "Axes", "f64", "f64", "String"), "T"
    ),
}
TRACED = tuple(op for op, s in SIGNATURES.items() if s.sort in ("V", "T"))  # have provenance


def datum(sort: str, value: Any) -> Any:
    """A value as the saturation child sends it, with sets and vectors that can be keys."""
    if sort == "Roles":
        return tuple(map(frozenset, value))
    if isinstance(value, list):
        return frozenset(value) if sort == "Axes" else tuple(value)
    return value


def stamp(iteration: int, rule: int) -> int:
    """The provenance of an e-node: which rule (0: the encoder) made it in which iteration."""
    return iteration * _CODE + rule


def unstamp(code: int) -> tuple[int, int]:
    """`(iteration, rule)` of a stamp."""
    return divmod(code, _CODE)


def constructors() -> str:
    """The constructors of unary and binary ops, and their analyses."""
    out = []
    for op in UNARY:
        out.append(f"(constructor {op} (V) V)")
        out.append(
            f"(rule ((= e ({op} x)) (= f (free x)) (= d (dtype x)))"
            " ((set (free e) f) (set (dtype e) d)))"
        )
    for op in BINARY:
        out.append(f"(constructor {op} (V V) V)")
        of = '"bool"' if op == "LessThan" else "d"
        out.append(
            f"(rule ((= e ({op} a b)) (= fa (free a)) (= fb (free b))"
            f" (= d (dtype a)) (= d (dtype b)))"
            f" ((set (free e) (set-union fa fb)) (set (dtype e) {of})))"
        )
    return "\n".join(out)


def families() -> str:
    """The facts about dtypes."""
    floats = [d for d in DTYPES.values() if d.is_float]
    out = [f'(floating "{d.name}")' for d in floats]
    out += [f'(wide "{d.name}")' for d in DTYPES.values() if not d.is_float or d.bits >= 32]
    for a in DTYPES.values():
        out += [
            f'(exactly "{a.name}" "{b.name}")' for b in DTYPES.values() if holds(a.name, b.name)
        ]
    return "\n".join(out)


# Mantissa bits (with the implicit one), and the range of exponents as a rank.
_FLOAT = {"f64": (53, 4), "f32": (24, 3), "bf16": (8, 3), "f16": (11, 2), "f8e5m2": (3, 2)}
_FLOAT["f8e4m3"] = (4, 1)
_INT = {"i64": (-63, 63), "i32": (-31, 31), "i16": (-15, 15), "i8": (-7, 7), "u8": (0, 8)}


def holds(a: str, b: str) -> bool:
    """Whether every value of dtype a is exactly one of dtype b."""
    if a in _FLOAT and b in _FLOAT:
        return _FLOAT[a][0] <= _FLOAT[b][0] and _FLOAT[a][1] <= _FLOAT[b][1]
    if a in _INT and b in _INT:
        return _INT[b][0] <= _INT[a][0] and _INT[a][1] <= _INT[b][1]
    if a in _INT and b in _FLOAT:
        return max(_INT[a][1], -_INT[a][0]) < _FLOAT[b][0]
    return a == b == "bool"


def provenance() -> str:
    """One function per constructor that remembers which rule made an e-node first, and when.

    A rule's head sets `FRESH + rule`; the ruleset `stamp` adds the iteration afterwards. The
    smallest stamp stays, so an e-node that several rules derive belongs to the first.
    """
    out = ["(function now () i64 :merge new)", "(ruleset stamp)", "(ruleset encoded)"]
    for op in TRACED:
        args = SIGNATURES[op].args
        names = " ".join(f"x{k}" for k in range(len(args)))
        out.append(f"(function by_{op} ({' '.join(args)}) i64 :merge (min old new))")
        out.append(
            f"(rule ((= s (by_{op} {names})) (>= s {FRESH}) (= t (now)))"
            f" ((set (by_{op} {names}) (+ (* t {_CODE}) (- s {FRESH})))) :ruleset stamp)"
        )
        out.append(
            f"(rule ((= e ({op} {names}))) ((set (by_{op} {names}) 0)) :ruleset encoded)"
        )
    return "\n".join(out)
