"""When a script has been followed for long enough: each kind of training loop, small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.errors import ConfigError
from memfit.job import PredictOptions
from memfit.predict.result import Prediction
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import PATIENCE, Bounds

Run = Callable[..., tuple[Prediction, str]]

START = """
import torch
from torch import nn

def data(rows=8):
    return torch.randn(rows, 64, device="cuda")
"""

GAN = """
generator, critic = nn.Linear(64, 64).cuda(), nn.Linear(64, 1).cuda()
of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
while True:
    for _ in range(5):
        of_critic.zero_grad()
        critic(generator(data()).detach()).mean().backward()
        of_critic.step()
        print("c")
    of_generator.zero_grad()
    wide = generator(data()).repeat(1024, 1)
    critic(wide).mean().backward()
    of_generator.step()
    print("g")
"""

CLEANING_UP = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
try:
    while True:
        model(data()).mean().backward()
        optimizer.step()
        print("s")
finally:
    raise RuntimeError("a model that is trained cannot be moved")
"""

ACCUMULATING = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for _ in range(50):
        model(data()).mean().backward()
        print("b")
    optimizer.step()
    optimizer.zero_grad()
    print("s")
"""

ACCUMULATING_UNSHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = fully_shard(nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for number in range(50):
        model.set_requires_gradient_sync(number == 49)
        model(data()).mean().backward()
        print("b")
    optimizer.step()
    optimizer.zero_grad()
    print("s")
"""

OF_ONES_OWN = """
class Own:
    def __init__(self, model):
        self.model, self.state = model, {}

    @torch.no_grad()
    def step(self):
        for parameter in self.model.parameters():
            state = self.state.setdefault(parameter, torch.zeros(1024, 1024, device="cuda"))
            parameter.data.add_(parameter.grad)
            parameter.grad.zero_()

model = nn.Linear(64, 64).cuda()
optimizer = Own(model)
for _ in range(100):
    for _ in range(4):
        model(data()).mean().backward()
        print("b")
    optimizer.step()
    print("s")
"""

HANDED_OUT = """
weight = torch.randn(64, 64, device="cuda", requires_grad=True)
for _ in range(100):
    (gradient,) = torch.autograd.grad((data() @ weight).sum(), weight)
    with torch.no_grad():
        weight -= gradient
    print("s")
"""

LOOKING_FIRST = """
model = nn.Linear(64, 64).cuda()
for _ in range(4):
    inputs = data().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
for _ in range(2):
    model(data()).sum().backward()
    model.zero_grad()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(data()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LOOKING_WITHOUT_AN_OPTIMIZER = """
model = nn.Linear(64, 32).cuda()
for _ in range(3):
    inputs = data().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
for _ in range(5):
    model(data()).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
            parameter.grad = None
"""

LEARNING_TO_LEARN = """
weight = torch.randn(64, 64, device="cuda", requires_grad=True)
for _ in range(5):
    fast = weight
    for _ in range(3):
        (gradient,) = torch.autograd.grad((data() @ fast).pow(2).sum(), fast, create_graph=True)
        fast = fast - gradient
    (data() @ fast).sum().backward()
    with torch.no_grad():
        weight -= weight.grad
        weight.grad = None
"""

STANDING_IN = """
model = nn.Linear(64, 32).cuda()
weights = {name: parameter.detach().requires_grad_() for name, parameter in model.named_parameters()}
for _ in range(5):
    loss = torch.func.functional_call(model, weights, data()).sum()
    gradients = torch.autograd.grad(loss, list(weights.values()))
    pairs = zip(weights.items(), gradients)
    weights = {name: (weight - gradient).detach().requires_grad_() for (name, weight), gradient in pairs}
"""

LOOKING_ALONE = """
model = nn.Linear(64, 32).cuda()
for _ in range(5):
    inputs = data().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
"""

EVALUATING_FIRST = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
with torch.no_grad():
    for _ in range(60):
        model(data())
        print("e")
while True:
    model(data()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("s")
"""

IN_BACKWARD = """
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}

def step(parameter):
    optimizers[parameter].step()
    parameter.grad = None
    print("s")

for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
while True:
    model(data()).mean().backward()
"""

WITH_A_CLOSURE = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30)

def closure():
    optimizer.zero_grad()
    loss = model(data()).pow(2).mean()
    loss.backward()
    return loss

while True:
    optimizer.step(closure)
    print("s")
"""

SHARPNESS = """
class SAM(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups)

    def first_step(self):
        self.zero_grad()

    def second_step(self):
        self.base.step()
        self.zero_grad()

model = nn.Linear(64, 64).cuda()
optimizer = SAM(model.parameters())
while True:
    model(data()).mean().backward()
    optimizer.first_step()
    model(data()).mean().backward()
    optimizer.second_step()
    print("s")
"""

OF_OPTIMIZERS = """
class Container(torch.optim.Optimizer):
    def __init__(self, model):
        self.parts = [torch.optim.SGD(part.parameters()) for part in model]
        super().__init__(list(model.parameters()), {})

    def step(self):
        for part in self.parts:
            part.step()

model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
optimizer = Container(model)
while True:
    model(data()).mean().backward()
    optimizer.step()
    print("s")
"""

NEVER_STEPPING = """
model, unused = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
optimizer, idle = torch.optim.SGD(model.parameters()), torch.optim.Adam(unused.parameters())
while True:
    model(data()).mean().backward()
    optimizer.step()
    print("s")
"""

SETTLING_LATE = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for number in range(100):
    model(data(8 * 4 ** min(number, 5))).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("s")
"""

OLD_AND_NEW = """
model = nn.Linear(64, 64).cuda()
replaced, optimizer = torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())
while True:
    model(data()).mean().backward()
    optimizer.step()
    print("s")
"""

UNTIL_ITS_END = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(40):
    model(data()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("s")
print("e")
"""

NOT_TRAINING = """
model = nn.Linear(64, 64).cuda()
with torch.no_grad():
    for _ in range(3):
        model(data())
"""

OPTIMIZER_ALONE = (
    """
optimizer = torch.optim.SGD([torch.zeros(1, device="cuda", requires_grad=True)])
"""
    + NOT_TRAINING
)

NO_STEP = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
model(data()).mean().backward()
"""

COMPILED_FIRST = """
compiled = [torch.compile(function, backend="aot_eager") for function in (torch.sin, torch.cos, torch.tanh, torch.exp)]
for function in compiled:
    function(data().requires_grad_())
model = nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(8, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

WARM_UP_ALONE = """
model = nn.Linear(64, 64).cuda()
for _ in range(2):
    model(data()).mean().backward()
    model.zero_grad()
model(data()).mean().backward()
optimizer = torch.optim.AdamW(model.parameters())
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Predicts a script; gives the prediction, and the letters that it printed."""

    def predict(script: str, **bounds: float) -> tuple[Prediction, str]:
        Path("train.py").write_text(START + script)
        job = read_command(["train.py"])
        prediction = run_script(job, PredictOptions(gpu="H100", torch_version="2.11+cu130"), Bounds(**bounds)).prediction
        return prediction, capsys.readouterr().out.replace("\n", "")

    return predict


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # What the last optimizer's step is followed by is not reached.
        pytest.param(GAN, "cccccg" * 2 + "ccccc", id="a GAN"),
        pytest.param(ACCUMULATING, ("b" * 50 + "s") * 2 + "b" * 50, id="gradients are added up"),
        pytest.param(ACCUMULATING_UNSHARDED, ("b" * 50 + "s") * 2 + "b" * 50, id="whole gradients are added up by FSDP2"),
        pytest.param(CLEANING_UP, "ss", id="what follows the end fails"),
        pytest.param(OF_ONES_OWN, "bbbbs" * 3, id="an optimizer of one's own"),
        pytest.param(HANDED_OUT, "sss", id="gradients are handed out"),
        pytest.param(EVALUATING_FIRST, "e" * 60 + "ss", id="an evaluation first"),
        pytest.param(IN_BACKWARD, "s" * 11, id="steps in backward"),
        pytest.param(WITH_A_CLOSURE, "ss", id="an optimizer that runs backward itself"),
        pytest.param(SHARPNESS, "ss", id="an optimizer around another"),
        pytest.param(OF_OPTIMIZERS, "ss", id="an optimizer of optimizers"),
        pytest.param(OLD_AND_NEW, "ss", id="an optimizer that was replaced"),
    ],
)
def test_what_a_training_step_is(script: str, expected: str, run: Run):
    prediction, printed = run(script, steps=3)
    assert printed == expected
    assert prediction.fits
    assert not prediction.problem


def test_gradients_that_are_only_looked_at_before_training_are_no_training_steps(run: Run):
    prediction, _ = run(LOOKING_FIRST)
    assert prediction.covered.training_steps == 5
    assert prediction.fits


@pytest.mark.parametrize("script", [LOOKING_WITHOUT_AN_OPTIMIZER, LEARNING_TO_LEARN, STANDING_IN])
def test_without_an_optimizer_every_change_of_weights_is_a_step_and_no_other_gradient(script: str, run: Run):
    prediction, _ = run(script)
    assert prediction.covered.training_steps == 5
    assert prediction.fits
    assert not prediction.problem


def test_gradients_of_inputs_alone_are_no_training(run: Run):
    assert run(LOOKING_ALONE)[0].covered.training_steps == 0


def test_a_gan_is_predicted_with_its_generators_step(run: Run):
    peak = run(GAN, steps=3)[0].peak_allocated
    assert peak == run(GAN, steps=5)[0].peak_allocated
    assert peak > 2 * 8 * 1024 * 64 * 4  # what the generator's step alone takes


def test_steps_are_exact_where_they_are_given(run: Run):
    assert run(GAN, steps=1)[1] == "ccccc"
    assert run(SETTLING_LATE, steps=2)[1] == "s"


def test_an_optimizer_that_never_steps_is_waited_for_and_named(run: Run):
    prediction, printed = run(NEVER_STEPPING, steps=3)
    assert printed == "s" * (PATIENCE + 1)  # then two more training steps
    assert any("Adam of 2 parameters) did not step" in sentence for sentence in prediction.assumptions)


def test_a_script_is_followed_to_its_end(run: Run):
    prediction, printed = run(UNTIL_ITS_END)
    assert printed == "s" * 40 + "e"
    assert len(prediction.steps) == 40


def test_the_users_bound_on_time(run: Run):
    prediction, printed = run(EVALUATING_FIRST, max_seconds=1e-9)
    assert printed == ""
    assert any("--max-seconds" in sentence for sentence in prediction.assumptions)
    assert not prediction.fits


@pytest.mark.parametrize(
    ("script", "seen"),
    [(NO_STEP, "1 forward pass, 1 backward pass"), (OPTIMIZER_ALONE, "3 forward passes, no backward passes")],
)
def test_a_run_that_was_to_train_and_never_did_is_not_said_to_fit(script: str, seen: str, run: Run):
    prediction, _ = run(script)
    assert prediction.verdict.fits
    assert not prediction.fits
    assert prediction.problem == f"no training step was seen: {seen}, and no optimizer's step"
    assert not prediction.ledger.info.complete


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own look
def test_what_is_compiled_before_there_is_an_optimizer_is_no_training_step(run: Run):
    prediction, _ = run(COMPILED_FIRST)
    assert prediction.fits
    assert prediction.peak_allocated > 4 * 2048 * 2048 * 4  # weights, gradients and the optimizer's state


def test_a_warm_up_without_the_optimizers_step_is_not_said_to_fit(run: Run):
    prediction, _ = run(WARM_UP_ALONE)
    assert not prediction.fits
    assert prediction.problem.startswith("no training step was seen")


@pytest.mark.parametrize("bounds", [{"steps": 0}, {"max_seconds": 0}, {"max_seconds": float("nan")}])
def test_bounds_that_cannot_be_meant(bounds: dict):
    with pytest.raises(ConfigError):
        Bounds(**bounds)


def test_steps_of_an_optimizer_of_ones_own_are_steps_of_the_ledger(run: Run):
    """A step is seen to be over when the next backward begins; the forward after that begins the ledger's."""
    assert [len(run(OF_ONES_OWN, steps=steps)[0].steps) for steps in (3, 6)] == [3, 6]
