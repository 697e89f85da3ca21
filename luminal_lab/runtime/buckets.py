"""One program with kernels for several ranges of its sizes: dispatch by the sizes of a call."""

from __future__ import annotations

import difflib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal_lab import files
from luminal_lab.errors import CallError, LuminalError
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.narrowing import Bucket, narrow
from luminal_lab.hlir.sizes import is_symbolic
from luminal_lab.hlir.symbolic import bind_symbols
from luminal_lab.runtime.executable import Executable
from luminal_lab.runtime.signature import Signature

if TYPE_CHECKING:
    import pandas

    from luminal_lab.runtime.profiling import Profile

_REMEMBERED = 1024  # combinations of sizes whose part is remembered


@dataclass(frozen=True)
class Part:
    """The kernels of one bucket per dim.

    Arguments:
        buckets: By the name of the symbolic dim.
        executable: What runs there.
    """

    buckets: Mapping[str, Bucket]
    executable: Executable

    @property
    def label(self) -> str:
        """`"s=1"` or `"s=2…512"`."""
        return ", ".join(_range(name, b) for name, b in self.buckets.items())


class Buckets:
    """An executable whose kernels depend on the range that the sizes of a call are in.

    Called like an `Executable`; made by `ll.compile(…, buckets=…)`.

    Arguments:
        hlir: The program with all of its sizes.
        parts: One for each combination of buckets.
    """

    def __init__(self, hlir: Hlir, parts: Sequence[Part]):
        self.hlir, self.parts = hlir, tuple(parts)
        self.signature = Signature(hlir)
        args = [s for s in hlir.inputs if s.kind == "arg"]
        self._args = [
            (s, s.position if s.position is not None else k) for k, s in enumerate(args)
        ]
        self._symbolic = [
            (k, dim)
            for spec, k in self._args
            for dim, n in enumerate(hlir.nodes[spec.node].shape)
            if is_symbolic(n)
        ]
        self._chosen: dict[tuple[int, ...], Part] = {}

    # ------------------------------------------------------------------ calling
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program with the kernels for these sizes; see `Executable`.

        Raises:
            CallError: for sizes in no bucket, and as an `Executable` does.
        """
        return self.part(*args, **kwargs).executable(*args, **kwargs)

    def part(self, *args: Any, **kwargs: Any) -> Part:
        """The part that runs these inputs.

        Raises:
            CallError: when the sizes are in no bucket.
        """
        leaves = self.signature.flatten(args, kwargs)
        try:
            key = tuple(leaves[k].shape[dim] for k, dim in self._symbolic)
        except (AttributeError, IndexError):
            return self._choose(leaves)  # says what is wrong with them
        found = self._chosen.get(key)
        if found is None:
            found = self._choose(leaves)
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            self._chosen[key] = found
        return found

    def _choose(self, leaves: Sequence[Any]) -> Part:
        shapes = {s.name: tuple(self.hlir.nodes[s.node].shape) for s in self.hlir.inputs}
        for spec, k in self._args:
            if not hasattr(leaves[k], "shape"):
                raise CallError(
                    f"got {type(leaves[k]).__name__} where a tensor is expected",
                    where=f"argument {spec.name!r} of {self.hlir.name}",
                )
            shapes[spec.name] = tuple(leaves[k].shape)
        sizes = bind_symbols(self.hlir, shapes)
        for part in self.parts:
            if all(sizes[name] in bucket for name, bucket in part.buckets.items()):
                return part
        for name in self.parts[0].buckets:
            own = dict.fromkeys(p.buckets[name] for p in self.parts)
            if not any(sizes[name] in b for b in own):
                ranges = ", ".join(_range(name, b) for b in own)
                raise CallError(
                    f"the size {name} is {sizes[name]}, in none of the buckets {ranges}",
                    where=f"call of {self.hlir.name}",
                    fix="compile with a bucket that holds it",
                )
        raise AssertionError("parts are all combinations of their buckets")

    # ------------------------------------------------------------------ looking at it
    def profiles(self, **options: Any) -> dict[str, Profile]:
        """One profile per part, on random inputs of the sizes that it was tuned for.

        Arguments:
            **options: As for `ll.profile`.
        """
        from luminal_lab.runtime.profiling import profile

        out: dict[str, Profile] = {}
        for part in self.parts:
            args, kwargs = part.executable.example_inputs()
            out[part.label] = profile(part.executable, args, kwargs, **options)
        return out

    def rows(self) -> list[dict[str, Any]]:
        """Plain data: one dict per part."""
        return [
            {
                **{name: _range("", b) for name, b in part.buckets.items()},
                "tuned at": ", ".join(f"{n}={b.tune_at}" for n, b in part.buckets.items()),
                "kernels": len(part.executable.candidate.kernels),
                "calls": len(part.executable.candidate.calls),
                "predicted µs": round(part.executable.candidate.seconds * 1e6, 1),
                "arena bytes": part.executable.stats.arena_bytes,
                "packed bytes": part.executable.stats.persistent_bytes,
            }
            for part in self.parts
        ]

    def table(self) -> pandas.DataFrame:
        """One row per part, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def text(self) -> str:
        """The calls of each part."""
        return "\n\n".join(f"{p.label}\n{p.executable.text()}" for p in self.parts)

    def diff(self, other: Buckets) -> str:
        """How the calls of another one differ, line by line."""
        lines = difflib.unified_diff(
            self.text().splitlines(), other.text().splitlines(), "this", "other", lineterm=""
        )
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write all parts to one file.

        Raises:
            LuminalError: when the file cannot be written.
        """
        with files.writing(path, "buckets", LuminalError) as out:
            index = []
            for k, part in enumerate(self.parts):
                with tempfile.TemporaryDirectory() as folder:
                    part.executable.save(file := Path(folder) / "part")
                    out.put(f"parts/{k}", file.read_bytes())
                named = {n: [b.low, b.high, b.tune_at] for n, b in part.buckets.items()}
                index.append(named)
            out.put("buckets.json", json.dumps(index))
            with tempfile.TemporaryDirectory() as folder:
                self.hlir.save(file := Path(folder) / "hlir")
                out.put("hlir", file.read_bytes())

    @staticmethod
    def load(path: str | Path) -> Buckets:
        """Read what `save` wrote, and build it.

        Raises:
            LuminalError: when the file is missing, damaged, or something else.
        """
        with files.reading(path, "buckets", LuminalError) as archive:
            index = json.loads(archive.read("buckets.json"))
            with tempfile.TemporaryDirectory() as folder:
                (file := Path(folder) / "part").write_bytes(archive.read("hlir"))
                hlir = Hlir.load(file)
                parts = []
                for k, named in enumerate(index):
                    file.write_bytes(archive.read(f"parts/{k}"))
                    buckets = {n: Bucket(*b) for n, b in named.items()}
                    parts.append(Part(buckets, Executable.load(file)))
        return Buckets(hlir, parts)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        try:
            view = import_module("luminal_lab.views.executable")
        except ModuleNotFoundError:
            return bundle
        parts = [f"<h4>{p.label}</h4>{view.to_html(p.executable)}" for p in self.parts]
        return {**bundle, "text/html": "".join(parts)}

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def __repr__(self) -> str:
        lines = [f"Buckets({self.hlir.name}: {len(self.parts)} parts)"]
        lines += [f"  {p.label}: {p.executable!r}" for p in self.parts]
        return "\n".join(lines)


def compiled(
    hlir: Hlir,
    buckets: Mapping[str, Bucket | Sequence[Bucket]],
    compile_one: Callable[[Hlir], Executable],
) -> Buckets:
    """Compile a program once per combination of buckets.

    Arguments:
        hlir: With symbolic dims.
        buckets: By the name of the dim: disjoint ranges.
        compile_one: Compiles a program.

    Raises:
        HlirError: for a dim that it has not, or a bucket beyond its bounds.
        LuminalError: for buckets that overlap, or none.
    """
    each = {n: [b] if isinstance(b, Bucket) else sorted(b) for n, b in buckets.items()}
    for name, own in each.items():
        if not own:
            raise LuminalError(f"no buckets for {name!r}", fix="leave it out")
        for a, b in itertools.pairwise(own):
            if b.low <= a.high:
                raise LuminalError(f"the buckets {a} and {b} of {name} overlap")
    if not each:
        raise LuminalError("no buckets", fix="buckets={'s': [ll.Bucket(1, 1), …]}")
    combined = [dict(zip(each, chosen)) for chosen in itertools.product(*each.values())]
    programs = [narrow(hlir, chosen) for chosen in combined]
    parts = [Part(b, compile_one(program)) for b, program in zip(combined, programs)]
    return Buckets(hlir, parts)


def _range(name: str, bucket: Bucket) -> str:
    size = str(bucket.low) if bucket.low == bucket.high else f"{bucket.low}…{bucket.high}"
    return f"{name}={size}" if name else size
