"""One encoder, three tasks with batches of their own shapes: their gradients are taken one after the other and made to agree before
the step, by hand."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from transformers import RobertaConfig, RobertaModel

torch.manual_seed(8)
draw = random.Random(2)
encoder = RobertaModel(RobertaConfig(vocab_size=20000, hidden_size=640, num_hidden_layers=8, num_attention_heads=10)).cuda()
heads = nn.ModuleList([nn.Linear(640, 3), nn.Linear(640, 1), nn.Linear(640, 20000)]).cuda()
parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW([*parameters, *heads.parameters()], lr=1e-4)


def task_loss(task):
    shape = ((32, 64), (16, 160), (8, 32 * draw.randint(4, 12)))[task]
    words = torch.randint(5, 20000, shape, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = encoder(words).last_hidden_state
        if task == 2:
            return F.cross_entropy(heads[2](hidden).flatten(0, 1), words.flatten())
        said = heads[task](hidden[:, 0])
    if task == 1:
        return F.mse_loss(said.squeeze(-1).float(), torch.rand(len(words), device="cuda"))
    return F.cross_entropy(said, torch.randint(0, 3, (len(words),), device="cuda"))


for step in range(60):
    kept = []
    for task in range(3):
        loss = task_loss(task)
        grads = torch.autograd.grad(loss, [*parameters, *heads[task].parameters()], allow_unused=True)
        for parameter, gradient in zip(heads[task].parameters(), grads[len(parameters) :], strict=True):
            parameter.grad = gradient
        kept.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=False)])
    flat = [torch.cat([part.flatten() for part in each]) for each in kept]
    total = torch.zeros_like(flat[0])
    for one in range(3):
        agreed = flat[one].clone()
        for other in range(3):
            product = agreed @ flat[other]
            agreed -= torch.clamp(product, max=0) / (flat[other].norm() ** 2 + 1e-12) * flat[other] * (one != other)
        total += agreed / 3
    place = 0
    for parameter in parameters:
        parameter.grad = total[place : place + parameter.numel()].view_as(parameter).clone()
        place += parameter.numel()
    del flat, total, agreed, kept, grads
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 19:
        print(step, loss.item())
