"""Repeated blocks are found once; running the regions in turn is running the program."""

from __future__ import annotations

import pytest
import torch

from luminal_lab.hlir import Graph, Hlir, Index, Program, Source, check, partition, run
from luminal_lab.hlir.dtypes import F32, I64
from luminal_lab.hlir.interpreter import bind_arguments
from luminal_lab.hlir.tensor import Tensor


def block(
    g: Graph,
    x: Tensor,
    path: str,
    *,
    scale: float = 0.5,
    causal: Tensor | None = None,
    name: str = "",
) -> Tensor:
    """norm → product with a square weight → gate → residual: 13 compute nodes."""
    g.source = Source("model.py:5 in forward", path, "aten.linear.default")
    n = x.shape[-1]
    w = g.input(name or f"{path}.weight", (n, n), F32, "weight", value=torch.randn(n, n) * 0.3)
    mean = (x * x).sum(1).reshape((x.shape[0], 1)) * (1.0 / n)
    y = x * (mean + 1e-5).unary("Sqrt").unary("Recip").expand(x.shape)
    shape = (x.shape[0], n, n)
    y = (y.unsqueeze(1).expand(shape) * w.expand(shape)).sum(2)
    y = (y < 0.0).where(y * 0.1, y * scale)
    if causal is not None:
        y = causal.where(y, y * 0.0)
    y = y.unary("Erf") + x * 1.0
    g.source = Source()
    return y


def stack(n: int, **options) -> Hlir:
    g = Graph("stack")
    x = g.input("x", (4, 6), F32)
    for k in range(n):
        x = block(g, x, f"layers.{k}", **options)
    return g.finish(x)


def faithful(hlir: Hlir) -> Program:
    """Partition, and check everything that a Program promises."""
    check(hlir)
    program = partition(hlir)
    args = {
        s.name: torch.randn(hlir.nodes[s.node].shape)
        if hlir.nodes[s.node].dtype.is_float
        else torch.randint(0, 3, hlir.nodes[s.node].shape)
        for s in hlir.inputs
        if s.kind == "arg"
    }
    for a, b in zip(run(hlir, args), program.run(args), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    known = set(bind_arguments(hlir, args))
    for instance in program.instances:
        region = program.regions[instance.region]
        assert check(region.hlir).key == region.key
        assert len(instance.nodes) == len(region.hlir.nodes)
        for n, node in zip(instance.nodes, region.hlir.nodes):
            parent = hlir.nodes[n]
            assert node.dtype == parent.dtype
            assert node.op in (parent.op, "Input", "Cast")
        for spec in region.hlir.inputs:
            assert spec.name[0] == ("x" if spec.kind == "arg" else "w")
            assert instance.bind[spec.name] in known  # execution order
        written = [instance.bind[o.name] for o in region.hlir.outputs]
        assert all(o.value.view.is_identity for o in region.hlir.outputs)
        assert not known & set(written)
        known |= set(written)
        assert set(instance.bind) == {
            *(s.name for s in region.hlir.inputs),
            *(o.name for o in region.hlir.outputs),
        }
    read = {v for i in program.instances for v in i.bind.values()}
    assert {o.name for o in hlir.outputs} <= read
    crossing = {
        i.bind[o.name]
        for i in program.instances
        for o in program.regions[i.region].hlir.outputs
    }
    used = {
        i.bind[s.name] for i in program.instances for s in program.regions[i.region].hlir.inputs
    }
    assert crossing <= used | {o.name for o in hlir.outputs}  # nothing crosses in vain
    return program


def test_equal_layers_are_one_region():
    program = faithful(stack(12))
    assert len(program.regions) == 1
    assert [i.name for i in program.instances] == [f"layers.{k}" for k in range(12)]
    assert program.instances[0].bind["x0"] == "x"
    assert program.instances[-1].bind["y0"] == "out0"
    assert program.regions[0].key == faithful(stack(1)).regions[0].key
    assert "×12 layers.0, …, layers.11" in repr(program)
    assert list(program.table().region) == [0] * 12


def test_one_layer_or_none_is_one_region():
    program = faithful(stack(1))
    assert [i.name for i in program.instances] == ["program"]
    g = Graph()
    x = g.input("x", (2,), F32)
    assert len(faithful(g.finish(x + x)).instances) == 1


def test_layers_that_only_look_alike_stay_apart():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    for k, scale in enumerate((0.5, 0.25, 0.5, 0.5)):
        x = block(g, x, f"layers.{k}", scale=scale)
    program = faithful(g.finish(x))
    assert [(i.name, i.region) for i in program.instances] == [
        ("layers.0", 0),
        ("after layers.0", 1),
        ("layers.2", 0),
        ("layers.3", 0),
    ]


def test_segments_lie_before_between_and_after():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    x = x.unary("Sin")
    late = g.input("late", (6,), F32).unary("Sin")  # used at the end only: computed there
    x = block(g, x, "tower.layer.0.core")
    x = block(g, x, "tower.layer.1.core")
    y = x.unary("Sin")
    z = block(g, y, "tower.layer.2.core") + late.expand((4, 6))
    program = faithful(g.finish(z))
    names = [i.name for i in program.instances]
    assert names == [
        "before tower.layer.0",
        "tower.layer.0",
        "tower.layer.1",
        "after tower.layer.1",
        "tower.layer.2",
        "after tower.layer.2",
    ]
    assert program.instances[-1].bind["x0"] == "late"
    # The two lone Sin segments are one region, too.
    assert program.instances[0].region == program.instances[3].region


def test_inner_blocks_are_found_where_outer_ones_differ():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    for stage, depth in enumerate((2, 3)):
        for k in range(depth):
            x = block(g, x, f"stages.{stage}.blocks.{k}")
    program = faithful(g.finish(x))
    assert len(program.regions) == 1
    assert [i.name for i in program.instances] == [
        f"stages.{s}.blocks.{k}" for s, depth in ((0, 2), (1, 3)) for k in range(depth)
    ]
    g = Graph()
    x = g.input("x", (4, 6), F32)
    for stage in range(2):
        for k in range(2):
            x = block(g, x, f"stages.{stage}.blocks.{k}", scale=k + 0.5)
    program = faithful(g.finish(x))
    assert [i.name for i in program.instances] == ["stages.0", "stages.1"]


# ---------------------------------------------------------------------- repeats in repeats
def stages(stages: int, blocks: int, parts: int) -> Hlir:
    g = Graph("stages")
    x = g.input("x", (4, 6), F32)
    for s in range(stages):
        for b in range(blocks):
            for p in range(parts):
                x = block(g, x, f"stages.{s}.blocks.{b}.parts.{p}")
            g.source = Source(module=f"stages.{s}.blocks.{b}")
            x = x.unary("Sin")
        g.source = Source(module=f"stages.{s}")
        x = (x * 2.0).unary("Sin")
    return g.finish(x)


def test_repeats_in_repeats_are_found_at_every_depth():
    program = faithful(stages(4, 3, 2))
    assert [len([i for i in program.instances if i.region == k]) for k in range(3)] == [
        24,
        12,
        4,
    ]
    names = [i.name for i in program.instances]
    assert names[:3] == [
        "stages.0.blocks.0.parts.0",
        "stages.0.blocks.0.parts.1",
        "after stages.0.blocks.0.parts.1",
    ]
    assert names[-3:] == [
        "stages.3.blocks.2.parts.1",
        "after stages.3.blocks.2.parts.1",
        "after stages.3.blocks.2",
    ]
    assert len(set(names)) == len(names)
    larger = faithful(stages(2, 5, 4))
    assert [r.key for r in larger.regions] == [r.key for r in program.regions]


def experts(layers: int) -> Hlir:
    g = Graph("experts")
    x = g.input("x", (4, 6), F32)
    for k in range(layers):
        x = block(g, x, f"layers.{k}.attention", scale=0.3)
        each = [block(g, x, f"layers.{k}.experts.{e}") for e in range(4)]
        g.source = Source(module=f"layers.{k}")
        x = each[0] + each[1] + each[2] + each[3] + x
    return g.finish(x)


def test_layers_that_hold_equal_experts():
    """One layer is what one of many is: its head, one expert, its tail."""
    many, one = faithful(experts(5)), faithful(experts(1))
    assert [r.key for r in many.regions] == [r.key for r in one.regions]
    assert [len(r.hlir.nodes) for r in many.regions] == [24, 24, 9]
    assert [i.region for i in many.instances] == [0, 1, 1, 1, 1, 2] * 5
    assert many.instances[-1].name == "after layers.4.experts.3"


def test_loops_in_loops_without_module_paths():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    for k in range(4):
        for j in range(3):
            x = block(g, block(g, x, f"a{k}{j}"), f"b{k}{j}", scale=0.25)
        x = block(g, block(g, x, f"c{k}", scale=0.1), f"d{k}", scale=0.2)
    program = faithful(g.finish(x))
    counts = [
        sum(i.region == k for i in program.instances) for k in range(len(program.regions))
    ]
    assert max(counts) >= 11  # the inner loop's body
    assert sum(len(r.hlir.nodes) for r in program.regions) < 250 < len(program.hlir.nodes)


# ---------------------------------------------------------------------- two sides, neighbours
def tower(g: Graph, x: Tensor, path: str, scales=(0.5, 0.1, 0.2, 0.3)) -> Tensor:
    for k, scale in enumerate(scales):
        x = block(g, x, f"{path}.part{k}", scale=scale)
    return x


def test_a_module_that_is_called_twice_is_one_region():
    """Siamese branches, with one set of weights or two."""
    g = Graph()
    a, b = g.input("a", (4, 6), F32), g.input("b", (4, 6), F32)
    program = faithful(g.finish(tower(g, a, "branch") * tower(g, b, "branch@1")))
    assert [i.name for i in program.instances] == ["branch", "branch@1", "after branch@1"]
    assert [i.region for i in program.instances] == [0, 0, 1]


def test_mirrored_paths_share_their_regions():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    skipped = []
    for k in range(3):
        x = tower(g, x, f"down{k}", (0.5 + k,) * 4)
        skipped.append(x)
    x = x.unary("Sin")
    for k in range(3):
        x = tower(g, x * skipped.pop(), f"up{k}", (2.5 - k,) * 4)
    program = faithful(g.finish(x))
    region = {i.name: i.region for i in program.instances}
    assert all(region[f"down{k}"] == region[f"up{2 - k}"] for k in range(3))
    assert len(program.regions) == 5  # the blocks, the bottom, what joins the sides


def test_a_stem_that_equals_a_deeper_block():
    g = Graph()
    x = block(g, g.input("x", (4, 6), F32), "0")
    x = block(g, x, "stages.1.core.0", scale=0.1)
    x = block(g, x, "stages.1.core.1")
    program = faithful(g.finish(x))
    assert [i.region for i in program.instances] == [0, 1, 0]


NEIGHBOURS = {
    "ABABAB": ([3, 3], [3]),
    "ABCABC": ([2, 2, 2], [2]),
    "AABAA": ([4], [6]),
    "ABAC": ([2], []),
    "AAAABBBB": ([4, 4], [12, 12]),
    "ABACADAA": ([5], [6]),
}


@pytest.mark.parametrize("word", NEIGHBOURS)
@pytest.mark.parametrize("paths", [True, False])
def test_neighbours_of_several_kinds(word, paths):
    """Each letter is three blocks in a row, under a module path or under none."""
    g = Graph()
    x = g.input("x", (4, 6), F32).unary("Sin")
    for k, letter in enumerate(word):
        for j in range(3):
            g.source = Source(module=f"layers.{k}") if paths else Source()
            path = f"layers.{k}.part{j}" if paths else ""
            name = f"w{k}{j}"
            x = block(g, x, path, scale=ord(letter) / 64, name=name)
    program = faithful(g.finish(x.unary("Log2")))
    counts = [
        sum(i.region == k for i in program.instances) for k in range(len(program.regions))
    ]
    found, repeated = NEIGHBOURS[word][not paths], [c for c in counts if c > 1]
    assert sorted(repeated, reverse=True) == found


def test_small_blocks_are_not_worth_a_border():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    for k in range(4):
        g.source = Source(module=f"net.{k}")
        x = (x * 2.0).unary("Sin")
    assert len(faithful(g.finish(x)).instances) == 1


def test_masks_are_copied_into_each_layer():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    lengths = g.input("lengths", (4,), I64)
    row, column = g.iota(Index.axis("i0"), (4, 6)), g.iota(Index.axis("i1"), (4, 6))
    keep = (column < row + 1) * (column < lengths.unsqueeze(1).expand((4, 6)))
    for k in range(3):
        x = block(g, x, f"layers.{k}", causal=keep)
    program = faithful(g.finish(x))
    assert [i.name for i in program.instances] == ["layers.0", "layers.1", "layers.2"]
    assert all(i.bind["x1"] == "lengths" for i in program.instances)
    assert sum(n.op == "Iota" for n in program.regions[0].hlir.nodes) == 2


def test_weight_only_values_may_cross():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    table = g.input("table", (6,), F32, "weight", value=torch.randn(6)).unary("Sin")
    for k in range(2):
        x = block(g, x, f"layers.{k}")
        g.source = Source(module=f"layers.{k}")
        x = x * table.expand((4, 6))
        g.source = Source()
    program = faithful(g.finish(x))
    assert [i.name for i in program.instances] == ["before layers.0", "layers.0", "layers.1"]


@pytest.mark.parametrize("views", [False, True])
def test_outputs_of_every_layer(views):
    """Hidden states: each layer's result is an output and the next layer's input."""
    g = Graph()
    x = g.input("x", (4, 6), F32)
    hidden = []
    for k in range(3):
        x = block(g, x, f"layers.{k}")
        hidden.append(x.permute(1, 0) if views else x)
    program = faithful(g.finish(*hidden))
    layers = [i for i in program.instances if i.name.startswith("layers")]
    if views:  # all layers copy the same view
        assert len(program.instances) == 3
        assert [sorted(set(i.bind.values()) & {"out0", "out1", "out2"}) for i in layers] == [
            ["out0"],
            ["out1"],
            ["out2"],
        ]
    else:  # the last one is not read again and needs no copy
        assert [i.name for i in program.instances] == [
            "layers.0",
            "after layers.0",
            "layers.1",
            "after layers.1",
            "layers.2",
        ]


def test_outputs_that_need_a_copy():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    y = block(g, block(g, x, "layers.0"), "layers.1")
    pooled = y.pick(1, 0)
    constant = g.full((3, 2), 1.5, F32)
    hlir = g.finish(y, y, x, pooled, constant, x.expand((2, 4, 6)))
    program = faithful(hlir)
    names = ["before layers.0", "layers.0", "layers.1", "after layers.1"]
    assert [i.name for i in program.instances] == names
    bind = program.instances[2].bind
    assert "out0" not in bind.values()  # it also crosses, to be copied for out1


def test_mutated_inputs_keep_layers_equal():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    written = []
    for k in range(3):
        cache = g.input(f"cache.{k}", (4, 6), F32, "weight", value=torch.randn(4, 6))
        g.source = Source(module=f"layers.{k}")
        new = cache + x
        x = block(g, x + new.unary("Sin"), f"layers.{k}")
        facts = {"mutates": f"cache.{k}", "name": f"cache.{k}.new"}
        written.append((new.permute(0, 1), facts))
    program = faithful(g.finish(*written, x))
    assert len(program.regions) == 1
    assert program.instances[1].bind["y0"] == "cache.1.new"


def test_a_module_that_runs_twice_is_not_a_block():
    g = Graph()
    x = g.input("x", (4, 6), F32)
    x = block(g, x, "layers.0")
    x = block(g, x, "layers.1")
    g.source = Source(module="layers.0")  # again, after layers.1
    x = (x * 3.0).unary("Sin")
    g.source = Source(module="layers.1")
    x = (x * 3.0).unary("Sin")
    hlir = g.finish(x)
    program = faithful(hlir)
    assert [i.name for i in program.instances] == ["program"]
    assert len(program.regions[0].hlir.nodes) == len(hlir.nodes)


def test_input_names_never_clash_with_crossing_values():
    g = Graph()
    x = g.input("n20", (4, 6), F32)
    y = g.input("n37", (4, 6), F32)
    for k in range(3):
        x = block(g, x + y, f"layers.{k}")
    hlir = g.finish(x)
    program = faithful(hlir)
    crossing = [i.bind["y0"] for i in program.instances[:-1]]
    assert not {"n20", "n37"} & set(crossing)


# ---------------------------------------------------------------------- captured models
def captured(module: torch.nn.Module, *args: torch.Tensor) -> Program:
    from luminal_lab.capture import capture

    torch.manual_seed(0)
    hlir = check(capture(module.eval(), args))
    program = partition(hlir)
    for a, b in zip(run(hlir, args), program.run(args), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    with torch.no_grad():
        expected = module(*args)
    torch.testing.assert_close(run(hlir, args)[0].float(), expected, rtol=1e-4, atol=1e-4)
    for region in program.regions:
        check(region.hlir)
    return program


def encoder(layers: int) -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_an_encoder_of_twelve_layers_is_one_region():
    x = torch.randn(2, 5, 32)
    twelve, one = captured(encoder(12), x), captured(encoder(1), x)
    assert [i.name for i in twelve.instances] == [f"layers.{k}" for k in range(12)]
    assert len(twelve.regions) == len(one.regions) == 1
    assert twelve.regions[0].key == one.regions[0].key


class _First(torch.nn.Module):
    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.model(*args)[0]


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def test_bert_has_one_layer():
    transformers = pytest.importorskip("transformers")
    model = _First(transformers.BertModel(transformers.BertConfig(**SMALL)))
    ids = torch.randint(0, 50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    program = captured(model, ids, mask)
    assert [i.region for i in program.instances] == [0, 1, 1, 1]
    assert program.instances[2].name == "model.encoder.layer.1"


def test_llama_has_one_layer():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_key_value_heads=2, use_cache=False, **SMALL)
    model = _First(transformers.LlamaForCausalLM(config))
    program = captured(model, torch.randint(0, 50, (2, 7)))
    assert [i.region for i in program.instances] == [0, 1, 1, 1, 2]
    assert any(n.op == "LessThan" for n in program.regions[1].hlir.nodes)  # the causal mask


class _Basic(torch.nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.a = torch.nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.b = torch.nn.BatchNorm2d(n)
        self.c = torch.nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.d = torch.nn.BatchNorm2d(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.d(self.c(torch.relu(self.b(self.a(x))))))


def test_residual_stages_have_one_block_each():
    nn = torch.nn
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(3, 4, 3, padding=1))
    model.add_module("layer1", nn.Sequential(_Basic(4), _Basic(4)))
    model.add_module("down", nn.Conv2d(4, 6, 3, 2, 1))
    model.add_module("layer2", nn.Sequential(_Basic(6), _Basic(6)))
    program = captured(model, torch.randn(2, 3, 8, 8))
    assert [i.name for i in program.instances] == [
        "before layer1.0",
        "layer1.0",
        "layer1.1",
        "after layer1.1",
        "layer2.0",
        "layer2.1",
    ]
    regions = [i.region for i in program.instances]
    assert regions[1] == regions[2]
    assert regions[4] == regions[5]


def test_loops_without_module_paths_are_found():
    def program(steps: int) -> Hlir:
        g = Graph()
        x = g.input("x", (4, 6), F32).unary("Sin")
        for k in range(steps):
            x = block(g, x, f"f{k}", scale=0.5)
            x = block(g, x, f"g{k}", scale=0.25)
        return g.finish(x.unary("Sin"))

    program_ = faithful(program(5))
    names = [i.name for i in program_.instances]
    assert names == [
        "before repeat 0.0",
        *(f"repeat 0.{k}" for k in range(5)),
        "after repeat 0.4",
    ]
    assert len({i.region for i in program_.instances[1:-1]}) == 1
    assert len(faithful(program(9)).regions) == len(program_.regions)
    whole = partition(program(5), regions=False)
    assert [i.name for i in whole.instances] == ["program"]


def test_a_run_is_cut_where_least_crosses():
    from luminal_lab.hlir.repeats import repeats

    period = [f"op{k}" for k in range(30)]
    labels = ["head", *period[20:], *period * 4, *period[:5], "tail"]
    live = [3] * (len(labels) + 1)
    for k in range(5):
        live[1 + 10 + 30 * k] = 1
    assert repeats(labels, live) == [(30, (11, 41, 71, 101))]
    assert repeats(list(range(200)), [1] * 201) == []
