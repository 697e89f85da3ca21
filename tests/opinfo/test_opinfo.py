"""A part of PyTorch's own tests; `make opinfo` runs more, `python -m tests.opinfo` all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.opinfo.cases import cases
from tests.opinfo.modules import example_cases, module_cases
from tests.opinfo.pool import run_all
from tests.opinfo.table import KEY
from tests.rows import read_table

FINE = ("right", "random", "as traced", "untraceable", "refused")
HERE = Path(__file__).parent
COMMITTED = read_table(HERE / "table.tsv", KEY) | read_table(HERE / "modules.tsv", KEY)
MODULES = (
    "nn.(Linear|Bilinear|BatchNorm2d|GroupNorm|Conv2d|ConvTranspose1d|EmbeddingBag|Embedding|GRUCell|"
    "MultiheadAttention|MaxPool2d|AdaptiveAvgPool2d|Softplus|CrossEntropyLoss|KLDivLoss|PReLU)"
)
QUICK = (
    "add|sub|div:.*|floor_divide|remainder|fmod|pow|lerp|clamp|where|maximum|fmin|round.*|sign|"
    "atan2|asinh|tan|expm1|log1p|softmax|log_softmax|logsumexp|var|std:unbiased|norm:inf|amax|"
    "argmin|cumsum|cumprod|cummax|prod|nansum|matmul|addmm|baddbmm|linalg.solve|fft.rfft|polar|"
    "gather|scatter_add|index_put|index_add|take|roll|flip|diagonal_scatter|as_strided|tril|"
    "nn.functional.(conv1d|avg_pool2d|adaptive_max_pool1d|gelu|layer_norm|embedding|pad:reflect|"
    "interpolate:nearest|cross_entropy)"
)


def check(rows: list[dict[str, Any]]) -> None:
    """No wrong answer, no crash, and as native as the committed table says."""
    bad = [r for r in rows if r["outcome"] not in FINE]
    assert not bad, "\n".join(f"{r['op']} {r['dtype']}: {r['text']}" for r in bad)
    for row in rows:
        known = COMMITTED.get((row["op"], row["variant"], row["dtype"], row["level"]))
        if known is not None and known["native"] == "native":
            assert not row["fallbacks"], f"{row['op']} {row['dtype']} falls back"
        if known is not None and known["outcome"] == "right":
            assert row["outcome"] == "right", f"{row['op']} {row['dtype']}: {row['text']}"


def test_operators_of_many_kinds() -> None:
    check(list(run_all(cases(["float32"], QUICK)[::2], "lower", limit=2)))
    check(list(run_all(cases(["int64", "bfloat16"], QUICK)[::5], "lower", limit=2)))


def test_compiled_operators() -> None:
    wanted = "atan2|cumprod|linalg.solve|fft.rfft"
    check(list(run_all(cases(["float32"], wanted), "compiled", limit=1)))


def test_modules_of_many_kinds() -> None:
    check(list(run_all(module_cases(["float32"], MODULES), "lower", limit=2)))


def test_examples_of_export() -> None:
    check(list(run_all(example_cases()[::3], "capture")))


@pytest.mark.slow
def test_all_modules_and_examples() -> None:
    check(list(run_all(module_cases(), "lower")))
    check(list(run_all(example_cases(), "capture")))
