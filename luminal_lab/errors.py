"""Every error that Luminal Lab raises on purpose derives from `LuminalError`."""

from __future__ import annotations


class LuminalError(Exception):
    """What went wrong, where, and what to do about it.

    Arguments:
        what: One sentence: what was given and what was expected.
        where: A place: a user's source line, `file:line:column` of a rule, a node, a kernel.
        fix: What the user can do.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None):
        self.what, self.where, self.fix = what, where, fix
        parts = [what]
        if where:
            parts.append(f"  at: {where}")
        if fix:
            parts.append(f"  try: {fix}")
        super().__init__("\n".join(parts))


class CaptureError(LuminalError):
    """A PyTorch program could not be turned into an Hlir."""


class TensorError(LuminalError):
    """An operation of the Tensor API was given shapes, dtypes or values that do not fit it."""


class HlirError(LuminalError):
    """An Hlir is ill-formed, or its text form does not parse."""


class RuleError(LuminalError):
    """A rule file is missing, does not parse, is ill-typed, or states something false."""

    def _render_traceback_(self) -> list[str]:
        # In a notebook the place in the rule's text says it all; Python's stack says nothing.
        return [f"RuleError: {self}"]


class SaturationError(LuminalError):
    """The saturation child died, ran out of memory, or produced no e-graph."""


class SearchError(LuminalError):
    """No candidate survived, or the search was asked for something that it cannot do."""


class ScheduleError(LuminalError):
    """A schedule does not fit its kernel."""


class VerificationError(LuminalError):
    """A kernel or a candidate computes something else than the reference."""


class CompilerError(LuminalError):
    """There is no compiler, or it rejected the generated source."""


class CallError(LuminalError):
    """An Executable was called with inputs that it was not built for."""


class CacheError(LuminalError):
    """The cache or the tuning database cannot be read or written."""
