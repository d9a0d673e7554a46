"""BoTorch: three rounds of noisy expected improvement in batches, each with an exact Gaussian process fitted anew."""

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll_torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import gen_batch_initial_conditions
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
options = {"dtype": torch.double, "device": "cuda"}
bounds = torch.stack([torch.zeros(12, **options), torch.ones(12, **options)])


def measure(x: torch.Tensor) -> torch.Tensor:
    return -(x - 0.4).pow(2).sum(-1, keepdim=True) + 0.05 * torch.randn_like(x[..., :1])


x = torch.rand(1500, 12, **options)
y = measure(x)
for turn in range(3):
    model = SingleTaskGP(x, y, input_transform=Normalize(12), outcome_transform=Standardize(1))
    fit_gpytorch_mll_torch(ExactMarginalLogLikelihood(model.likelihood, model), step_limit=12)
    improvement = qLogNoisyExpectedImprovement(
        model, x, SobolQMCNormalSampler(torch.Size([64])), prune_baseline=False, cache_root=True
    )
    candidates = gen_batch_initial_conditions(improvement, bounds, q=4, num_restarts=6, raw_samples=24)
    candidates = candidates.clone().requires_grad_()
    optimizer = torch.optim.Adam([candidates], lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        (-improvement(candidates).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            candidates.clamp_(0, 1)
    with torch.no_grad():
        best = candidates[improvement(candidates).argmax()]
    x, y = torch.cat([x, best.detach()]), torch.cat([y, measure(best.detach())])
    print(turn, y.max().item())
