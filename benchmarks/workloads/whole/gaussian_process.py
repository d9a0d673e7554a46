"""A Gaussian process: hyperparameters by marginal likelihood, more data in rounds, then means and variances of many points."""

import gpytorch
import torch

torch.manual_seed(40)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=8))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def values(x):
    return torch.sin(x.sum(-1)) + 0.1 * torch.randn(len(x), device=x.device)


x = torch.rand(1200, 8).cuda()
y = values(x)
for round_number in range(3):
    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Process(x, y, likelihood).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()
    with gpytorch.settings.max_cholesky_size(5000):
        for _ in range(15):
            optimizer.zero_grad()
            loss = -likely(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            asked = torch.rand(3000, 8).cuda()
            said = likelihood(model(asked))
            unsure = said.variance.topk(600).indices
    print(round_number, len(x), loss.item(), said.mean.abs().mean().item())
    x = torch.cat((x, asked[unsure]))
    y = torch.cat((y, values(asked[unsure])))
