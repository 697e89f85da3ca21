"""Reading Metal text: kernel signatures, and what can be found wrong without a compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from luminal_lab.errors import CompilerError

THREADGROUP_BYTES = 32 << 10
THREADGROUP_THREADS = 1024
SIMD_WIDTH = 32


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: a buffer, a scalar passed by reference, or a position.

    Arguments:
        name: Its name.
        type: Its type without the address space, such as `float` or `uint3`.
        space: `device`, `constant`, or `""` for a position.
        attribute: What stands in `[[...]]`, without arguments; `buffer` when it is left out.
        slot: The buffer's number, None for a position.
        reference: Whether it is a reference (`constant T&`) rather than a pointer.
    """

    name: str
    type: str
    space: str
    attribute: str
    slot: int | None
    reference: bool


@dataclass(frozen=True)
class KernelSignature:
    """A kernel of a Metal file.

    Arguments:
        name: Its name.
        parameters: In order.
        line: Where it begins, from 1.
    """

    name: str
    parameters: tuple[Parameter, ...]
    line: int

    @property
    def buffers(self) -> tuple[Parameter, ...]:
        """The parameters that are memory, by slot."""
        found = [p for p in self.parameters if p.slot is not None]
        return tuple(sorted(found, key=lambda p: p.slot or 0))


_SIZES = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "bfloat": 2,
    "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8, "float2": 8, "float4": 16,
}  # fmt: skip
_BANNED = {
    r"\bdouble\b": "Metal has no double",
    r"\b(?:new|delete|malloc|free)\b": "Metal has no dynamic memory",
    r"\b(?:try|catch|throw)\b": "Metal has no exceptions",
    r"\b(?:virtual|dynamic_cast|typeid)\b": "Metal has no virtual functions and no RTTI",
    r"\bgoto\b": "Metal has no goto",
    r"\bthread_local\b": "Metal has no thread_local",
    r"\bstd\s*::": "Metal has no standard library; its own is in namespace metal",
    r"\b(?:printf|assert)\s*\(": "Metal kernels cannot print or assert",
    r"\[\s*[&=]?\s*\w*\s*\]\s*\([^()]*\)\s*(?:->\s*\w+\s*)?\{": "Metal has no lambdas",
    r'"[^"\n]*"': "Metal has no string literals",
    r"(?m)^\s+static\b": "Metal has no static local variables",
    r"(?<![\w.])\d+\.\d*(?:[eE][-+]?\d+)?(?![\w.])": "write a float literal as 1.0f",
    r"\blong\s+(?:long|double)\b": "Metal has neither long long nor long double",
}
_INCLUDE = re.compile(r"(?m)^\s*#\s*include\s*(.*)$")
_ARRAY = re.compile(r"\bthreadgroup\s+(\w+)\s+(\w+)\s*((?:\[[^\]]+\]\s*)+);")
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(")


def strip_comments(source: str) -> str:
    """The text with comments blanked, line by line as long as before."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, source, flags=re.DOTALL)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise CompilerError(
        "unbalanced brackets in the Metal source", where=f"line {_line(text, start)}"
    )


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts if p.strip()]


def signatures(source: str) -> dict[str, KernelSignature]:
    """The kernels of a Metal file, by name.

    Raises:
        CompilerError: a parameter is not of the forms that torch's shader compiler passes.
    """
    text = strip_comments(source)
    out = {}
    for match in _KERNEL.finditer(text):
        open_ = match.end() - 1
        body = text[open_ + 1 : _closing(text, open_)]
        line = _line(text, match.start())
        parameters: list[Parameter] = []
        for part in _split(body):
            taken = sum(p.slot is not None for p in parameters)
            parameters.append(_parameter(part, taken, line))
        out[match.group(1)] = KernelSignature(match.group(1), tuple(parameters), line)
    return out


_PARAMETER = re.compile(
    r"(?P<type>[\w\s]+?)\s*(?P<how>[*&]?)\s*(?P<name>\w+)\s*(?:\[\[(?P<attribute>[^\]]*)\]\])?$"
)


def _parameter(text: str, next_slot: int, line: int) -> Parameter:
    match = _PARAMETER.match(text)
    if match is None:
        raise CompilerError(f"cannot read the kernel parameter {text!r}", where=f"line {line}")
    words = match["type"].split()
    space = next((w for w in ("device", "constant", "threadgroup") if w in words), "")
    type_ = " ".join(
        w for w in words if w not in ("device", "constant", "const", "threadgroup")
    )
    attribute = (match["attribute"] or f"buffer({next_slot})").strip()
    if space == "threadgroup":
        raise CompilerError(
            f"the parameter {text!r} asks for dynamic threadgroup memory, which torch does "
            "not offer",
            where=f"line {line}",
            fix="declare an array in the kernel: threadgroup float s[256];",
        )
    slot = re.fullmatch(r"buffer\s*\(\s*(\d+)\s*\)", attribute)
    if (slot is None) == (space in ("device", "constant")):
        raise CompilerError(
            f"the parameter {text!r} is neither a buffer in device or constant memory nor a "
            "thread position",
            where=f"line {line}",
        )
    return Parameter(
        name=match["name"],
        type=type_,
        space=space,
        attribute="buffer" if slot else attribute,
        slot=int(slot.group(1)) if slot else None,
        reference=match["how"] == "&",
    )


def problems(source: str) -> list[str]:
    """What is wrong with a Metal text, as far as its words show it: `line N: ...` each.

    Finds C++ that is not Metal, other includes than Metal's own, more threadgroup memory than
    there is, and too many threads. Types and address spaces are checked by `metal_tools.lint`.
    """
    text = strip_comments(source)
    found: list[tuple[int, str]] = []
    for pattern, message in _BANNED.items():
        for m in re.finditer(pattern, text):
            found.append((_line(text, m.start()), f"{message} ({m.group().strip()!r})"))
    for m in _INCLUDE.finditer(text):
        if not re.fullmatch(r"<metal_\w+>|<c10/metal/\w+\.h>", m.group(1).strip()):
            found.append((_line(text, m.start()), f"Metal cannot include {m.group(1).strip()}"))
    for m in re.finditer(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)", text):
        if int(m.group(1)) > THREADGROUP_THREADS:
            found.append(
                (_line(text, m.start()), f"at most {THREADGROUP_THREADS} threads a group")
            )
    found += _threadgroup_memory(text)
    return [f"line {line}: {message}" for line, message in sorted(found)]


def _threadgroup_memory(text: str) -> list[tuple[int, str]]:
    starts = [m.start() for m in _KERNEL.finditer(text)]
    out = []
    for begin, end in zip(starts, [*starts[1:], len(text)]):
        total = sum(_array_bytes(m) for m in _ARRAY.finditer(text, begin, end))
        if total > THREADGROUP_BYTES:
            message = f"{total} bytes of threadgroup memory; there are {THREADGROUP_BYTES}"
            out.append((_line(text, begin), message))
    return out


def _array_bytes(match: re.Match[str]) -> int:
    """Bytes of an array whose extents are literals; others are counted when they run."""
    count = _SIZES.get(match.group(1), 0)
    for extent in re.findall(r"\[([^\]]+)\]", match.group(3)):
        factors = [f.strip() for f in extent.split("*")]
        if not all(f.isdigit() for f in factors):
            return 0
        for factor in factors:
            count *= int(factor)
    return count


def shared_arrays(source: str, static: str, declare: str) -> str:
    """Put `static` before each `threadgroup T s[n];`, and `declare` (with `{name}`) after."""

    def again(m: re.Match[str]) -> str:
        return f"{static}{m.group()}{declare.format(name=m.group(2))}"

    return _ARRAY.sub(again, source)
