"""GPyTorch: a deep Gaussian process by variational inference in batches, then predictions of many points by samples."""

import gpytorch
import torch
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch.utils.data import DataLoader, TensorDataset


class Layer(DeepGPLayer):
    def __init__(self, inside: int, outside: int | None, num_inducing: int = 256, linear_mean: bool = True) -> None:
        batch = torch.Size([] if outside is None else [outside])
        points = torch.randn(*batch, num_inducing, inside)
        distribution = CholeskyVariationalDistribution(num_inducing_points=num_inducing, batch_shape=batch)
        strategy = VariationalStrategy(self, points, distribution, learn_inducing_locations=True)
        super().__init__(strategy, inside, outside)
        self.mean_module = gpytorch.means.LinearMean(inside) if linear_mean else gpytorch.means.ConstantMean(batch_shape=batch)
        kernel = gpytorch.kernels.MaternKernel(nu=2.5, batch_shape=batch, ard_num_dims=inside)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Model(DeepGP):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.hidden = Layer(inside, 10)
        self.last = Layer(10, None, linear_mean=False)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.last(self.hidden(x))


torch.manual_seed(0)
x, y = torch.randn(8192, 18).cuda(), torch.randn(8192).cuda()
model = Model(18).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
objective = gpytorch.mlls.DeepApproximateMLL(gpytorch.mlls.VariationalELBO(model.likelihood, model, len(x)))
loader = DataLoader(TensorDataset(x, y), batch_size=2048, shuffle=True)
for epoch in range(1):
    for points, values in loader:
        with gpytorch.settings.num_likelihood_samples(10):
            optimizer.zero_grad()
            loss = -objective(model(points), values)
            loss.backward()
            optimizer.step()
    print(epoch, loss.item())
model.eval()
with torch.no_grad(), gpytorch.settings.num_likelihood_samples(16):
    for points in torch.randn(8192, 18).cuda().split(4096):
        found = model.likelihood(model(points))
        print(found.mean.mean().item(), found.variance.mean().item())
