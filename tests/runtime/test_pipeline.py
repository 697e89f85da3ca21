"""What a user calls: captured programs, built and run, against eager PyTorch."""

import copy
import pickle

import pytest
import torch
from torch import nn

import luminal_lab as ll
from luminal_lab.errors import CallError

pytestmark = pytest.mark.usefixtures("c_compiler")


def compiled(fn, *args, **options):
    return ll.compile(fn, args, budget=ll.Budget("none"), **options)


def agree(got, want, error=1e-5):
    torch.testing.assert_close(got, want, rtol=error, atol=error, check_stride=True)


class Counter(nn.Module):
    """Mutates a buffer, as batch normalisation and key-value caches do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += x.sum(0)
        self.calls += 1
        return x * self.seen


def test_mutated_buffers():
    module = Counter()
    twin = copy.deepcopy(module)
    x = torch.randn(3, 4)
    fn = compiled(module, x)
    for _ in range(3):
        agree(fn(x), twin(x))
        agree(module.seen, twin.seen)
        assert module.calls == twin.calls
    assert module.calls == 3


def test_a_mutated_argument():
    def step(cache, x, at):
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    cache, x, at = torch.zeros(8, 4), torch.randn(2, 4), torch.tensor([1, 5])
    fn = compiled(step, cache.clone(), x, at)
    mine, theirs = cache.clone(), cache.clone()
    for shift in range(3):
        agree(fn(mine, x + shift, (at + shift) % 8), step(theirs, x + shift, (at + shift) % 8))
        agree(mine, theirs)


def test_batch_norm_in_training():
    module = nn.BatchNorm1d(5)
    twin = copy.deepcopy(module)
    x = torch.randn(16, 5)
    with torch.no_grad():
        fn = compiled(module, x)
        for k in range(2):
            agree(fn(x + k), twin(x + k), 1e-4)
    agree(module.running_mean, twin.running_mean)
    agree(module.running_var, twin.running_var)
    assert module.num_batches_tracked == twin.num_batches_tracked == 2


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x.t() + 1, (torch.randn(3, 4),)),
        (lambda x: (x + 1).t(), (torch.randn(3, 4),)),
        (lambda x: {"a": x * 2, "b": [x.sum(), x > 0]}, (torch.randn(3, 4),)),
        (lambda x: (x, x + 1), (torch.randn(3, 4),)),
        (lambda x: x.sum(), (torch.randn(7),)),
        (lambda x, y: (x + y, x // 2, x % y), (torch.arange(-4, 4), torch.full((8,), 3))),
        (lambda x: torch.sort(x, dim=-1), (torch.randn(3, 9),)),
        (lambda x, i: x.index_put((i,), x[:3]), (torch.randn(9), torch.tensor([1, 1, 5]))),
        (lambda x: torch.cat([x, x.flip(0)]), (torch.randn(3, 4),)),
        (lambda x: x[1:1].sum(0), (torch.randn(3, 4),)),
        (lambda x: x.to(torch.bfloat16) * 2, (torch.randn(5, 33),)),
        (lambda x: x.half().relu(), (torch.randn(5, 33),)),
        (lambda x: x.double().exp(), (torch.randn(5, 33),)),
        (lambda x: x.expand(4, 3) + 0 * x, (torch.randn(3),)),
    ],
    ids=[
        "transposed view", "view of a result", "structure", "an input returned", "scalar",
        "integers", "sort", "index_put", "cat", "empty", "bf16", "f16", "f64", "broadcast",
    ],
)  # fmt: skip
def test_against_eager(fn, args):
    mine = compiled(fn, *args)
    for _ in range(2):
        agree(mine(*args), fn(*args))


def test_layers_share_kernels():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(16),
                nn.Linear(16, 32),
                nn.Linear(32, 16),
            )

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    model = nn.Sequential(*(Block() for _ in range(4))).eval()
    x = torch.randn(5, 16)
    with torch.no_grad():
        fn = compiled(model, x)
        agree(fn(x), model(x))
        assert len(fn.candidate.kernels) < len(fn.candidate.calls)
        model[2].up.weight.mul_(2)
        agree(fn(x), model(x))
        model.load_state_dict(nn.Sequential(*(Block() for _ in range(4))).state_dict())
        agree(fn(x), model(x))
        profile = ll.profile(fn, (x,), repeats=3)
    assert sum(k.calls for k in profile.kernels) == len(fn.candidate.calls)


def test_without_freezing():
    model = nn.Linear(16, 8)
    x = torch.randn(5, 16)
    with torch.no_grad():
        fn = compiled(model, x, freeze=False)
        agree(fn(x), model(x))
        assert fn.stats.persistent_bytes == 0
        model.weight.normal_()
        agree(fn(x), model(x))


def test_keyword_inputs_and_mistakes():
    def f(x, *, scale):
        return x * scale

    x, s = torch.randn(4), torch.randn(4)
    fn = ll.compile(f, (x,), {"scale": s}, budget=ll.Budget("none"))
    agree(fn(x, scale=s), x * s)
    for bad in (
        lambda: fn(x),
        lambda: fn(x, s),
        lambda: fn(x, scale=s[:2]),
        lambda: fn(x, size=s),
    ):
        with pytest.raises(CallError):
            bad()


def test_a_hand_edited_kernel():
    from dataclasses import replace

    from luminal_lab.runtime import build

    x = torch.randn(8)
    fn = compiled(lambda x: x * 3.0, x)
    (code,) = fn.program.code
    edited = build(fn.candidate, code={0: replace(code, text=code.text.replace("3.0", "5.0"))})
    assert code.text.count("3.0") == 1
    assert "#include" not in fn.source()
    agree(edited(x), x * 5.0)


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).eval()
    with torch.no_grad():
        return model, compiled(model, torch.randn(3, 6))


def test_saved_and_loaded(small, tmp_path):
    from luminal_lab.runtime import Executable

    _, fn = small
    x = torch.randn(3, 6)
    path = tmp_path / "model.ll"
    fn.save(path)
    again = Executable.load(path)
    assert torch.equal(again(x), fn(x))
    assert again.candidate.text() == fn.candidate.text()
    assert again.freeze
    assert not Executable.load(path, freeze=False).freeze
    fn.hlir.save(path)
    with pytest.raises(ll.LuminalError, match="a saved hlir, not a saved executable"):
        Executable.load(path)


def test_pickled(small):
    _, fn = small
    x = torch.randn(3, 6)
    again = pickle.loads(pickle.dumps(fn))
    assert torch.equal(again(x), fn(x))
