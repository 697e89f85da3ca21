"""The checks on tile programs catch silent corruption: broken programs, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luminal_lab import codegen
from luminal_lab.codegen.tile import Accumulate, Assign, Init, Loop, Store
from luminal_lab.errors import ScheduleError
from tests.codegen import kernels as K
from tests.codegen.harness import MACHINE


def edit(nodes, change):
    """The nodes with `change(node)` in place of each; None removes, a tuple splices."""
    out = []
    for node in nodes:
        if isinstance(node, Loop):
            node = replace(node, body=edit(node.body, change))
        new = change(node)
        if new is not None:
            out.extend(new if isinstance(new, tuple) else (new,))
    return tuple(out)


def broken(kernel, change):
    program = codegen.lower(kernel, None, MACHINE)
    codegen.verify(program)
    return replace(program, body=edit(program.body, change))


def refused(program, match: str):
    with pytest.raises(ScheduleError, match=match):
        codegen.verify(program)


def test_an_accumulator_that_does_not_start():
    refused(
        broken(K.reduce_rows(5, 70), lambda n: None if isinstance(n, Init) else n),
        "without a start",
    )


def test_a_store_outside_of_its_buffer():
    def change(n):
        return replace(n, index=n.index + 1) if isinstance(n, Store) else n

    refused(broken(K.softmax(5, 70), change), "reaches")


def test_a_program_that_does_not_store():
    refused(
        broken(K.reduce_rows(5, 70), lambda n: None if isinstance(n, Store) else n),
        "never stores",
    )


def test_a_local_that_is_read_before_it_is_written():
    def change(n):
        return None if isinstance(n, Assign) and n.local == "%t" else n

    refused(broken(K.softmax(5, 70), change), "before it is written")


def test_carried_state_that_is_replaced_too_early():
    kernel = K.attention(1, 2, 100, 300, 16)
    state: list[Assign] = []

    def drop(n):
        if isinstance(n, Assign) and n.local == "%m":
            state.append(n)
            return None
        return n

    program = broken(kernel, drop)
    assert state

    def early(n):  # m takes its new value before the old one was used
        if isinstance(n, Assign) and n.local == "%al":
            return (state[0], n)
        return n

    refused(replace(program, body=edit(program.body, early)), "has replaced it")


def test_a_vector_axis_that_a_statement_lacks():
    def change(n):
        return replace(n, vector="i") if isinstance(n, Accumulate) else n

    kernel = K.gemv(40, 70)
    refused(broken(kernel, change), "vector axis")


def test_tasks_that_share_an_accumulator():
    def change(n):
        if isinstance(n, Loop) and n.kind == "grid":
            inits = tuple(x for x in n.body if isinstance(x, Init))
            return (
                *inits,
                replace(n, body=edit(n.body, lambda x: None if isinstance(x, Init) else x)),
            )
        return n

    program = broken(K.reduce_rows(64, 4096), change)
    with pytest.raises(ScheduleError):
        codegen.verify(program)


def test_scratch_that_is_too_small():
    program = codegen.lower(K.linear(100, 70, 130, constant=False), None, MACHINE)
    name, local = next(
        (n, v) for n, v in program.locals.items() if v.space in ("thread", "shared")
    )
    small = tuple(replace(d, size=max(1, d.size // 2)) for d in local.dims)
    locals_ = {**program.locals, name: replace(local, dims=small)}
    refused(replace(program, locals=locals_), "holds")
