"""Models and tensors of every kind: what is recorded of them, and that the training is unharmed."""

import copy
import io
import pickle
import warnings
from dataclasses import InitVar, dataclass, field

import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import stability
from external_loops import LAYERS, Chain, batch, chain, rows, state, torch_tanh
from stability.recording.external.recording import Recording
from stability.recording.external.run_writer import RunWriter


def train(model, number=2, optimizer=None, loss=lambda y: y.square().mean()):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(number):
        optimizer.zero_grad()
        loss(model(batch(step))).backward()
        optimizer.step()


def recorded(folder, model, sites=LAYERS, work=train, **options):
    with stability.record(model, folder, sites, **options):
        work(model)
    return rows(folder)


def assert_same(left, right):
    drop = ["run"]
    pd.testing.assert_frame_equal(left.drop(columns=drop), right.drop(columns=drop))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_are_recorded_once(tmp_path, reentrant):
    def call(layer, x):
        return torch.tanh(checkpoint(layer, x, use_reentrant=reentrant))

    plain = recorded(tmp_path / "plain", chain(), work=lambda m: m(batch()).sum().backward())
    found = recorded(
        tmp_path / "run",
        chain(call=call),
        work=lambda m: m(batch().requires_grad_()).sum().backward(),
    )
    assert_same(found, plain)


def test_a_reentrant_checkpoint_belongs_to_the_pass_that_the_backward_pass_reached(tmp_path):
    """Beside a validation with gradients, and with many forward passes before the backward pass."""

    def call(layer, x):
        return torch.tanh(checkpoint(layer, x, use_reentrant=True))

    def work(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            model.eval()(3 * batch(50).requires_grad_())
            model.train()
            several = [batch(12 * step + i).requires_grad_() for i in range(12)]
            sum(model(x).square().mean() for x in several).backward()
            optimizer.step()
            optimizer.zero_grad()

    checkpointed = recorded(tmp_path / "run", chain(call=call), work=work)
    plain = recorded(tmp_path / "plain", chain(), work=work)
    assert set(plain[plain.kind == "grad"].numel) == {12 * 160}
    columns = ["step", "kind", "layer", "numel", "rms", "var"]
    pd.testing.assert_frame_equal(checkpointed[columns], plain[columns], rtol=1e-4)


def test_a_checkpoint_beside_a_pass_without_gradient_is_recorded_once(tmp_path):
    """Recycling: a forward pass without gradient inside of the one with it."""

    class Recycling(Chain):
        def forward(self, x):
            with torch.no_grad():
                x = super().forward(x)
            return checkpoint(super().forward, x, use_reentrant=False)

    torch.manual_seed(0)
    layers = recorded(tmp_path / "run", Recycling())
    assert set(layers[layers.kind.isin(["act", "grad"])].numel) == {160}


def test_a_checkpoint_around_several_layers_is_recorded_once(tmp_path):
    class Deep(Chain):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=True)

    plain = recorded(tmp_path / "plain", chain(), work=lambda m: m(batch()).sum().backward())
    torch.manual_seed(0)
    found = recorded(
        tmp_path / "run", Deep(), work=lambda m: m(batch().requires_grad_()).sum().backward()
    )
    assert_same(found, plain)
    grads = pd.read_parquet(tmp_path / "run" / "layers.parquet")
    acts = grads[grads["kind"] == "act"]
    assert acts["layer"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("outside", [True, False])
def test_an_exception_in_the_forward_pass_leaves_the_recording_usable(tmp_path, outside):
    model = chain()

    def work(model):
        def fail(*_):
            raise ValueError("mine")

        target = model if outside else model.layers[1]
        handle = target.register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="mine"):
            model(batch())
        handle.remove()
        train(model)

    found = recorded(tmp_path / "run", model, work=work)
    assert_same(found, recorded(tmp_path / "plain", chain()))


def test_modules_that_are_never_called_are_named(tmp_path):
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8)]) for _ in range(2))

        def forward(self, x):
            return self.layers[1][0](self.layers[0][0](x))

    with pytest.warns(RuntimeWarning) as said:
        recorded(tmp_path / "run", Lists(), r"layers\.(\d+)", kinds=["act", "grad"])
    assert ["never ran" in str(w.message) for w in said] == [True, False]
    found = state(tmp_path / "run")
    assert found["status"] == "failed" and "nothing was recorded" in found["error"]
    assert "layer 0" in found["notes"][0] and "layer 1" in found["notes"][0]


def test_layers_without_a_use_have_no_gradient_and_do_no_harm(tmp_path):
    model = chain()
    with stability.record(model, tmp_path / "run", LAYERS):
        seen = []
        model.layers[0].register_forward_hook(lambda _, __, out: seen.append(out))
        model(batch())
        seen[0].square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert set(rows(tmp_path / "run", kind="grad").layer) == {0}
    assert set(rows(tmp_path / "run", kind="act").layer) == {0, 1, 2}


@pytest.mark.parametrize("replace", ["parameter", "module"])
def test_parameters_replaced_while_recorded_are_followed(tmp_path, replace):
    model = chain()
    with stability.record(model, tmp_path / "run", LAYERS):
        if replace == "parameter":
            for layer in model.layers:
                layer.weight = nn.Parameter(layer.weight.detach().clone())
        else:
            model.double().float()
        train(model)
    assert_same(rows(tmp_path / "run"), recorded(tmp_path / "plain", chain()))


def test_layers_unfrozen_midway_appear(tmp_path):
    model = chain()
    model.layers[0].requires_grad_(False)
    with stability.record(model, tmp_path / "run", LAYERS):
        train(model, 1)
        model.layers[0].requires_grad_(True)
        train(model, 1)
    assert set(rows(tmp_path / "run", kind="update", step=0).layer) == {1, 2}
    assert set(rows(tmp_path / "run", kind="update", step=1).layer) == {0, 1, 2}
    assert set(rows(tmp_path / "run", kind="grad", step=1).layer) == {0, 1, 2}


def test_sparse_gradients_are_measured_with_their_zeros(tmp_path):
    def make(sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 8, sparse=sparse), chain())
        return model

    def work(model):
        kind = torch.optim.SparseAdam if model[0].sparse else torch.optim.Adam
        optimizers = [kind(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]
        model(torch.tensor([[1, 2, 3], [4, 5, 1]])).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    sparse, dense = (
        recorded(tmp_path / str(s), make(s), r"1\.layers\.(\d+)", work) for s in (True, False)
    )
    wanted = (sparse.kind == "weight_grad") & (sparse.sublayer == "outside")
    assert sparse[wanted].numel.tolist() == [400] and sparse[wanted].zeros.item() > 300
    pd.testing.assert_frame_equal(
        sparse[sparse.kind != "update"].drop(columns="run"),
        dense[dense.kind != "update"].drop(columns="run"),
    )


def test_of_complex_numbers_the_magnitudes_are_measured(tmp_path):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

        def forward(self, x):
            return x.to(torch.complex64) @ self.weight

    torch.manual_seed(0)
    model = Chain([Complex()], call=lambda layer, x: layer(x))
    found = recorded(
        tmp_path / "run", model, work=lambda m: train(m, 1, loss=lambda y: y.abs().mean())
    )
    with torch.no_grad():
        torch.manual_seed(0)
        out = Complex()(batch(0))
    act = found[found.kind == "act"].rms.item()
    assert act == pytest.approx(out.abs().square().mean().sqrt().item(), rel=1e-5)
    assert set(found.kind) == {"act", "grad", "weight", "weight_grad", "update"}


def test_a_module_that_returns_indices_first_is_recorded_by_its_first_real_tensor(tmp_path):
    class Routed(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return x.argmax(-1), y

    torch.manual_seed(0)
    model = Chain([Routed(8, 8) for _ in range(3)], call=lambda layer, x: torch.tanh(layer(x)[1]))
    assert_same(recorded(tmp_path / "run", model), recorded(tmp_path / "plain", chain()))


def test_a_module_without_a_tensor_of_numbers_is_warned_of(tmp_path):
    class Counting(nn.Linear):
        def forward(self, x):
            return x.argmax(-1)

    model = chain()
    model.count = nn.ModuleDict({"7": Counting(8, 8)})
    model.register_forward_hook(lambda m, _, out: m.count["7"](out).sum() * 0 + out)
    with pytest.warns(RuntimeWarning, match="Counting returns"):
        found = recorded(tmp_path / "run", model, r"(?:layers|count)\.(\d)()")
    assert set(found[found.kind == "act"].layer) == {0, 1, 2}


@pytest.mark.parametrize(("token_dim", "axis"), [(1, 1), (0, 0), (-2, 1), (-3, 0)])
def test_the_axis_of_tokens_may_be_counted_from_the_end(tmp_path, token_dim, axis):
    found = recorded(tmp_path / "run", chain(), token_dim=token_dim)
    out = chain().layers[0](batch(0)).detach().double()
    share = out.select(axis, 0).square().sum() / out.square().sum()
    row = found[(found.kind == "act") & (found.layer == 0) & (found.step == 0)]
    assert row.first_share.item() == pytest.approx(share.item(), rel=1e-6)


def test_models_can_be_saved_and_copied_while_they_are_recorded(tmp_path):
    model = chain(call=torch_tanh)
    theirs = model.layers[1].register_forward_hook(keep_output)
    with stability.record(model, tmp_path / "run", LAYERS):
        train(model, 1)
        file = io.BytesIO()
        torch.save(model, file)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        for each in copies:
            each(batch()).sum().backward()
        train(model, 1)
    for each in (*copies, model):
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in each.modules()]
        assert sum(hooks) == 1  # the user's own
        assert not any("__getstate__" in vars(m) for m in each.modules())
    theirs.remove()
    plain = recorded(tmp_path / "plain", chain(), work=lambda m: (train(m, 1), train(m, 1)))
    assert_same(rows(tmp_path / "run"), plain)


def test_a_copy_of_a_parametrized_module_carries_no_hook(tmp_path):
    def work(model):
        for _ in range(2):
            train(model, 1)
            copy.deepcopy(model)(batch(7)).sum().backward()

    def normed():
        model = chain()
        for layer in model.layers:
            nn.utils.parametrizations.weight_norm(layer)
        return model

    right = recorded(tmp_path / "plain", normed(), work=lambda m: (train(m, 1), train(m, 1)))
    assert_same(recorded(tmp_path / "run", normed(), work=work), right)


def test_a_traced_graph_can_be_saved_and_copied_while_it_is_recorded(tmp_path):
    model = torch.fx.symbolic_trace(chain())
    with stability.record(model, tmp_path / "run", LAYERS):
        train(model, 1)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        train(model, 1)
    for each in (*copies, model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in each.modules())
        assert not any("__reduce_ex__" in vars(m) for m in each.modules())
    assert sorted(set(rows(tmp_path / "run").step)) == [0, 1]


class Position(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 5, 8))

    def forward(self, x):
        return self.weight


def test_a_parameter_that_a_module_returns_keeps_no_hook(tmp_path):
    model = chain(layers=[Position(), nn.Linear(8, 8)], call=lambda layer, x: layer(x) + x)
    counts = []

    def work(model):
        for _ in range(3):
            model.eval()(batch(9))
            train(model.train(), 1)
            counts.append(len(model.layers[0].weight._backward_hooks))

    layers = recorded(tmp_path / "run", model, work=work)
    assert counts == [counts[0]] * 3 and not model.layers[0].weight._backward_hooks
    grads = layers[layers.kind == "grad"].sort_values(["step", "layer"])
    assert grads.numel.tolist() == [40, 160] * 3
    of_weight = layers[(layers.kind == "weight_grad") & (layers.site == "weight")]
    at_zero = grads[grads.layer == 0].rms.tolist()
    assert at_zero == pytest.approx(of_weight[of_weight.layer == 0].rms.tolist(), rel=1e-6)


@dataclass
class Output:
    y: torch.Tensor
    scale: InitVar[float]
    extra: object = field(init=False)

    def __post_init__(self, scale):
        self.y = scale * self.y


class Returning(nn.Linear):
    def forward(self, x):
        return Output(super().forward(x), 2.0)


def test_a_dataclass_may_lack_some_of_its_fields(tmp_path):
    layers = [Returning(8, 8) for _ in range(2)]
    found = recorded(tmp_path / "run", chain(layers, call=lambda layer, x: layer(x).y))
    assert set(found[found.kind == "grad"].numel) == {160}
    assert state(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize("where", ["lazy", "meta"])
def test_parameters_that_are_not_there_yet_are_recorded_when_they_are(tmp_path, where):
    def work(model):
        if where == "meta":
            model(batch().to("meta")).sum().backward()
            model.to_empty(device="cpu").zero_grad()
            for p in model.parameters():
                nn.init.normal_(p)
        train(model)

    with torch.device("meta" if where == "meta" else "cpu"):
        model = chain([nn.LazyLinear(8) if where == "lazy" else nn.Linear(8, 8)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = recorded(tmp_path / "run", model, work=work)
    assert "weight and 1 more: weight" in " ".join(state(tmp_path / "run")["notes"])
    assert state(tmp_path / "run")["status"] == "completed"
    last = layers[layers.step == layers.step.max()]
    assert set(last.kind) == {"act", "grad", "weight", "weight_grad", "update"}


@pytest.mark.parametrize("way", ["trace", "fake"])
def test_passes_that_compute_no_numbers_are_left_alone(tmp_path, way):
    def work(model):
        train(model, 1)
        if way == "trace":
            torch.jit.trace(model, batch())
        else:
            with FakeTensorMode(allow_non_fake_inputs=True):
                model(batch())
        train(model, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = recorded(tmp_path / "run", chain(), work=work)
    assert "FakeTensorMode are left out" in state(tmp_path / "run")["notes"][0]
    plain = recorded(tmp_path / "plain", chain(), work=lambda m: (train(m, 1), train(m, 1)))
    assert_same(found, plain)


def keep_output(module, args, output):
    return output


def test_torch_func_through_a_recorded_model_works_with_a_warning(tmp_path):
    model = chain()

    def per_sample(model):
        params = dict(model.named_parameters())

        def loss(params, x):
            return torch.func.functional_call(model, params, (x[None],)).square().mean()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))(params, batch())

    right = per_sample(chain())
    with (
        pytest.warns(RuntimeWarning, match=r"torch\.func"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        found = per_sample(model)
        train(model)
    for name in right:
        torch.testing.assert_close(found[name], right[name])
    assert_same(rows(tmp_path / "run"), recorded(tmp_path / "plain", chain()))


def test_a_module_called_several_times_is_merged_or_one_layer_per_call(tmp_path):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8)])

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.layers[0](x))
            return x

    def make():
        torch.manual_seed(0)
        return Shared()

    merged = recorded(tmp_path / "merged", make())
    each = recorded(tmp_path / "each", make(), each_call=True)
    first = merged[(merged.kind == "act") & (merged.step == 0)]
    calls = each[(each.kind == "act") & (each.step == 0)]
    assert first.numel.tolist() == [480]
    assert calls.layer.tolist() == [0, 1, 2] and calls.numel.tolist() == [160] * 3
    assert (calls.rms**2).mean() == pytest.approx(first.rms.item() ** 2)
    grads = each[(each.kind == "grad") & (each.step == 0)]
    assert grads.layer.tolist() == [0, 1, 2]


def test_tied_weights_appear_once(tmp_path):
    model = chain()
    model.layers[2].weight = model.layers[0].weight
    found = recorded(tmp_path / "run", model)
    assert (found[found.step == 0].kind == "weight").sum() == 5


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float16, "amp_fp16"), (torch.bfloat16, "amp_bf16")]
)
def test_the_format_is_that_of_the_activations(tmp_path, dtype, name):
    def work(model):
        with torch.autocast("cpu", dtype):
            loss = model(batch()).float().square().mean()
        loss.backward()

    recorded(tmp_path / "run", chain(), work=work)
    table = stability.load(tmp_path / "run", "runs")
    assert table["dtype"].tolist() == [name]
    assert state(tmp_path / "run")["finfo"]["max"] == torch.finfo(dtype).max


def test_a_defect_of_the_recorder_ends_the_recording_and_not_the_training(tmp_path, monkeypatch):
    plain, model = chain(), chain()
    train(plain, 3)

    def broken(*_):
        raise AttributeError("a defect")

    monkeypatch.setattr(Recording, "begin_pass", broken)
    with (
        pytest.warns(RuntimeWarning, match="stopped, and the training goes on"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        train(model, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )
    assert state(tmp_path / "run")["error"] == "AttributeError: a defect"
    assert not any(m._forward_hooks for m in model.modules())


def test_the_users_exception_is_the_one_that_is_raised(tmp_path, monkeypatch):
    model = chain()

    def broken(*_):
        raise AttributeError("a defect")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyError, match="mine"), stability.record(model, tmp_path / "r", LAYERS):
            train(model)
            monkeypatch.setattr(Recording, "_conclude", broken)
            raise KeyError("mine")
    assert "mine" in state(tmp_path / "r")["error"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_model_that_is_recorded_before_is_recorded(tmp_path):
    torch._dynamo.reset()
    model = chain()
    with stability.record(model, tmp_path / "run", LAYERS):
        train(torch.compile(model, backend="eager"))
    assert_same(rows(tmp_path / "run"), recorded(tmp_path / "plain", chain()))


def test_a_model_that_was_compiled_and_called_before_is_said(tmp_path):
    torch._dynamo.reset()
    model = chain()
    compiled = torch.compile(model, backend="eager")
    compiled(batch())
    with (
        pytest.warns(RuntimeWarning, match="never ran"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        train(compiled)
    assert state(tmp_path / "run")["notes"]


def test_a_step_that_cannot_be_written_costs_itself_alone(tmp_path, monkeypatch):
    model, written = chain(), RunWriter.add_layers

    def broken(self, step, recorded):
        if step == 1:
            raise ArithmeticError("a defect")
        written(self, step, recorded)

    monkeypatch.setattr(RunWriter, "add_layers", broken)
    with (
        pytest.warns(RuntimeWarning, match="could not be written: ArithmeticError"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        train(model, 4)
    assert set(rows(tmp_path / "run").step) == {0, 2, 3}
    assert state(tmp_path / "run")["status"] == "completed"


def test_two_recordings_of_one_model_do_not_disturb_each_other(tmp_path):
    model = chain()
    first = stability.record(model, tmp_path / "first", LAYERS)
    second = stability.record(model, tmp_path / "second", LAYERS, kinds=["act", "grad"])
    train(model, 2)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(chain(call=torch_tanh)))]
    first.close()  # in the order in which they began
    copies.append(copy.deepcopy(model))
    assert hasattr(torch.amp.GradScaler.step, "__wrapped__")
    train(model, 1)
    second.close()
    assert not hasattr(torch.amp.GradScaler.step, "__wrapped__")
    for each in (*copies, model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in each.modules())
        assert not any("__getstate__" in vars(m) for m in each.modules())
    assert set(rows(tmp_path / "first").step) == {0, 1}
    assert set(rows(tmp_path / "second").step) == {0, 1, 2}
    plain = recorded(tmp_path / "plain", chain())
    assert_same(rows(tmp_path / "first"), plain)
    both = rows(tmp_path / "second")
    chosen = plain[plain.kind.isin(["act", "grad"])].reset_index(drop=True)
    assert_same(both[both.step < 2], chosen)


def test_a_model_of_which_only_parts_are_called_is_recorded(tmp_path):
    def parts(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            x = batch(step)
            for layer in model.layers:
                x = torch.tanh(layer(x))
            x.square().mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", chain(), work=parts)
    assert_same(found, recorded(tmp_path / "plain", chain()))


def test_generator_and_critic_in_one_module_are_recorded_step_by_step(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = Chain(depth=2), nn.Linear(8, 1)

    torch.manual_seed(0)
    model = Both()
    g, d = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model.generator, model.critic))
    with stability.record(model, tmp_path / "run", r"generator\.layers\.(\d+)") as loop:
        for step in range(2):
            d.zero_grad()
            model.critic(model.generator(batch(step)).detach()).mean().backward()
            d.step()
            g.zero_grad()
            (-model.critic(model.generator(batch(step))).mean()).backward()
            g.step()
    assert loop.steps_done == 4
    updates = rows(tmp_path / "run", kind="update")
    assert set(updates[updates.step == 0].sublayer) == {"outside"}
    assert set(updates[updates.step == 1].sublayer) == {"block"}
    grads = rows(tmp_path / "run", kind="weight_grad")
    assert set(grads[grads.step == 1].sublayer) == {"block"}
    assert set(rows(tmp_path / "run", kind="grad").step) == {1, 3}


def test_an_lstm_and_a_backward_pass_that_raises(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x, _ = layer(x)
            return x

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("mine")

    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", LAYERS):
        y = model(batch())
        with pytest.raises(ValueError, match="mine"):
            (y.sum() + Broken.apply(y).sum()).backward()
        optimizer.zero_grad()
        train(model, 2, optimizer)
    found = rows(tmp_path / "run", kind="grad")
    assert found.step.tolist() == [0, 0, 1, 1] and set(found.numel) == {160}
